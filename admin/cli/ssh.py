"""--ssh: the options that name another machine, before the verb or behind it, and the way there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from admin.client import Client
    from admin.remote.target import Login
    from admin.remote.tunnel import Tunnel

METAVAR: Final = "[USER@]HOST[:PORT]"
LOCAL: Final = ("serve", "image", "ui", "restore")
"""Verbs that run on this machine: `--ssh` before them is wrong usage."""
HELP: Final = "Reach a server on another machine; --url and --data are then meant there."

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


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is: its address and data folder, as seen from its own machine, and a key."""

    url: str
    key: str | None
    data: Path


def everywhere(
    context: typer.Context,
    ssh: SshEverywhere = None,
    identity: IdentityEverywhere = None,  # noqa: ARG001 - read by `login`
    known_hosts: KnownHostsEverywhere = None,  # noqa: ARG001 - read by `login`
) -> None:
    """Deploy models as functions, call them, and see why they are warm or cold."""
    source = context.get_parameter_source("ssh")
    is_asked = source is not None and source.name == "COMMANDLINE"
    verb = context.invoked_subcommand
    if ssh and is_asked and verb in LOCAL:
        raise typer.BadParameter(f"fnctl {verb} runs on this machine", param_hint="--ssh")


def login(context: typer.Context, ssh: str | None, **files: Path | None) -> Login | None:
    """Whom to log in to, None for nobody: what stands behind the verb is stronger.

    `files` are `identity` and `known_hosts`. Raises typer.BadParameter.
    """
    before: dict[str, Any] = context.find_root().params
    asked = ssh or before.get("ssh")
    if not asked:
        return None
    from admin.remote.target import Login, parse_target

    try:
        target = parse_target(asked)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ssh") from error
    chosen = {name: given or before.get(name) for name, given in files.items()}
    for name, path in chosen.items():
        if path is not None and not path.expanduser().is_file():
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"expected a file, got {path}", param_hint=option)
    return Login(target, **chosen)


@contextmanager
def client_over(way: Login, place: Place) -> Iterator[Client]:
    """A client of the server at `place` on another machine, while the block lasts.

    Without a key the admin token is read there. Where that cannot be, the server decides whether
    it needs one, and its refusal then says why there was none. Raises Unreachable.
    """
    from admin.client import ApiError, Client
    from admin.remote.tunnel import tunnel

    with tunnel(way) as opened:
        key, why_not = place.key, ""
        if key is None:
            key, why_not = token(opened, place)
        try:
            client = Client(place.url, key, dial=opened.dial)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        try:
            yield client
        except ApiError as error:
            if error.code == "no_key" and why_not:
                error.add_note(why_not)
            raise


def token(opened: Tunnel, place: Place) -> tuple[str | None, str]:
    """The admin token of the server at `place`, or why there is none.

    It opens everything on its own server, so it is sent to no other machine.
    """
    from admin.cli.session import is_local
    from admin.remote.token import NoToken

    if not is_local(place.url):
        return None, f"give --key or FN_KEY: {place.url} is not {opened.target} itself"
    try:
        return opened.token(place.data), ""
    except NoToken as error:
        return None, str(error)
