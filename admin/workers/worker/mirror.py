"""What the supervisor has said of functions, keys and earlier cold starts."""

from __future__ import annotations

from admin.workers.messages import Estimates, FunctionNow, Functions, KeyNow
from registry.catalog import Catalog
from registry.exchange import Expected
from registry.store.keys import KeyRing


class Mirror:
    """Catalog and key ring of a gateway process, always as they were in the supervisor at some
    time. `expected` says what the next
    cold start of each pool takes."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.ring = KeyRing()
        self.expected: dict[str, Expected] = {}

    def take(self, message: Functions | KeyNow | Estimates) -> None:
        """Have it so from now on."""
        if isinstance(message, Functions):
            for function in message.functions:
                self._forget_estimates(function)
                show(self.catalog, function)
        elif isinstance(message, KeyNow):
            (self.ring.put if message.is_let_in else self.ring.remove)(message.key)
        else:
            self.expected |= message.expected

    def _forget_estimates(self, function: FunctionNow) -> None:
        stay = {one.revision.number for one in function.revisions}
        for one in self.catalog.revisions(function.name, function.namespace):
            if one.revision.number not in stay:
                self.expected.pop(one.revision.key, None)


def show(catalog: Catalog, function: FunctionNow) -> None:
    """Make a function in the catalog as it is, so that subscribers hear of the same change once.

    The revision with the traffic comes first: from its change they learn where the traffic was
    before, and what follows moves it no more.
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
