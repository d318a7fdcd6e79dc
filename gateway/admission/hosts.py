"""Names of this server in the field Host (RFC 9110 section 7.2), and the functions' own hosts.
Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from registry.errors import ForeignHost
from registry.names import is_name

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
LOCAL_BASE: Final = "localhost"
KNOWN_MAX: Final = 1000
"""Max values of Host whose verdict is remembered."""
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_HOST_MAX: Final = 255 + len(":65535")
"""Max characters of a value whose verdict is remembered (RFC 1035 section 2.3.4)."""
_PORT: Final = re.compile(r":[0-9]{1,5}$")
_ADDRESS: Final = re.compile(r"[0-9.]+|[0-9a-f:.]*:[0-9a-f:.]*")


class HostNames:
    """The names of one server.

    A function's pages are on the host NAME.BASE, where BASE is `localhost` on loopback and each
    public host name.
    """

    def __init__(self, listen: str, public_hosts: Iterable[str]) -> None:
        public = [_host_name(name) or name.lower() for name in public_hosts]
        self._names = {*public, _host_name(listen) or listen.lower()}
        bases = [name for name in public if not _ADDRESS.fullmatch(name)]
        if listen in LOOPBACK:
            self._names |= set(LOOPBACK)
            bases.insert(0, LOCAL_BASE)
        self.bases: Final = tuple(dict.fromkeys(bases))
        self._known: dict[str, bool] = {}

    def check(self, host: str) -> None:
        """Raise ForeignHost unless a field Host names this server."""
        known = self._known.get(host)
        if known is None:
            known = self.has(host)
            if len(self._known) < KNOWN_MAX and len(host) <= _HOST_MAX:
                self._known[host] = known
        if not known:
            raise ForeignHost(
                f"Host: expected {' or '.join(sorted(self._names))}, got {host[:100]!r};"
                " name it with --public-host"
            )

    def has(self, host: str) -> bool:
        """Return whether a field Host names this server."""
        return _host_name(host) in self._names

    def function_of(self, host: str) -> str | None:
        """Return NAME of a field Host of the form NAME.BASE, None for every other one.

        Whether such a function is deployed is not remembered: it may be in a moment.
        """
        label, dot, rest = host.partition(".")
        if not dot or rest.partition(":")[0].lower() not in self.bases:
            return None
        name = _host_name(host)
        label = label.lower()
        return label if name is not None and name not in self._names and is_name(label) else None

    def page_host(self, function: str, host: str) -> str | None:
        """Return the host of a function's pages for a client that reached this server by `host`.

        None if the server has no name that can have one.
        """
        own, port = _host_name(host) or "", _PORT.search(host)
        bases = [own] if own in self.bases else self.bases
        if not bases or not is_name(function):
            return None
        return f"{function}.{bases[0]}{port[0] if port else ''}"


def is_loopback(host: str) -> bool:
    """Return whether a field Host names the loopback interface, or a function's host there."""
    name = _host_name(host) or ""
    return name in LOOPBACK or name.endswith(f".{LOCAL_BASE}")


def _host_name(host: str) -> str | None:
    """Return the lower-case host of a field Host without port and brackets.

    None if the field is malformed.
    """
    found = _HOST.fullmatch(host)
    return None if found is None else (found[1] or found[2]).lower()
