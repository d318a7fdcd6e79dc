from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from admin.cli import completion
from admin.cli.main import app
from tests.support.admin_api import AdminApi, Canned
from tests.unit.admin.conftest import KEY

FUNCTIONS = "/admin/v1/functions"
NAMES = {"items": [{"name": "commands"}, {"name": "digits"}, {"name": "digits-next"}]}


def complete(url: str, words: str, data: Path = Path("none")) -> list[str]:
    """The words that a shell offers for the last of `words`."""
    env = {"_FNCTL_COMPLETE": "complete_bash", "COMP_WORDS": words}
    env |= {"COMP_CWORD": str(words.count(" ")), "FN_URL": url, "FN_DATA": str(data)}
    return CliRunner().invoke(app, [], env=env, prog_name="fnctl").stdout.split()


@pytest.mark.parametrize("verb", ["show", "invoke", "why", "logs", "rm", "scale", "advise"])
def test_names_are_those_of_the_server(api: AdminApi, tmp_path: Path, verb: str) -> None:
    """Each verb that takes a function's name offers those that begin alike, with the server's
    own token."""
    (tmp_path / "admin.token").write_text(KEY)
    api.on("GET", FUNCTIONS, Canned(NAMES))

    assert complete(api.url, f"fnctl {verb} dig", tmp_path) == ["digits", "digits-next"]
    assert api.requests[0].headers["Authorization"] == f"Bearer {KEY}"


def test_the_command_line_names_the_server(api: AdminApi) -> None:
    """Options before the name hold for its completion."""
    api.on("GET", FUNCTIONS, Canned(NAMES))

    words = f"fnctl show --url {api.url} --key other c"

    assert complete("http://127.0.0.1:1", words) == ["commands"]
    assert api.requests[0].headers["Authorization"] == "Bearer other"


@pytest.mark.parametrize("answer", [Canned(status=403), Canned(is_cut=True), Canned({"items": 1})])
def test_a_refusal_offers_nothing(api: AdminApi, answer: Canned) -> None:
    """A shell gets no error text as a word."""
    api.on("GET", FUNCTIONS, answer)

    assert complete(api.url, "fnctl show d") == []


@pytest.mark.parametrize("words", ["fnctl show d", "fnctl --ssh host show d"])
def test_no_server_offers_nothing(words: str) -> None:
    """Nobody logs in to another machine for a completion."""
    assert complete("http://127.0.0.1:1", words) == []
    assert complete("nonsense", words) == []


def test_a_slow_server_is_not_waited_for(api: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell waits for the completion, so the time for an answer is bounded."""
    monkeypatch.setattr(completion, "COMPLETION_S", 0.05)
    answers = threading.Event()

    def wait() -> None:
        answers.wait(10)

    api.on("GET", FUNCTIONS, Canned(NAMES, before=wait))

    assert complete(api.url, "fnctl show d") == []
    answers.set()


def test_completion_can_be_installed(fnctl: Callable[..., Result]) -> None:
    """The help names both options of it."""
    shown = fnctl("--help").stdout

    assert "--install-completion" in shown
    assert "--show-completion" in shown
