"""Targets of requests to functions: /fn/NAME[@REVISION], or a function's own host. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from gateway.proxy.fields import Fields
from registry.errors import BadRequest
from registry.field_classes import DESTINATIONS, METHODS, fold
from registry.names import NAME_RULE

_TARGET: Final = re.compile(
    rb"(/fn/([a-z](?:[a-z0-9-]{0,61}[a-z0-9])?)(?:(?:@|%40)([1-9][0-9]{0,8}))?)(/[^?]*)?(?:\?(.*))?"
)
_PREFIX: Final = b"/fn/"
DOCUMENT: Final = b"/openapi.json"
"""Path below the name of a function that is no server: its OpenAPI document."""
_SCHEME: Final = re.compile(rb"\A[A-Za-z][A-Za-z0-9+.-]*:")
_AUTHORITY: Final = re.compile(rb"\A//[^/?#]*")
_HOST: Final = re.compile(rb"\A//+[^/?#]*")
_HOST_OF_SCHEME: Final = re.compile(rb"\A/*[^/?#]*")


class FunctionTarget(NamedTuple):
    """Target of a request to a function.

    `ref`: NAME or NAME@REVISION, as the catalog resolves it. `prefix`: the part that the function's
    server does not get, as sent; b"" on the function's own host. `path`: what follows, undecoded,
    b"" for nothing. `query`: without its question mark, None where there is none.
    """

    name: str
    ref: str
    prefix: bytes
    path: bytes
    query: bytes | None

    @property
    def upstream(self) -> bytes:
        """The target that the function's server gets."""
        path = self.path or b"/"
        return path if self.query is None else b"%b?%b" % (path, self.query)

    @property
    def is_own_host(self) -> bool:
        """Whether the request came to the function's own host."""
        return not self.prefix


def split_target(target: bytes) -> FunctionTarget | None:
    """Split a target in origin form; None if it is not below /fn/.

    Raises BadRequest if the segment after /fn/ is no name of a function: it is compared
    undecoded, so that the name that is authorised is the name that is routed.
    """
    found = _TARGET.fullmatch(target)
    if found is None:
        segment = re.split(rb"[/?]", target[len(_PREFIX) :], maxsplit=1)[0]
        if not target.startswith(_PREFIX) or not segment:
            return None
        raise BadRequest(f"target: expected /fn/NAME or /fn/NAME@REVISION with {NAME_RULE}")
    name = found[2].decode()
    ref = f"{name}@{found[3].decode()}" if found[3] else name
    return FunctionTarget(name, ref, found[1], found[4] or b"", found[5])


def host_target(name: str, target: bytes) -> FunctionTarget:
    """Return the target of a request to the own host of function `name`.

    `target` is in origin form; all of it is its server's.
    """
    path, mark, query = target.partition(b"?")
    return FunctionTarget(name, name, b"", path, query if mark else None)


def claimed_methods(fields: Fields) -> tuple[bytes, ...]:
    """Return the methods that a request names besides its own, in upper case.

    Names count alike that servers of the CGI family cannot tell apart.
    """
    found: list[bytes] = []
    for name in fields.values:
        if name.startswith(b"x") and fold(name) in METHODS.names:
            found += (item.upper() for item in fields.items(name))
    return tuple(found)


def claimed_paths(fields: Fields, prefix: bytes) -> tuple[bytes, ...]:
    """Return the paths that a request names besides its own (RFC 4918 section 10.3).

    Each as it is, and as what follows `prefix`, which servers may cut once it is decoded.
    """
    found: list[bytes] = []
    for name, (_, value) in zip(fields.names, fields.lines, strict=True):
        if fold(name) in DESTINATIONS.names:
            for path in _paths_of(value):
                found.append(path)
                reads = {path, unquote_to_bytes(path)} if prefix else set()
                cut = [read.partition(prefix)[2] for read in reads if prefix in read]
                found += (one if one.startswith(b"/") else b"/" + one for one in cut)
    return tuple(dict.fromkeys(found))


def _paths_of(url: bytes) -> Iterator[bytes]:
    """Yield the paths that servers read in a URL: some want no // before a host or take more than
    two slashes (WHATWG URL), others no host, and most drop tabs. A path keeps the // at its
    beginning, which rules refuse as ambiguous."""
    plain = url.replace(b"\\", b"/").replace(b"\t", b"")
    bare = _SCHEME.sub(b"", plain)
    lenient = _HOST if bare == plain else _HOST_OF_SCHEME
    for read in dict.fromkeys((plain, bare, lenient.sub(b"", bare))):
        yield b"/" + re.split(rb"[?#]", read, maxsplit=1)[0].lstrip(b"/")
    path = re.split(rb"[?#]", _AUTHORITY.sub(b"", bare), maxsplit=1)[0]
    yield path if path.startswith(b"/") else b"/" + path


def is_description(method: bytes, target: FunctionTarget) -> bool:
    """Return whether the gateway answers a request itself, with the function's description."""
    return not target.path and method in (b"GET", b"HEAD")
