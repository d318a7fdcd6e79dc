"""Counters of gateways, where the server reads them.

For a gateway in a process of its own the server creates an anonymous file that both map: it
outlives the process that counts, so a killed worker loses no counts. A gateway in the server's
process counts in a list, which is 20 ns a number faster, and a call counts twenty.

A file is an array of records: f64 value, u32 crc32 of the key, u16 length of the key, the key. In
record 0 the value collects counts that found no free record, and the u32 is the number of records
ever used. The worker writes a key's length last and zeroes it first, and every value is one aligned
store. So a concurrent reader sees each record completely or not at all.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from struct import Struct
from typing import Final, NamedTuple, cast
from zlib import crc32

import structlog

from gateway.metrics.counters import SPARE, LocalStore
from gateway.metrics.revisions import LAST

log = structlog.get_logger()

RECORD: Final = 256
RECORDS_MAX: Final = 2**18
"""64 MiB, of which only used pages take memory; a called function has about 60 records."""
KNOWN_SPARE: Final = 1024
"""Cached keys beyond twice the number of current records."""
_STEP: Final = RECORD // 8
_HEAD: Final = Struct("<dIH")
_CHECK: Final = Struct("<I")
_LENGTH: Final = Struct("<H")
_KEY_MAX: Final = RECORD - _HEAD.size


class Sample(NamedTuple):
    """Identity of a number: name of the sample, then label names and values in turns."""

    name: str
    labels: tuple[str, ...]

    @property
    def by_label(self) -> dict[str, str]:
        """Label values by label name."""
        return dict(zip(self.labels[::2], self.labels[1::2], strict=True))

    @property
    def owner(self) -> tuple[str, str]:
        """Namespace and name of the function that the sample belongs to."""
        labels = self.by_label
        return labels.get("namespace", ""), labels.get("function", "")


class CounterReader:
    """Server's end: creates the memory and reads it, also after its gateway has died."""

    def __init__(self, records_max: int = RECORDS_MAX) -> None:
        """`descriptor` is for the process that writes."""
        self.descriptor = os.memfd_create("fngate-counters")
        os.ftruncate(self.descriptor, records_max * RECORD)
        self._map = mmap.mmap(self.descriptor, 0)
        self._known: dict[bytes, Sample] = {}

    def read(self, count: int = RECORDS_MAX) -> dict[Sample, float]:
        """Return the current numbers in record order; with `count`, only those of the first `count`
        records."""
        (_, used, _) = _HEAD.unpack_from(self._map, 0)
        is_all, used = used <= count + 1, min(used, count + 1)
        found: dict[Sample, float] = {}
        for at in range(RECORD, min(used * RECORD, len(self._map)), RECORD):
            sample, value = self._record(at)
            if sample is not None:
                found[sample] = found.get(sample, 0.0) + value
        if is_all and len(self._known) > 2 * len(found) + KNOWN_SPARE:
            # Drop cached keys of freed records.
            self._known = {key: one for key, one in self._known.items() if one in found}
        return found

    def close_descriptor(self) -> None:
        """Close the descriptor and keep the mapping; the worker has its own descriptor."""
        os.close(self.descriptor)

    def close(self) -> None:
        """Release the memory."""
        self._map.close()

    def _record(self, at: int) -> tuple[Sample | None, float]:
        """Read key, value, then the key again: a record that was reassigned meanwhile is left out
        of this reading."""
        (_, check, length) = _HEAD.unpack_from(self._map, at)
        if not length or length > _KEY_MAX:
            return None, 0.0
        key = self._map[at + _HEAD.size : at + _HEAD.size + length]
        (value, again, _) = _HEAD.unpack_from(self._map, at)
        if again != check or crc32(key) != check:
            return None, 0.0
        sample = self._known.get(key)
        if sample is None:
            name, *labels = key.decode().split("\n")
            sample = self._known[key] = Sample(name, tuple(labels))
        return sample, value


