"""fnctl dev."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from admin.cli.errors import errors_reported
from admin.text import plain
from registry.errors import BadRequest

DEFAULT_CACHE: Final = Path("~/.cache/fngate")
DEFAULT_PORT: Final = 8000
MIB: Final = 1024 * 1024

FolderGiven = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a Python function.")]
Port = Annotated[
    int, typer.Option(min=0, max=65535, metavar="PORT", help="Port of 127.0.0.1; 0 for any.")
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env", "-e", metavar="K=V", help="Variable of the function, such as a secret; repeatable."
    ),
]
Upgrade = Annotated[
    bool, typer.Option("--upgrade", help="Ask the index for versions anew at the start.")
]
Pythons = Annotated[
    str,
    typer.Option(
        "--python",
        envvar="FN_PYTHONS",
        metavar="NAMES",
        help="Interpreters by name or path, with commas between; by default the one of fnctl.",
    ),
]
UvConfig = Annotated[
    Path | None,
    typer.Option(
        envvar="FN_UV_CONFIG",
        metavar="FILE",
        help="A uv.toml that says where packages come from (default: PyPI).",
    ),
]
EnvironmentMib = Annotated[
    int,
    typer.Option(
        min=1, envvar="FN_ENVIRONMENT_MIB", metavar="MIB", help="Most that the packages may have."
    ),
]
Cache = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder for locks and packages, kept for other runs.")
]


def dev(  # noqa: PLR0913 - typer takes one parameter per option
    folder: FolderGiven,
    port: Port = DEFAULT_PORT,
    env: Env = None,
    upgrade: Upgrade = False,
    python: Pythons = "",
    uv_config: UvConfig = None,
    environment_mib: EnvironmentMib = 8192,
    cache: Cache = DEFAULT_CACHE,
) -> None:
    """Run a Python function here until Ctrl-C, without a server.

    The packages, their versions and the program that runs the code are those that a deploy would
    take. Calls, prints and tracebacks appear here. A change of a file in the folder starts it
    again; files that .fnignore names and hidden ones do not count. It runs with your rights: the
    isolation of a server is not there.

    \b
    Examples:
      fnctl init greet && fnctl dev greet
      fnctl dev greet --port 9000 --env TOKEN=abc
      fnctl dev greet --python python3.12,python3.13
    """
    with errors_reported(as_json=False):
        from admin.cli.dev.folder import read_folder
        from admin.cli.dev.packages import Packages
        from admin.cli.dev.running import choose_port
        from admin.cli.dev.session import Given, Session
        from environments.folders import EnvironmentSettings

        root = folder.expanduser().absolute()
        given = Given(root, choose_port(port), _variables(env or []), upgrade)
        settings = EnvironmentSettings(
            uv_config and uv_config.expanduser().absolute(), environment_mib * MIB
        )
        names = [name.strip() for name in python.split(",") if name.strip()]
        with tempfile.TemporaryDirectory(prefix="fnctl-dev-") as work:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, _interrupt)
            try:
                read_folder(root)
                packages = Packages(cache.expanduser().absolute(), settings, names, _say)
                packages.tidy()
                Session(given, packages, Path(work), _say).run()
            except KeyboardInterrupt:
                _say("stopped")


def _variables(given: list[str]) -> dict[str, str]:
    """Return the variables of `--env`. Raises BadRequest."""
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.isidentifier() or not name.isascii() or "\0" in value:
            raise BadRequest(f"--env: expected NAME=VALUE, got {one[:80]!r}")
        found[name] = value
    return found


def _interrupt(*_: Any) -> None:
    """Let a signal that ends a program go the way of Ctrl-C."""
    raise KeyboardInterrupt


def _say(line: str) -> None:
    typer.echo(plain(line))
