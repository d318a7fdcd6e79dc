"""Shared parts of verbs that talk to a server: the options for its address, key and --ssh login,
and the session with its client and output."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import typer

from admin.cli.errors import errors_reported
from admin.cli.words import words_after_dashes
from admin.text import plain

if TYPE_CHECKING:
    from msgspec import UnsetType

    from admin.client.client import Client
    from admin.client.document import Document
    from admin.client.tunnel import Tunnel
    from hosts.login import Login

T = TypeVar("T")
METAVAR: Final = "[USER@]HOST[:PORT]"
LOCAL: Final = ("serve", "init", "dev", "image", "kubernetes", "ui", "open", "restore")
"""Verbs that run on this machine only: `--ssh` before them is wrong usage."""
HELP: Final = "Reach a server on another machine; --url and --data then refer to it."
DEFAULT_URL: Final = "http://127.0.0.1:8080"
DEFAULT_DATA: Final = Path("~/.fngate")
DEFAULT_ENGINE: Final = "unix:///var/run/docker.sock"
TOKEN_FILE: Final = "admin.token"  # noqa: S105 - a file's name
TOKEN_MAX: Final = 4096
"""Max characters read of a token file."""

Ssh = Annotated[str | None, typer.Option("--ssh", metavar=METAVAR, help=HELP)]
Identity = Annotated[
    Path | None, typer.Option("--identity", metavar="FILE", help="Private key for --ssh.")
]
KnownHosts = Annotated[
    Path | None,
    typer.Option("--known-hosts", metavar="FILE", help="Known host keys for --ssh."),
]
SshEverywhere = Annotated[
    str | None, typer.Option("--ssh", envvar="FN_SSH", metavar=METAVAR, help=HELP)
]
IdentityEverywhere = Annotated[
    Path | None,
    typer.Option(
        "--identity",
        envvar="FN_IDENTITY",
        metavar="FILE",
        help="Private key for --ssh (default: the agent's, ~/.ssh/config, ~/.ssh/id_*).",
    ),
]
KnownHostsEverywhere = Annotated[
    Path | None,
    typer.Option(
        "--known-hosts",
        envvar="FN_KNOWN_HOSTS",
        metavar="FILE",
        help="Known host keys for --ssh (default: ~/.ssh/known_hosts).",
    ),
]
Url = Annotated[
    str, typer.Option("--url", envvar="FN_URL", metavar="URL", help="Address of the server.")
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="FN_KEY",
        metavar="KEY",
        help="Access key (default: DATA/admin.token on the server's machine).",
    ),
]
Data = Annotated[
    Path,
    typer.Option("--data", envvar="FN_DATA", metavar="DIR", help="The server's data folder."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RequestPath = Annotated[
    str | None, typer.Option("--path", metavar="/PATH", help="Path of a request to a server.")
]
RequestMethod = Annotated[
    str | None,
    typer.Option("-X", "--method", metavar="METHOD", help="Method of a request to a server."),
]
RequestHeaders = Annotated[
    list[str] | None,
    typer.Option("-H", "--header", metavar="'K: V'", help="Header of a request to a server."),
]

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
class ServerAddress:
    """URL and data folder of a server, as seen on its own machine, and an access key."""

    url: str
    key: str | None
    data: Path


def print_version(is_asked: bool) -> None:
    """Print the versions of fngate, Python and the replicas' link for --version, and exit."""
    if not is_asked:
        return
    import platform
    from importlib.metadata import version

    from runtime_image.contract.link import VERSION

    python = platform.python_version()
    typer.echo(f"fngate {version('fngate')} (Python {python}, link {VERSION})")
    raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=print_version, is_eager=True, help="Print the version and exit."
    ),
]


def root_options(
    context: typer.Context,
    ssh: SshEverywhere = None,
    identity: IdentityEverywhere = None,  # noqa: ARG001 - read by `parse_login`
    known_hosts: KnownHostsEverywhere = None,  # noqa: ARG001 - read by `parse_login`
    version: Version = False,  # noqa: ARG001 - its callback prints it
) -> None:
    """Deploy models as functions, call them, and see why they are warm or cold."""
    source = context.get_parameter_source("ssh")
    is_asked = source is not None and source.name == "COMMANDLINE"
    verb = context.invoked_subcommand
    if ssh and is_asked and verb in LOCAL:
        raise typer.BadParameter(f"fnctl {verb} runs on this machine", param_hint="--ssh")


def parse_login(context: typer.Context, ssh: str | None, **files: Path | None) -> Login | None:
    """Return the --ssh login, or None without --ssh. Options after the verb override those before.

    `files` are `identity` and `known_hosts`. Raises typer.BadParameter.
    """
    before: dict[str, Any] = context.find_root().params
    asked = ssh or before.get("ssh")
    if not asked:
        return None
    from hosts.login import Login, parse_target

    try:
        target = parse_target(asked)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ssh") from error
    chosen = {name: given or before.get(name) for name, given in files.items()}
    for name, path in chosen.items():
        if path is not None and not path.expanduser().is_file():
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"expected a file, got {path}", param_hint=option)
    return Login(target, chosen["identity"], chosen["known_hosts"])


