"""Whom to log in to, as it stands on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PORT_MAX: Final = 65535
WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+%~-]*")
"""A user or host name, or an alias of ~/.ssh/config; never one that `ssh` took for an option."""
ADDRESS: Final = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")
"""What stands for an IPv6 address; the resolver judges it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A machine to log in to. What is None is left to ~/.ssh/config and its defaults."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{user}{host}{'' if self.port is None else f':{self.port}'}"

    def command(self, program: str = "ssh") -> str:
        """What logs in there by hand."""
        port = "" if self.port is None else f" -p {self.port}"
        user = f"{self.user}@" if self.user else ""
        return f"{program}{port} {user}{self.host}"


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in to `target`: a private key's file, and the file of known host keys.

    None leaves either to the agent, ~/.ssh/config and the default files.
    """

    target: Target
    identity: Path | None = None
    known_hosts: Path | None = None


def parse_target(text: str) -> Target:
    """`[USER@]HOST[:PORT]`, an IPv6 address with a port in brackets. Raises ValueError."""
    user, at, rest = text.rpartition("@")
    host, port = _split(rest)
    is_host = WORD.fullmatch(host) or (":" in host and ADDRESS.fullmatch(host))
    if not is_host or (at and not WORD.fullmatch(user)):
        raise ValueError(f"expected [USER@]HOST[:PORT], got {text!r}")
    if port is None:
        return Target(host, user or None)
    if not port.isdecimal() or not 1 <= int(port[:6]) <= PORT_MAX:
        raise ValueError(f"expected a port from 1 to {PORT_MAX}, got {port!r} in {text!r}")
    return Target(host, user or None, int(port))


def _split(rest: str) -> tuple[str, str | None]:
    """Host and port; more than one colon without brackets is an IPv6 address without a port."""
    if rest.startswith("["):
        host, end, tail = rest[1:].partition("]")
        if not end or tail[:1] not in ("", ":"):
            return "", None
        return host, tail[1:] if tail else None
    if rest.count(":") > 1:
        return rest, None
    host, colon, port = rest.partition(":")
    return host, port if colon else None