class OwnCounters(LocalStore):
    """Both ends for a gateway in the server's process. Another thread may read."""

    def __init__(self) -> None:
        super().__init__()
        self._samples: list[Sample | None] = []

    def allocate(self, name: str, labelnames: Sequence[str], labelvalues: Sequence[str]) -> int:
        """Implement `CounterStore.allocate`."""
        place = super().allocate(name, labelnames, labelvalues)
        pairs = zip(labelnames, labelvalues, strict=True)
        sample = Sample(name, tuple(text for pair in pairs for text in pair))
        self._samples[place : place + 1] = [sample]
        return place

    def free(self, place: int) -> None:
        """Implement `CounterStore.free`."""
        self._samples[place] = None
        super().free(place)

    def read(self, count: int = RECORDS_MAX) -> dict[Sample, float]:
        """Return the current numbers by place; with `count`, only those of the first ones."""
        there = zip(self._samples[:count], self.values, strict=False)
        return {sample: value for sample, value in there if sample is not None}

    def close(self) -> None:
        """Do nothing."""


Counters = CounterReader | OwnCounters
"""The counters of one gateway, as the server reads them."""


def open_writer(descriptor: int) -> CounterWriter:
    """Return the end that writes, in a gateway's process of its own; `descriptor` is closed."""
    found = mmap.mmap(descriptor, 0)
    os.close(descriptor)
    return CounterWriter(found)


class CounterWriter:
    """Gateway's end: allocates records, and frees those of removed numbers."""

    def __init__(self, counters: mmap.mmap) -> None:
        """`counters` is the reader's memory."""
        self._map = counters
        self._view = memoryview(self._map).cast("d")
        self.values = cast("MutableSequence[float]", self._view)
        self._used = 1
        self._free: deque[int] = deque()
        self._is_full = False

    def allocate(self, name: str, labelnames: Sequence[str], labelvalues: Sequence[str]) -> int:
        """Return the index in `values` of a new number, which starts at 0. If all records are used,
        return 0: a shared record that is not shown."""
        labels = [text for pair in zip(labelnames, labelvalues, strict=True) for text in pair]
        key = "\n".join([name, *labels]).encode()
        record = self._room() if len(key) <= _KEY_MAX else 0
        if not record:
            return 0
        at = record * RECORD
        self.values[record * _STEP] = 0.0
        self._map[at + _HEAD.size : at + _HEAD.size + len(key)] = key
        _CHECK.pack_into(self._map, at + 8, crc32(key))
        _LENGTH.pack_into(self._map, at + 12, len(key))
        return record * _STEP

    def free(self, place: int) -> None:
        """Free a record that is no longer counted in, for another number."""
        if place:
            record = place // _STEP
            _LENGTH.pack_into(self._map, record * RECORD + 12, 0)
            self._free.append(record)

    def close(self) -> None:
        """Unmap the file. Its numbers stay for other processes that map it."""
        self._view.release()
        self._map.close()

    def _room(self) -> int:
        """Return a free record's number; 0 if there is none."""
        if len(self._free) > SPARE:
            return self._free.popleft()
        if self._used < len(self._map) // RECORD:
            self._used += 1
            _CHECK.pack_into(self._map, 8, self._used)
            return self._used - 1
        if self._free:
            return self._free.popleft()
        if not self._is_full:
            self._is_full = True
            log.error("there is no room for further counters", records=self._used)
        return 0


def summed(readings: Iterable[dict[Sample, float]]) -> dict[Sample, float]:
    """Return the sums over all gateways; of a time the latest."""
    total: dict[Sample, float] = {}
    for reading in readings:
        for sample, value in reading.items():
            known = total.get(sample, 0.0)
            total[sample] = max(known, value) if sample.name == LAST else known + value
    return total


class GatewayCounters:
    """Counters of all gateways, with the last ones of those that have ended.

    `stays` returns whether a number is kept when its gateway ends.
    """

    def __init__(self, stays: Callable[[Sample], bool]) -> None:
        self._stays = stays
        self.readers: dict[str, Counters] = {}
        """Those of the gateways that run, by their names."""
        self.ended: dict[Sample, float] = {}
        """Sums of the others."""

    def add(self, gateway: str, reader: Counters) -> None:
        """Read a gateway's counters from now on."""
        self.readers[gateway] = reader

    def remove(self, gateway: str) -> None:
        """Keep the numbers of a gateway that has ended."""
        numbers = self.readers.pop(gateway).read()
        kept = {sample: value for sample, value in numbers.items() if self._stays(sample)}
        self.ended = summed([self.ended, kept])

    def forget(self, is_gone: Callable[[Sample], bool]) -> None:
        """Drop the numbers of what was removed."""
        self.ended = {one: value for one, value in self.ended.items() if not is_gone(one)}

    def read(self) -> dict[Sample, float]:
        """Return the sums over all gateways."""
        return summed([self.ended, *(one.read() for one in self.readers.values())])
