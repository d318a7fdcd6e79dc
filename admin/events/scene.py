"""What there is to see, read when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from admin.events.lines import Lines
from admin.events.picture import Thing
from admin.views import occupancy_json, replica_json
from gateway.metrics.pulse import Answered
from registry.catalog import Catalog
from registry.model import NAMESPACE

JUMP_S: Final = 1.0

encode = msgspec.json.Encoder().encode


class Scene:
    """Functions, replicas and devices as things. `take_answered` gives what this process has
    answered since it was asked last; `reasons` what is wrong with the server."""

    def __init__(
        self,
        catalog: Catalog,
        lines: Lines,
        take_answered: Callable[[], list[Answered]],
        reasons: Callable[[], list[str]],
    ) -> None:
        self._catalog = catalog
        self._lines = lines
        self._manager, self._clock, self._wall = lines.manager, lines.clock, lines.wall
        self._take_answered = take_answered
        self._reasons = reasons
        self._boot_s = lines.wall() - lines.clock()

    def pulse(self) -> None:
        """A second has passed: count what was answered in it."""
        self.answered(self._take_answered())
        boot_s = self._wall() - self._clock()
        # Times made with ever another difference would all seem to change, unless a clock jumped.
        if abs(boot_s - self._boot_s) > JUMP_S:
            self._boot_s = boot_s

    def answered(self, several: Iterable[Answered]) -> None:
        """So much was answered in about the last second."""
        now = self._clock()
        for one in several:
            self._lines.rates.add((one.namespace, one.name), one.counts, now)

    def busy(self) -> set[str]:
        """The functions whose numbers may change without anything happening to their pools."""
        names = {name for _, name in self._lines.rates.active(self._clock())}
        pools = [*self._lines.held.loads(), *_waking(self._lines.held.states())]
        return names | {function_of(pool) for pool in pools}

    def functions(self, names: Iterable[str]) -> tuple[list[Thing], list[str]]:
        """Those of these names that exist, and the names of others."""
        loads = self._lines.held.loads()
        there, gone = [], []
        for name in names:
            deployed = self._catalog.find(name, NAMESPACE)
            if deployed is None:
                gone.append(name)
            else:
                there.append(Thing(name, name, encode(self._lines.line(deployed, loads))))
        return there, gone

    def replicas(self) -> Iterator[Thing]:
        """Every replica that is not yet stopped."""
        for one in self._manager.replicas():
            shown = replica_json(one, self._boot_s + one.since_s)
            yield Thing(one.id, shown["function"], encode(shown))

    def devices(self) -> Iterator[Thing]:
        """Every device."""
        for one in self._manager.occupancies():
            yield Thing(
                one.device.id, "", encode(occupancy_json(one, self._manager.busy(one.device.id)))
            )

    def beat(self) -> dict[str, Any]:
        """All of it in a few numbers."""
        loads = self._lines.held.loads().values()
        reasons = self._reasons()
        return {
            "at_s": round(self._wall(), 3),
            "held": sum(load.queued for load in loads),
            "in_flight": sum(load.in_flight for load in loads),
            "rate": self._lines.rates.rate(self._clock()),
            "readyz": {"status": "degraded" if reasons else "ok", "reasons": reasons},
        }


def function_of(pool: str) -> str:
    """The name of the function that a pool is of, "" for one of standbys."""
    namespace, _, ref = pool.partition("/")
    return ref.partition("@")[0] if namespace == NAMESPACE else ""


def _waking(states: dict[str, str]) -> list[str]:
    return [pool for pool, state in states.items() if state == "waking"]
