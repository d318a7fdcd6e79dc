"""The deployed functions, in memory, so that no request waits for the database."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import structlog

from registry.errors import BadRequest, UnknownFunction, UnknownRevision
from registry.model import NAMESPACE, Function, Profile, Revision
from registry.names import nearest, parse_ref

log = structlog.get_logger()

SUBSCRIBERS_MAX: Final = 1000
NEIGHBOURS: Final = 100
"""Names before and after an unknown one, by the alphabet, that it is compared with."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """One revision with its function and what was measured about it, None before a profile."""

    function: Function
    revision: Revision
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one function. `before` and `after` are what its plain name means; None where
    it did not or does not exist. `revisions` are the numbers that exist after the change."""

    kind: Literal["put", "remove"]
    namespace: str
    name: str
    before: Deployed | None
    after: Deployed | None
    revisions: tuple[int, ...] = ()


class Catalog:
    """Functions and their revisions by name. One thread, no lock, no waiting.

    Whoever writes the store puts the same thing here afterwards; subscribers then hear of it.
    """

    def __init__(self, deployed: Iterable[Deployed] = ()) -> None:
        self._refs: dict[tuple[str, str], Deployed] = {}
        self._numbers: dict[tuple[str, str], tuple[int, ...]] = {}
        self._names: list[tuple[str, str]] = []
        self._subscribers: dict[object, Callable[[Change], None]] = {}
        self.version = 0
        """Another number after every change."""
        for one in deployed:
            self.put(one)

    def resolve(self, ref: str, namespace: str = NAMESPACE) -> Deployed:
        """What "digits" (the current revision) or "digits@2" means.

        Raises UnknownFunction, whose `detail["nearest"]` lists names that look like it, or
        UnknownRevision, whose `detail["revisions"]` lists the numbers there are.
        """
        found = self._refs.get((namespace, ref))
        return found if found is not None else self._explain(ref, namespace)

    def find(self, ref: str, namespace: str = NAMESPACE) -> Deployed | None:
        """Like `resolve`, but None instead of an error."""
        return self._refs.get((namespace, ref))

    def all(self) -> tuple[Deployed, ...]:
        """The current revision of every function, by namespace and name."""
        current = (self._refs.get(key) for key in self._names)
        return tuple(one for one in current if one is not None)

    def walk(self, start: str = "", namespace: str = NAMESPACE) -> Iterator[Deployed]:
        """The current revision of each function from the name `start` on, which need not exist.

        To be read at once, before anything changes.
        """
        for place in range(bisect_left(self._names, (namespace, start)), len(self._names)):
            current = self._refs.get(self._names[place])
            if self._names[place][0] != namespace:
                return
            if current is not None:
                yield current

    def every(self) -> Iterator[Deployed]:
        """Every revision of every function, in no order; to be read at once like `walk`."""
        for (_, ref), deployed in self._refs.items():
            if "@" in ref:
                yield deployed

    def revisions(self, name: str, namespace: str = NAMESPACE) -> tuple[Deployed, ...]:
        """Every revision of one function, oldest first; empty where there is no such function."""
        numbers = self._numbers.get((namespace, name), ())
        return tuple(self._refs[namespace, f"{name}@{number}"] for number in numbers)

    def put(self, deployed: Deployed) -> None:
        """Add or replace a revision, and replace its function's settings.

        `deployed.function.revision` says which revision the plain name means from now on; it may
        be another one than `deployed.revision`, which then only waits for traffic to move.
        """
        function, revision = deployed.function, deployed.revision
        if (function.namespace, function.name) != (revision.namespace, revision.name):
            raise ValueError(f"{revision.key} is no revision of {function.name}")
        key = (function.namespace, function.name)
        numbers = self._numbers.get(key)
        if numbers is None:
            insort(self._names, key)
            numbers = ()
        self._numbers[key] = tuple(sorted({*numbers, revision.number}))
        before = self._refs.get(key)
        self._refs[function.namespace, revision.ref] = deployed
        self._set_function(function, before)

    def put_function(self, function: Function) -> None:
        """Replace a function's settings or move its traffic; its revisions stay.

        Raises UnknownFunction, or UnknownRevision where `function.revision` does not exist.
        """
        self.resolve(f"{function.name}@{function.revision}", function.namespace)
        before = self._refs.get((function.namespace, function.name))
        self._set_function(function, before)

    def remove(self, name: str, namespace: str = NAMESPACE) -> None:
        """Forget a function with all its revisions. Raises UnknownFunction."""
        numbers = self._numbers.pop((namespace, name), None)
        if numbers is None:
            raise self._unknown_function(name, namespace)
        del self._names[bisect_left(self._names, (namespace, name))]
        for number in numbers:
            del self._refs[namespace, f"{name}@{number}"]
        before = self._refs.pop((namespace, name), None)
        self._tell(Change("remove", namespace, name, before, None))

    def remove_revisions(
        self, name: str, numbers: Iterable[int], namespace: str = NAMESPACE
    ) -> None:
        """Forget revisions. Raises UnknownRevision, or ValueError for the current one."""
        current = self.resolve(name, namespace)
        for number in sorted(numbers):
            if number == current.revision.number:
                raise ValueError(f"{name}@{number} is the current revision")
            self.resolve(f"{name}@{number}", namespace)
            left = (other for other in self._numbers[namespace, name] if other != number)
            self._numbers[namespace, name] = tuple(left)
            del self._refs[namespace, f"{name}@{number}"]
        self._tell(self._put_change(current.function, current))

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Call `callback` in the same thread after each change, until the returned one is called.

        A callback sees the catalog as it is after the change. One that raises is logged, and the
        others are still called.
        """
        if len(self._subscribers) >= SUBSCRIBERS_MAX:
            raise RuntimeError(f"the catalog has {SUBSCRIBERS_MAX} subscribers already")
        token = object()
        self._subscribers[token] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)

        return unsubscribe

    def _set_function(self, function: Function, before: Deployed | None) -> None:
        namespace, name = function.namespace, function.name
        for number in self._numbers[namespace, name]:
            ref = (namespace, f"{name}@{number}")
            self._refs[ref] = replace(self._refs[ref], function=function)
        current = self._refs.get((namespace, f"{name}@{function.revision}"))
        # At start the current revision may come after an older one; until then the plain name
        # means nothing, rather than something nobody chose.
        if current is None:
            self._refs.pop((namespace, name), None)
        else:
            self._refs[namespace, name] = current
        self._tell(self._put_change(function, before))

    def _put_change(self, function: Function, before: Deployed | None) -> Change:
        key = (function.namespace, function.name)
        return Change("put", *key, before, self._refs.get(key), self._numbers[key])

    def _tell(self, change: Change) -> None:
        self.version += 1
        for callback in list(self._subscribers.values()):
            try:
                callback(change)
            except Exception:  # one subscriber's error is not the others' business
                log.exception("a subscriber of the catalog failed", name=change.name)

    def _unknown_function(self, name: str, namespace: str) -> UnknownFunction:
        near = nearest(name, self._neighbours(name, namespace))
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        return UnknownFunction(f"no function {name[:80]!r}{hint}", detail={"nearest": near})

    def _neighbours(self, name: str, namespace: str) -> list[str]:
        """Names that stand near `name` in the alphabet: comparing with all would take too long."""
        place = bisect_left(self._names, (namespace, name))
        around = self._names[max(0, place - NEIGHBOURS) : place + NEIGHBOURS]
        return [other for space, other in around if space == namespace]

    def _explain(self, ref: str, namespace: str) -> Deployed:
        name = ref.partition("@")[0]
        numbers = list(self._numbers.get((namespace, name), ()))
        if not numbers:
            raise self._unknown_function(name, namespace)
        raise UnknownRevision(
            f"function {name!r} has no revision {_asked(ref)}; "
            f"there is {', '.join(map(str, numbers))}",
            detail={"revisions": numbers},
        )


def _asked(ref: str) -> str:
    try:
        return str(parse_ref(ref)[1])
    except BadRequest:
        return repr(ref.partition("@")[2][:20])
