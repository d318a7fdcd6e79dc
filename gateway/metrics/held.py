"""Metric families of held memory: request bodies, unsent answers, clients that were cut."""

from __future__ import annotations

from typing import Final

from gateway.dispatch.held import HeldBytes
from gateway.metrics.counters import CounterFamily, Families, GaugeFamily

HELD: Final = "fngate_held_bytes"


class HeldFamilies:
    """The families of one gateway process."""

    def __init__(self, families: Families) -> None:
        store = families.store
        text = "Bytes held of request bodies and of unsent answers, which share one limit."
        held = families.add(GaugeFamily(HELD, text, ("what",), store))
        text = "Clients whose connections were reset because they did not take their answers."
        cut = families.add(CounterFamily("fngate_clients_cut", text, (), store))
        self._values = store.values
        self._bodies, self._answers = held.of("bodies").place, held.of("answers").place
        self._cut = cut.of().place

    def update(self, held: HeldBytes, cuts: int) -> None:
        """Show the held bytes, and the `cuts` so far."""
        self._values[self._bodies] = held.bytes - held.unsent
        self._values[self._answers] = held.unsent
        self._values[self._cut] = cuts
