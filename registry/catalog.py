"""Catalog of the deployed functions, in memory, so that no request waits for the database."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import structlog

from registry.errors import BadRequest, UnknownFunction, UnknownRevision
from registry.model.functions import NAMESPACE, Function
from registry.model.profiles import Profile
from registry.model.revisions import Revision
from registry.names import parse_ref
from registry.similar import SimilarWords
from runtime_image.contract.proposals import did_you_mean

log = structlog.get_logger()

SUBSCRIBERS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Deployed:
    """One revision with its function and its profile, None if it was not profiled."""

    function: Function
    revision: Revision
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one function.

    `before` and `after` are what the plain name resolves to; None if it does not exist. `revisions`
    are the numbers that exist after the change.
    """

    kind: Literal["put", "remove"]
    namespace: str
    name: str
    before: Deployed | None
    after: Deployed | None
    revisions: tuple[int, ...] = ()


class Catalog:
    """Functions and their revisions by name. Single-threaded, no locks, never blocks.

    Code that writes to the store puts the same data here afterwards; subscribers are then notified.
    """

    def __init__(self, deployed: Iterable[Deployed] = ()) -> None:
        self._refs: dict[tuple[str, str], Deployed] = {}
        self._numbers: dict[tuple[str, str], tuple[int, ...]] = {}
        self._names: list[tuple[str, str]] = []
        self._aliases: dict[tuple[str, str], str] = {}
        self._oip_names: dict[tuple[str, str], str] = {}
        self._words = SimilarWords()
        self._subscribers: dict[object, Callable[[Change], None]] = {}
        self.version = 0
        """Changes with every modification."""
        for one in deployed:
            self.put(one)

    def resolve(
        self,
        ref: str,
        namespace: str = NAMESPACE,
        may_see: Callable[[str], bool] = lambda _: True,
    ) -> Deployed:
        """Return what "digits" (the current revision) or "digits@2" refers to.

        Raises UnknownFunction, whose `detail["nearest"]` lists similar names that the caller
        `may_see`, or UnknownRevision, whose `detail["revisions"]` lists the existing numbers.
        """
        found = self._refs.get((namespace, ref))
        return found if found is not None else self._explain(ref, namespace, may_see)

    def similar(
        self, word: str, accepts: Callable[[str], bool], namespace: str = NAMESPACE
    ) -> list[str]:
        """Return a few names, aliases and `oip_name`s like `word` that `accepts` accepts, best
        first."""
        return self._words.near(namespace, word, accepts)

    def find(self, ref: str, namespace: str = NAMESPACE) -> Deployed | None:
        """Return like `resolve`, but None instead of an error."""
        return self._refs.get((namespace, ref))

    def find_server(self, ref: str) -> Deployed | None:
        """Return the server function that `ref` names, None for other functions and for none."""
        found = self.find(ref)
        return found if found is not None and found.revision.server is not None else None

    def find_model(self, model: str, namespace: str = NAMESPACE) -> Deployed | None:
        """Return what a request at /v1 means by `model`: a name, a reference or an alias of a
        function that answers there; None if there is none."""
        found = self._refs.get((namespace, self._aliases.get((namespace, model), model)))
        server = None if found is None else found.revision.server
        return found if server is not None and server.api is not None else None

    def find_oip(self, name: str, version: str = "", namespace: str = NAMESPACE) -> Deployed | None:
        """Return the revision that the Open Inference Protocol calls `version` of model `name`.

        A name is a function's `oip_name`, or the name of a function without one. A version is the
        `oip_version` of a revision, the newest one of several, or the number of a revision without
        one; "" is the revision that has the traffic. None if there is none.
        """
        own = self._oip_names.get((namespace, name))
        found = self._refs.get((namespace, own or name))
        if found is None or "@" in name or (own is None and found.function.oip_name):
            return None
        return found if not version else self._oip_version(found.function, version)

    def _oip_version(self, function: Function, version: str) -> Deployed | None:
        revisions = self.revisions(function.name, function.namespace)
        for one in reversed(revisions):
            if one.revision.oip_version == version:
                return one
        # Not of a revision with a version of its own: version 2 must not be answered by version 1.
        return next(
            (
                one
                for one in revisions
                if not one.revision.oip_version and str(one.revision.number) == version
            ),
            None,
        )

    def owner_of_oip(self, name: str, namespace: str = NAMESPACE) -> str | None:
        """Return the name of the function whose `oip_name` is `name`, None if there is none."""
        return self._oip_names.get((namespace, name))

    def owner_of(self, alias: str, namespace: str = NAMESPACE) -> str | None:
        """Return the name of the function that has this alias, None if none has."""
        return self._aliases.get((namespace, alias))

    def all(self) -> tuple[Deployed, ...]:
        """Return the current revision of every function, by namespace and name."""
        current = (self._refs.get(key) for key in self._names)
        return tuple(one for one in current if one is not None)

    def walk(self, start: str = "", namespace: str = NAMESPACE) -> Iterator[Deployed]:
        """Iterate over the current revisions of functions from the name `start` on.

        No function needs to have the name `start`. To be consumed at once, before anything changes.
        """
        for place in range(bisect_left(self._names, (namespace, start)), len(self._names)):
            current = self._refs.get(self._names[place])
            if self._names[place][0] != namespace:
                return
            if current is not None:
                yield current

    def every(self) -> Iterator[Deployed]:
        """Iterate over every revision of every function, unordered.

        To be consumed at once, like `walk`.
        """
        for (_, ref), deployed in self._refs.items():
            if "@" in ref:
                yield deployed

    def revisions(self, name: str, namespace: str = NAMESPACE) -> tuple[Deployed, ...]:
        """Return every revision of one function, oldest first; empty for an unknown function."""
        numbers = self._numbers.get((namespace, name), ())
        return tuple(self._refs[namespace, f"{name}@{number}"] for number in numbers)

    def put(self, deployed: Deployed) -> None:
        """Add or replace a revision, and replace its function's settings.

        `deployed.function.revision` is the revision that the plain name refers to from now on. If
        it is not `deployed.revision`, the latter only waits for traffic to move.
        """
        function, revision = deployed.function, deployed.revision
        if (function.namespace, function.name) != (revision.namespace, revision.name):
            raise ValueError(f"{revision.key} is no revision of {function.name}")
        key = (function.namespace, function.name)
        numbers = self._numbers.get(key)
        if numbers is None:
            insort(self._names, key)
            self._words.add(*key)
            numbers = ()
        self._numbers[key] = tuple(sorted({*numbers, revision.number}))
        before = self._refs.get(key)
        self._refs[function.namespace, revision.ref] = deployed
        self._set_function(function, before)

    def put_function(self, function: Function) -> None:
        """Replace a function's settings or move its traffic; its revisions do not change.

        Raises UnknownFunction, or UnknownRevision if `function.revision` does not exist.
        """
        self.resolve(f"{function.name}@{function.revision}", function.namespace)
        before = self._refs.get((function.namespace, function.name))
        self._set_function(function, before)

    def remove(self, name: str, namespace: str = NAMESPACE) -> None:
        """Remove a function with all its revisions. Raises UnknownFunction."""
        numbers = self._numbers.pop((namespace, name), None)
        if numbers is None:
            raise self._unknown_function(name, namespace)
        del self._names[bisect_left(self._names, (namespace, name))]
        self._words.remove(namespace, name)
        for number in numbers:
            del self._refs[namespace, f"{name}@{number}"]
        before = self._refs.pop((namespace, name), None)
        if before is not None:
            self._drop_names(before.function)
        self._tell(Change("remove", namespace, name, before, None))

    def remove_revisions(
        self, name: str, numbers: Iterable[int], namespace: str = NAMESPACE
    ) -> None:
        """Remove revisions. Raises UnknownRevision, or ValueError for the current one."""
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
        """Call `callback` in the same thread after each change.

        Returns a function that ends the subscription. A callback sees the catalog after the change.
        If one raises, the error is logged and the others are still called.
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
        if before is not None:
            self._drop_names(before.function)
        for alias in function.aliases:
            self._aliases[namespace, alias] = name
        if function.oip_name:
            self._oip_names[namespace, function.oip_name] = name
        for word in _further_names(function):
            self._words.add(namespace, word)
        for number in self._numbers[namespace, name]:
            ref = (namespace, f"{name}@{number}")
            self._refs[ref] = replace(self._refs[ref], function=function)
        current = self._refs.get((namespace, f"{name}@{function.revision}"))
        # At start-up an older revision may be added before the current one. Until then the plain
        # name resolves to nothing, rather than to a wrong revision.
        if current is None:
            self._refs.pop((namespace, name), None)
        else:
            self._refs[namespace, name] = current
        self._tell(self._put_change(function, before))

    def _drop_names(self, function: Function) -> None:
        for alias in function.aliases:
            self._aliases.pop((function.namespace, alias), None)
        self._oip_names.pop((function.namespace, function.oip_name), None)
        for word in _further_names(function):
            self._words.remove(function.namespace, word)

    def _put_change(self, function: Function, before: Deployed | None) -> Change:
        key = (function.namespace, function.name)
        return Change("put", *key, before, self._refs.get(key), self._numbers[key])

    def _tell(self, change: Change) -> None:
        self.version += 1
        for callback in list(self._subscribers.values()):
            try:
                callback(change)
            except Exception:  # one subscriber's error must not affect the others
                log.exception("a subscriber of the catalog failed", name=change.name)

    def _unknown_function(
        self, name: str, namespace: str, may_see: Callable[[str], bool] = lambda _: True
    ) -> UnknownFunction:
        near = self.similar(
            name, lambda other: (namespace, other) in self._numbers and may_see(other), namespace
        )
        text = f"no function {name[:80]!r}{did_you_mean(near)}"
        return UnknownFunction(text, detail={"nearest": near})

    def _explain(self, ref: str, namespace: str, may_see: Callable[[str], bool]) -> Deployed:
        name = ref.partition("@")[0]
        numbers = list(self._numbers.get((namespace, name), ()))
        if not numbers:
            raise self._unknown_function(name, namespace, may_see)
        raise UnknownRevision(
            f"function {name!r} has no revision {_asked(ref)}; "
            f"there is {', '.join(map(str, numbers))}",
            detail={"revisions": numbers},
        )


def _further_names(function: Function) -> list[str]:
    own = [function.oip_name] if function.oip_name else []
    return [*function.aliases, *own]


def _asked(ref: str) -> str:
    try:
        return str(parse_ref(ref)[1])
    except BadRequest:
        return repr(ref.partition("@")[2][:20])
