"""The key that a function's server gets instead of the caller's. Pure.

OpenAI API reference, "Authentication"; Anthropic API reference, "Authentication".
"""

from __future__ import annotations

from gateway.v1.endpoints import Protocol
from registry.errors import FunctionFailing
from registry.upstream_keys import UpstreamKey


def checked_key(function: str, secret: str, key: UpstreamKey | None) -> UpstreamKey:
    """Return the key of a function's server that is the secret of this name.

    Raises FunctionFailing where it cannot be sent, saying why.
    """
    problem = f"no secret {secret}" if key is None else key.problem
    if key is None or problem:
        raise FunctionFailing(f"{function} has no key for its server (upstream_key): {problem}")
    return key


def with_key(head: bytes, protocol: Protocol, key: UpstreamKey | None) -> bytes:
    """Return a head for the server with its key, if it needs one; `head` has no field for keys."""
    if key is None:
        return head
    name = b"X-Api-Key: " if protocol is Protocol.ANTHROPIC else b"Authorization: Bearer "
    return b"%b%b%b\r\n\r\n" % (head.removesuffix(b"\r\n"), name, key.value.encode("ascii"))
