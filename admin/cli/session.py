"""What every verb that talks to a server shares: where it is, who asks, in which form."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from admin.cli.failures import told
from admin.cli.ssh import Identity, KnownHosts, Place, Ssh, client_over, login
from admin.cli.text import plain

if TYPE_CHECKING:
    from admin.client import Client
    from admin.remote.target import Login

DEFAULT_URL: Final = "http://127.0.0.1:8080"
DEFAULT_DATA: Final = Path("~/.fngate")
DEFAULT_ENGINE: Final = "unix:///var/run/docker.sock"
TOKEN_FILE: Final = "admin.token"  # noqa: S105 - a file's name
TOKEN_MAX: Final = 4096
"""Characters read of a token file."""

Url = Annotated[
    str, typer.Option("--url", envvar="FN_URL", metavar="URL", help="Where the server is.")
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="FN_KEY",
        metavar="KEY",
        help="Access key; without it, DATA/admin.token is used, on this machine or by --ssh.",
    ),
]
Data = Annotated[
    Path,
    typer.Option("--data", envvar="FN_DATA", metavar="DIR", help="The server's data folder."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_SHARED: Final = (
    ("url", Url, DEFAULT_URL),
    ("key", Key, None),
    ("data", Data, DEFAULT_DATA),
    ("ssh", Ssh, None),
    ("identity", Identity, None),
    ("known_hosts", KnownHosts, None),
    ("as_json", Json, False),
)


@dataclass(frozen=True, slots=True)
class Session:
    """A verb's way to the server and to its reader. Results go to stdout, remarks to stderr."""

    client: Client
    as_json: bool

    def answer(self, data: object, text: Callable[[], str]) -> None:
        """Print the result: `data` with --json, else `text()`."""
        print_answer(self.as_json, data, "" if self.as_json else text())

    def remark(self, text: str) -> None:
        """Say something beside the result; silent with --json."""
        if not self.as_json:
            typer.echo(plain(text), err=True)

    def next(self, *commands: str) -> None:
        """Say what to do next."""
        self.remark("next: " + "  or  ".join(commands))


def print_answer(as_json: bool, data: object, text: str) -> None:
    """Print a result: `data` as JSON, or `text`."""
    typer.echo(json.dumps(data, indent=2) if as_json else plain(text))


def connected(run: Callable[..., None]) -> Callable[..., None]:
    """Make a verb of `run`: it gets a Session for its first parameter, and the options for one.

    Typer reads the options off a signature, so the verb has that of `run` with `--url`, `--key`,
    `--data`, `--json` and those of `--ssh` in place of the session.
    """

    def verb(*, context: typer.Context, as_json: bool, **options: Any) -> None:
        place = Place(options.pop("url"), options.pop("key"), options.pop("data"))
        files = {name: options.pop(name) for name in ("identity", "known_hosts")}
        way = login(context, options.pop("ssh"), **files)
        with told(as_json), client_at(place, way) as client:
            run(Session(client, as_json), **options)

    signature = inspect.signature(run, eval_str=True)
    own = list(signature.parameters.values())[1:]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in _SHARED
    ]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [*own, context, *shared]
    verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # PEP 362
    verb.__annotations__ = {each.name: each.annotation for each in parameters}
    verb.__name__, verb.__doc__ = run.__name__, run.__doc__
    return verb


@contextmanager
def client_at(place: Place, way: Login | None) -> Iterator[Client]:
    """A client of the server at `place`, on this machine or at the end of `way`."""
    if way is None:
        yield open_client(place.url, place.key, place.data)
        return
    with client_over(way, place) as client:
        yield client


def open_client(url: str, key: str | None, data: Path) -> Client:
    """A client of the server at `url`; a wrong address or key is wrong usage."""
    from admin.client import Client

    try:
        return Client(url, key or local_token(url, data))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def local_token(url: str, data: Path) -> str | None:
    """The admin token in `data`, if `url` is on this machine and the token can be read.

    It opens everything on its own server, so it is sent to no other machine.
    """
    if not is_local(url):
        return None
    try:
        with (data.expanduser() / TOKEN_FILE).open(encoding="ascii") as file:
            return file.read(TOKEN_MAX).strip() or None
    except (OSError, ValueError):
        return None


def is_local(url: str) -> bool:
    """Whether `url` names this machine's loopback interface."""
    from ipaddress import ip_address
    from urllib.parse import urlsplit

    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
