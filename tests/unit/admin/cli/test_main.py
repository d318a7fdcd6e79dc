from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version

from typer.testing import CliRunner

from admin.cli.main import app
from runtime_image.contract.link import VERSION

VERBS = (
    "serve",
    "deploy",
    "ls",
    "show",
    "invoke",
    "why",
    "logs",
    "rm",
    "key",
    "access",
    "secret",
    "image",
    "doctor",
)
GROUPS = (
    ("key", "add"),
    ("key", "ls"),
    ("key", "rm"),
    ("access", "status"),
    ("access", "open"),
    ("access", "close"),
    ("access", "rotate-admin"),
    ("secret", "set"),
    ("secret", "ls"),
    ("secret", "rm"),
    ("image", "build"),
    ("image", "prune"),
)
HEAVY = (
    "aiohttp",
    "pydantic",
    "numpy",
    "rich",
    "docker",
    "requests",
    "registry.manifest",
    "http.client",
    "asyncio",
    "asyncssh",
    "pynvml",
)


def test_help_lists_verbs_and_exit_codes() -> None:
    """The top-level help shows every verb and the meaning of the exit codes."""
    shown = CliRunner().invoke(app, ["--help"]).stdout

    assert [verb for verb in VERBS if f"\n  {verb} " not in shown] == []
    assert "\n    3    the server does not answer\n" in shown


def test_every_verb_has_an_example() -> None:
    """Each verb's help ends with an example that begins with fnctl."""
    words = [[verb] for verb in VERBS if verb not in ("key", "access", "secret", "image")] + [
        *map(list, GROUPS)
    ]

    shown = {" ".join(each): CliRunner().invoke(app, [*each, "--help"]).stdout for each in words}

    assert [verb for verb, text in shown.items() if f"\n    fnctl {verb}" not in text] == []


def test_every_verb_can_print_json() -> None:
    """Every verb that prints a result has --json."""
    words = [[verb] for verb in VERBS if verb not in ("key", "access", "secret", "image", "serve")]
    words += map(list, GROUPS)

    missing = [
        each for each in words if "--json" not in CliRunner().invoke(app, [*each, "--help"]).stdout
    ]

    assert missing == []


def test_every_verb_can_reach_another_machine() -> None:
    """Every verb that talks to a server has --ssh; `serve` and the verbs for the container engine
    do not."""
    words = [[verb] for verb in VERBS if verb not in ("key", "access", "secret", "image")] + [
        *map(list, GROUPS)
    ]

    missing = [
        each for each in words if "--ssh" not in CliRunner().invoke(app, [*each, "--help"]).stdout
    ]

    assert missing == [["serve"], ["image", "build"]]


def test_the_version_is_printed() -> None:
    """--version names fngate, Python and the link to replicas, and succeeds."""
    shown = CliRunner().invoke(app, ["--version"])

    python = platform.python_version()
    assert shown.exit_code == 0
    assert shown.stdout == f"fngate {version('fngate')} (Python {python}, link {VERSION})\n"


def test_an_unknown_verb_is_wrong_usage() -> None:
    """A misspelt verb is exit code 2 and names the nearest verb."""
    result = CliRunner().invoke(app, ["deplo"])

    assert result.exit_code == 2
    assert "Did you mean 'deploy'?" in result.stderr


def test_start_up_is_light() -> None:
    """The help imports no module that only some verbs need."""
    code = (
        "import sys; from admin.cli.main import app; app(['--help'], standalone_mode=False);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stderr.strip() == "[]"


def test_main_runs_the_command_line() -> None:
    """`main` reads the arguments of the command line and exits with the exit code."""
    code = "import sys; sys.argv[1:] = ['nope']; from admin.cli.main import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 2
    assert done.stderr.startswith("Usage: fnctl ")