@contextmanager
def ssh_client(login: Login, address: ServerAddress) -> Iterator[Client]:
    """Yield a client of the server at `address` on another machine; the login ends with the block.

    Without a key, the admin token is read over SSH. If that fails, requests are sent without a key,
    and a refusal with `no_key` names the reason as its hint. Raises Unreachable.
    """
    from admin.client.client import ApiError, Client
    from admin.client.tunnel import tunnel

    with tunnel(login) as opened:
        key, why_not = address.key, ""
        if key is None:
            key, why_not = remote_token(opened, address)
        try:
            client = Client(address.url, key, dial=opened.dial)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        try:
            yield client
        except ApiError as error:
            if error.code == "no_key" and why_not:
                error.add_note(why_not)
            raise


def remote_token(opened: Tunnel, address: ServerAddress) -> tuple[str | None, str]:
    """Return the admin token of the server at `address`, or the reason for its absence.

    The token has all rights on its server, so it is never sent to another machine, nor to another
    user's program on that one.
    """
    from urllib.parse import urlsplit

    from admin.client.listeners import loopback_address
    from admin.client.ssh import NoToken

    if not is_local(address.url):
        return None, f"give --key or FN_KEY: {address.url} is not on {opened.target} itself"
    try:
        parts = urlsplit(address.url)
        server = loopback_address(parts.hostname or "", parts.port or 80)
        return opened.token(address.data, server), ""
    except NoToken as error:
        return None, str(error)


@dataclass(frozen=True, slots=True)
class Session:
    """Client and output of a verb: results go to stdout, remarks to stderr. `words` are those after
    `--`, of a verb that takes some."""

    client: Client
    as_json: bool
    words: Sequence[str] = ()

    def answer(self, data: object, text: Callable[[], str]) -> None:
        """Print the result: `data` with --json, else `text()`."""
        print_answer(self.as_json, data, "" if self.as_json else text())

    def show(
        self,
        found: Document[T],
        text: Callable[[T], str],
        following: Callable[[T], Sequence[str]] | None = None,
    ) -> None:
        """Print an answer of the server: what it sent with --json, else `text` of it, and the next
        commands that are `following`."""
        self.answer(found.sent, lambda: text(found.value))
        if following is not None and not self.as_json and (commands := following(found.value)):
            self.next(*commands)

    def remark(self, text: str) -> None:
        """Print a remark; nothing with --json."""
        if not self.as_json:
            typer.echo(plain(text), err=True)

    def warn(self, warnings: Sequence[str] | UnsetType) -> None:
        """Print the warnings of an answer as remarks."""
        for text in warnings or []:
            self.remark(f"warning: {text}")

    def next(self, *commands: str) -> None:
        """Print suggestions for the next command."""
        self.remark("next: " + "  or  ".join(commands))


def print_answer(as_json: bool, data: object, text: str) -> None:
    """Print a result: `data` as JSON, or `text`."""
    typer.echo(json.dumps(data, indent=2) if as_json else plain(text))


def connected(run: Callable[..., None]) -> Callable[..., None]:
    """Turn `run`, whose first parameter is a Session, into a verb.

    Typer reads the options from the signature, so the verb has the signature of `run` with `--url`,
    `--key`, `--data`, `--json` and the options of `--ssh` in place of the session.
    """

    def verb(*, context: typer.Context, as_json: bool, **options: Any) -> None:
        address = ServerAddress(options.pop("url"), options.pop("key"), options.pop("data"))
        files = {name: options.pop(name) for name in ("identity", "known_hosts")}
        login = parse_login(context, options.pop("ssh"), **files)
        with errors_reported(as_json), client_at(address, login) as client:
            run(Session(client, as_json, words_after_dashes(context)), **options)

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
def client_at(address: ServerAddress, login: Login | None) -> Iterator[Client]:
    """Yield a client of the server at `address`, on this machine or over `login`."""
    if login is None:
        yield open_client(address.url, address.key, address.data)
        return
    with ssh_client(login, address) as client:
        yield client


def open_client(url: str, key: str | None, data: Path, timeout_s: float | None = None) -> Client:
    """Return a client of the server at `url`; an invalid address or key is wrong usage."""
    from admin.client.client import CALL_S, Client

    token = None if key else local_token(url, data)
    try:
        if token is None:
            return Client(url, key, timeout_s or CALL_S)
        from admin.client.listeners import check_server

        verify = partial(check_server, owner=token.owner)
        return Client(url, token.secret, timeout_s or CALL_S, verify=verify)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


class LocalToken(NamedTuple):
    """The admin token in a file of this machine, and the user id of the file's owner."""

    secret: str
    owner: int


def local_token(url: str, data: Path) -> LocalToken | None:
    """Return the admin token in `data`, if `url` is on this machine and the token is readable.

    The token has all rights on its server, so it is never sent to another machine, nor to another
    user's program on this one.
    """
    if not is_local(url):
        return None
    try:
        with (data.expanduser() / TOKEN_FILE).open(encoding="ascii") as file:
            secret = file.read(TOKEN_MAX).strip()
            return LocalToken(secret, os.fstat(file.fileno()).st_uid) if secret else None
    except (OSError, ValueError):
        return None


def is_local(url: str) -> bool:
    """Return whether `url` names this machine's loopback interface."""
    from ipaddress import ip_address
    from urllib.parse import urlsplit

    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
