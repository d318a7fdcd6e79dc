"""Counters in memory that outlives the process which counts.

The supervisor makes an anonymous file per worker, both map it, and the worker keeps every number of
its counters and histograms there. A worker that is killed loses nothing it
has counted, and counting costs no more than in memory of its own.

A file is a row of records: f64 value, u32 crc32 of the key, u16 length of the key, the key. In
record 0 the value is of what found no room, and the u32 tells how many records were ever used. The
worker writes a key's length last and zeroes it first, and every value is one aligned store, so that
who reads meanwhile sees each record whole or not at all.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterable, MutableSequence, Sequence
from struct import Struct
from typing import Final, NamedTuple, cast
from zlib import crc32

import structlog

from gateway.metrics.counters import SPARE

log = structlog.get_logger()

RECORD: Final = 256
RECORDS_MAX: Final = 2**18
"""64 MiB, of which only pages in use take memory; a function called has about 60 records."""
KNOWN_SPARE: Final = 1024
"""Keys that are remembered beyond twice as many as there are."""
_STEP: Final = RECORD // 8
_HEAD: Final = Struct("<dIH")
_CHECK: Final = Struct("<I")
_LENGTH: Final = Struct("<H")
_KEY_MAX: Final = RECORD - _HEAD.size


class Sample(NamedTuple):
    """What a number is of: a sample's name, and label names and values in turns."""

    name: str
    labels: tuple[str, ...]

    @property
    def by_label(self) -> dict[str, str]:
        """Label values by name."""
        return dict(zip(self.labels[::2], self.labels[1::2], strict=True))

    @property
    def owner(self) -> tuple[str, str]:
        """Namespace and name of the function that it is of."""
        labels = self.by_label
        return labels.get("namespace", ""), labels.get("function", "")


class CounterReader:
    """The supervisor's end: makes the file, reads it, also after its worker has died."""

    def __init__(self, records_max: int = RECORDS_MAX) -> None:
        self.descriptor = os.memfd_create("fngate-counters")
        os.ftruncate(self.descriptor, records_max * RECORD)
        self._map = mmap.mmap(self.descriptor, 0)
        self._known: dict[bytes, Sample] = {}

    def read(self, count: int = RECORDS_MAX) -> dict[Sample, float]:
        """The numbers there are now, in their order; only the first `count` that were ever taken,
        where that is given."""
        (_, used, _) = _HEAD.unpack_from(self._map, 0)
        is_all, used = used <= count + 1, min(used, count + 1)
        found: dict[Sample, float] = {}
        for at in range(RECORD, min(used * RECORD, len(self._map)), RECORD):
            sample, value = self._record(at)
            if sample is not None:
                found[sample] = found.get(sample, 0.0) + value
        if is_all and len(self._known) > 2 * len(found) + KNOWN_SPARE:
            # What is gone would be remembered for ever.
            self._known = {key: one for key, one in self._known.items() if one in found}
        return found

    def close_descriptor(self) -> None:
        """Keep the mapping alone: the worker has its own descriptor."""
        os.close(self.descriptor)

    def close(self) -> None:
        """Give the memory back."""
        self._map.close()

    def _record(self, at: int) -> tuple[Sample | None, float]:
        """Key, then value, then key again: a record that was given to another number meanwhile is
        left out this time."""
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


class CounterWriter:
    """The worker's end: gives out records, and takes back those of numbers that are removed."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is closed; the mapping stays."""
        self._map = mmap.mmap(descriptor, 0)
        os.close(descriptor)
        self._view = memoryview(self._map).cast("d")
        self.values = cast("MutableSequence[float]", self._view)
        self._used = 1
        self._free: deque[int] = deque()
        self._is_full = False

    def allocate(self, name: str, labelnames: Sequence[str], labelvalues: Sequence[str]) -> int:
        """The place in `values` of a number that begins at 0; all beyond the last share one that
        is not shown."""
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
        """Nobody counts at this place any more: its record can be another number's."""
        if place:
            record = place // _STEP
            _LENGTH.pack_into(self._map, record * RECORD + 12, 0)
            self._free.append(record)

    def close(self) -> None:
        """Count no more: the numbers stay, for whoever else has mapped them."""
        self._view.release()
        self._map.close()

    def _room(self) -> int:
        """A record's number, 0 for none."""
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
    """Over all workers."""
    total: dict[Sample, float] = {}
    for reading in readings:
        for sample, value in reading.items():
            total[sample] = total.get(sample, 0.0) + value
    return total
