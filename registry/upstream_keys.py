"""Keys that the gateway sends to functions' servers at /v1. They are in memory only."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from registry.model.functions import NAMESPACE

VALUE_MAX: Final = 4096
"""Max characters of a key: servers limit the head of a request."""
_VALUE: Final = re.compile(rf"[!-~]{{1,{VALUE_MAX}}}")


@dataclass(frozen=True, slots=True)
class UpstreamKey:
    """The value of a secret that an [openai] table names as `upstream_key`.

    `problem` says why it cannot be sent, and `value` is "" then. The value is in no text form.
    """

    secret: str
    value: str = field(default="", repr=False)
    problem: str = ""
    namespace: str = NAMESPACE


def key_of(secret: str, value: str, namespace: str = NAMESPACE) -> UpstreamKey:
    """Return a secret as a key; one with characters that no header may have has a problem."""
    if _VALUE.fullmatch(value):
        return UpstreamKey(secret, value, namespace=namespace)
    text = (
        f"secret {secret} is no key: expected 1 to {VALUE_MAX} visible ASCII characters without"
        " spaces"
    )
    return UpstreamKey(secret, problem=text, namespace=namespace)


class UpstreamKeys:
    """The keys of all functions that name one. Single-threaded."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], UpstreamKey] = {}
        self._subscribers: list[Callable[[UpstreamKey, bool], None]] = []

    def find(self, secret: str, namespace: str = NAMESPACE) -> UpstreamKey | None:
        """Return the key that is this secret, None if no function names it."""
        return self._keys.get((namespace, secret))

    def all(self) -> tuple[UpstreamKey, ...]:
        """Return every key."""
        return tuple(self._keys.values())

    def put(self, key: UpstreamKey) -> None:
        """Add or replace a key."""
        if self._keys.get((key.namespace, key.secret)) != key:
            self._keys[key.namespace, key.secret] = key
            self._tell(key, is_kept=True)

    def remove(self, secret: str, namespace: str = NAMESPACE) -> None:
        """Forget a key that no function names any more; an unknown one is ignored."""
        if self._keys.pop((namespace, secret), None) is not None:
            self._tell(UpstreamKey(secret, namespace=namespace), is_kept=False)

    def subscribe(self, callback: Callable[[UpstreamKey, bool], None]) -> Callable[[], None]:
        """Call `callback(key, is_kept)` after each change; a removed key has no value.

        Returns a function that ends the subscription.
        """
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def _tell(self, key: UpstreamKey, *, is_kept: bool) -> None:
        for callback in list(self._subscribers):
            callback(key, is_kept)
