"""Callers and their rights. A caller lives as long as its key is valid and unchanged."""

from __future__ import annotations

from typing import Final

from registry.errors import NoKey, WrongScope
from registry.key_form import KeyPriority
from registry.model.keys import Key, Need
from registry.openness import Openness
from registry.store.keys import KeyRing

ANY: Final = "*"
"""Stands for some function where a request does not say yet which one it is for."""
NOBODYS: Final = ("invoke", "read", "deploy")
"""Scopes of a caller without a key who is let in."""
KEY_EXPECTED: Final = "expected the header Authorization: Bearer <key>"


class Caller:
    """Holder of a key, or a caller without one who was let in. One object for each key, so what was
    decided for a caller is void once `is_live` is False."""

    __slots__ = ("id", "is_high", "is_live", "scopes")

    def __init__(self, id: str, scopes: tuple[str, ...], *, is_high: bool = False) -> None:
        self.id = id
        """Id of the key, "" without one."""
        self.scopes = scopes
        self.is_high = is_high
        """Whether the caller's calls may have the priority high."""
        self.is_live = True
        """Whether the key is still valid and unchanged."""

    @property
    def is_admin(self) -> bool:
        """Whether the caller has the scope admin."""
        return "admin" in self.scopes

    def may(self, need: Need, name: str = "") -> bool:
        """Return whether the caller has the scope `need`, for function `name`.

        With ANY, whether it has it for some function. Raises NoKey if the key is valid no more.
        """
        if not self.is_live:
            raise NoKey("the key was removed" if self.id else KEY_EXPECTED)
        scopes = self.scopes
        if need in scopes or "admin" in scopes:
            return True
        if need == "read":
            return "deploy" in scopes
        if need != "invoke":
            return False
        if name == ANY:
            return any(scope.startswith("invoke:") for scope in scopes)
        return bool(name) and f"invoke:{name}" in scopes

    def may_invoke(self, name: str) -> bool:
        """Return whether the caller may invoke function `name`. Raises NoKey."""
        return self.may("invoke", name)

    def require(self, need: Need, name: str = "") -> None:
        """Raise WrongScope unless the caller has the scope `need`, as `may`. Raises NoKey, too."""
        if self.may(need, name):
            return
        if not self.id:
            raise NoKey(KEY_EXPECTED)
        raise WrongScope(f"this needs the scope {need}, the key has {', '.join(self.scopes)}")


NOBODY: Final = Caller("", ())
"""No caller, without rights: for what the server does by itself."""


class KeyProbe:
    """Tells whether texts of a request are keys, and notes whose."""

    __slots__ = ("_callers", "found")

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self.found: set[Caller | None] = set()
        """The callers of all texts so far; None for those that are no keys."""

    def __call__(self, text: str) -> bool:
        """Return whether a text is a key."""
        caller = self._callers.with_secret(text)
        self.found.add(caller)
        return caller is not None


class Callers:
    """The callers of one process, by the keys of its ring."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._by_sha256: dict[str, Caller] = {}
        self.nobody = Caller("", NOBODYS)
        """The caller without a key."""
        self.version = 0
        """Changes whenever a text becomes a key, or is none any more."""
        ring.subscribe(self._on_key)
        ring.on_decision(self._on_decision)

    def with_secret(self, secret: str) -> Caller | None:
        """Return the caller with this key, None if it is unknown."""
        key = self._ring.find(secret)
        return None if key is None else self._of(key)

    def with_id(self, id: str) -> Caller | None:
        """Return the caller with a key's id, None if there is no such key any more."""
        key = self._ring.with_id(id)
        return None if key is None else self._of(key)

    def _of(self, key: Key) -> Caller:
        found = self._by_sha256.get(key.sha256)
        if found is None:
            is_high = key.priority is KeyPriority.HIGH
            found = Caller(key.id, key.scopes, is_high=is_high)
            self._by_sha256[key.sha256] = found
        return found

    def _on_key(self, key: Key, is_let_in: bool) -> None:  # noqa: ARG002 - the ring's callback
        """End the caller of a key that was removed or changed."""
        self.version += 1
        found = self._by_sha256.pop(key.sha256, None)
        if found is not None:
            found.is_live = False

    def _on_decision(self, openness: Openness) -> None:
        """End the caller without a key, unless more are let in than before."""
        if openness is not Openness.OPEN:
            self.nobody.is_live = False
            self.nobody = Caller("", NOBODYS)
