"""A gateway's copy of the server's state, kept by messages."""

from __future__ import annotations

from admin.workers.messages import FunctionNow, Functions, Keys, State, UpstreamKeysNow
from registry.catalog import Catalog
from registry.exchange import Expected
from registry.openness import Openness
from registry.store.keys import KeyRing
from registry.upstream_keys import UpstreamKeys


class CatalogReplica:
    """Copy of the server's catalog, keys and estimates. `expected` has the estimated cold start of
    each pool."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.ring = KeyRing(openness=Openness.CLOSED)
        self.upstream_keys = UpstreamKeys()
        self.expected: dict[str, Expected] = {}

    def apply(self, message: State) -> None:
        """Apply a change that the server sent."""
        if isinstance(message, Functions):
            self._apply_functions(message)
        elif isinstance(message, Keys):
            self._apply_keys(message)
        elif isinstance(message, UpstreamKeysNow):
            self._apply_upstream_keys(message)
        else:
            self.expected |= message.expected

    def _apply_keys(self, message: Keys) -> None:
        """Remove keys before any is let in."""
        ring, removed = self.ring, message.removed
        if message.is_whole:
            stay = {key.sha256 for key in message.let_in}
            removed = [key for key in ring.all() if key.sha256 not in stay]
        for key in removed:
            ring.remove(key)
        for key in message.let_in:
            if ring.with_id(key.id) != key:
                ring.put(key)
        ring.decide(message.openness)

    def _apply_upstream_keys(self, message: UpstreamKeysNow) -> None:
        keys, forgotten = self.upstream_keys, message.forgotten
        if message.is_whole:
            stay = {(key.namespace, key.secret) for key in message.kept}
            forgotten = [key for key in keys.all() if (key.namespace, key.secret) not in stay]
        for key in forgotten:
            keys.remove(key.secret, key.namespace)
        for key in message.kept:
            keys.put(key)

    def _apply_functions(self, message: Functions) -> None:
        functions = message.functions
        if message.existing is not None:
            stay = set(message.existing)
            known = [(one.function.namespace, one.function.name) for one in self.catalog.all()]
            gone = [FunctionNow(*name, []) for name in known if name not in stay]
            functions = [*gone, *functions]
        for function in functions:
            self._forget_estimates(function)
            apply_function(self.catalog, function)

    def _forget_estimates(self, function: FunctionNow) -> None:
        stay = {one.revision.number for one in function.revisions}
        for one in self.catalog.revisions(function.name, function.namespace):
            if one.revision.number not in stay:
                self.expected.pop(one.revision.key, None)


def apply_function(catalog: Catalog, function: FunctionNow) -> None:
    """Make the catalog's function equal to `function`, with one change per differing revision.

    The revision with the traffic comes first: its change names the previous one for subscribers,
    and the changes after it move no traffic.
    """
    namespace, name = function.namespace, function.name
    if not function.revisions:
        if catalog.revisions(name, namespace):
            catalog.remove(name, namespace)
        return
    before = {one.revision.number: one for one in catalog.revisions(name, namespace)}
    current = function.revisions[0].function.revision
    for one in sorted(function.revisions, key=lambda one: one.revision.number != current):
        if before.get(one.revision.number) != one:
            catalog.put(one)
    gone = before.keys() - {one.revision.number for one in function.revisions}
    if gone:
        catalog.remove_revisions(name, gone, namespace)
