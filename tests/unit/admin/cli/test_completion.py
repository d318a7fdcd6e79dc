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
    """Return the completions that a shell offers for the last of `words`."""
    env = {"_FNCTL_COMPLETE": "complete_bash", "COMP_WORDS": words}
    env |= {"COMP_CWORD": str(words.count(" ")), "FN_URL": url, "FN_DATA": str(data)}
    return CliRunner().invoke(app, [], env=env, prog_name="fnctl").stdout.split()


@pytest.mark.parametrize("verb", ["show", "invoke", "why", "logs", "rm", "scale", "advise"])
def test_names_are_those_of_the_server(api: AdminApi, tmp_path: Path, verb: str) -> None:
    """Verbs that take a function's name complete it from the server, with the local token."""
    (tmp_path / "admin.token").write_text(KEY)
    api.on("GET", FUNCTIONS, Canned(NAMES))

    assert complete(api.url, f"fnctl {verb} dig", tmp_path) == ["digits", "digits-next"]
    assert api.requests[0].headers["Authorization"] == f"Bearer {KEY}"


def test_the_command_line_names_the_server(api: AdminApi) -> None:
    """Connection options before the name apply to its completion."""
    api.on("GET", FUNCTIONS, Canned(NAMES))

    words = f"fnctl show --url {api.url} --key other c"

    assert complete("http://127.0.0.1:1", words) == ["commands"]
    assert api.requests[0].headers["Authorization"] == "Bearer other"


@pytest.mark.parametrize(
    "answer",
    [
        Canned(status=403),
        Canned(is_cut=True),
        Canned({"items": 1}),
        Canned({"items": ["digits", {"other": "digits"}]}),
    ],
)
def test_a_refusal_offers_nothing(api: AdminApi, answer: Canned) -> None:
    """A refusal gives no completions, and no error text as one."""
    api.on("GET", FUNCTIONS, answer)

    assert complete(api.url, "fnctl show ") == []


@pytest.mark.parametrize("words", ["fnctl show d", "fnctl --ssh host show d"])
def test_no_server_offers_nothing(words: str) -> None:
    """Without an answering server there are no completions; completion never logs in over SSH."""
    assert complete("http://127.0.0.1:1", words) == []
    assert complete("nonsense", words) == []


def test_a_slow_server_is_not_waited_for(api: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Completion waits for an answer only a bounded time."""
    monkeypatch.setattr(completion, "COMPLETION_S", 0.05)
    answers = threading.Event()

    def wait() -> None:
        answers.wait(10)

    api.on("GET", FUNCTIONS, Canned(NAMES, before=wait))

    assert complete(api.url, "fnctl show d") == []
    answers.set()


def test_completion_can_be_installed(fnctl: Callable[..., Result]) -> None:
    """The help names both options for completion."""
    shown = fnctl("--help").stdout

    assert "--install-completion" in shown
    assert "--show-completion" in shown
