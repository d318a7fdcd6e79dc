"""Stocking: which hosts get which files ahead of need, so that a start there needs no transfer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

from pool_manager.core.hosts import HostRecord, HostState
from registry.model.hosts import Ability

LASTING: Final = (HostState.JOINING, HostState.UP, HostState.UNREACHABLE)
"""States of hosts that files are meant for. A host that is unreachable for a moment keeps its part:
otherwise each short loss would move files."""


class FileSet(NamedTuple):
    """The files of a revision: `files` identifies them (`PoolSpec.files`), they have `size` bytes,
    and `hosts` hosts that have a cache should have them. Of the revision's settings, `labels`,
    `ability` and `device_kind` decide which hosts can use them."""

    files: str
    size: int
    hosts: int = 1
    labels: tuple[tuple[str, str], ...] = ()
    ability: Ability | None = None
    device_kind: str = "any"


class HostSpace(NamedTuple):
    """A host's cache as a place for files: room for `limit_bytes`, and the host's kinds of
    devices."""

    record: HostRecord
    limit_bytes: int
    kinds: Collection[str]


def stock_targets(wanted: Iterable[FileSet], rooms: Iterable[HostSpace]) -> list[tuple[str, str]]:
    """Return which files each host should have, as pairs of host and `FileSet.files`.

    (1) A host that drains, is removed or gone gets none. Hosts without a cache need none, and are
        no `rooms`.
    (2) A host must be able to run replicas of the revision: its labels, ability and devices.
    (3) Hosts are chosen by rendezvous hashing (Thaler and Ravishankar, 1998): each file set takes
        the hosts with the highest hashes of both names. When one of H hosts comes or goes, only
        about 1/H of the copies move.
    (4) A host without room for a file set is passed over. Room is given in the order of the names
        of the file sets, so that the result does not depend on the order of `wanted`.
    """
    open_rooms = [room for room in rooms if _is_lasting(room.record)]  # (1)
    left = {room.record.name: room.limit_bytes for room in open_rooms}
    sets = {one.files: one for one in wanted if one.files and one.hosts > 0}
    targets: list[tuple[str, str]] = []
    for one in sorted(sets.values()):
        able = [room.record.name for room in open_rooms if _can_run(one, room)]  # (2)
        able.sort(key=partial(_rank, one.files))  # (3)
        with_room = [host for host in able if left[host] >= one.size]  # (4)
        for host in with_room[: one.hosts]:
            left[host] -= one.size
            targets.append((host, one.files))
    return sorted(targets)


def _is_lasting(record: HostRecord) -> bool:
    return not (record.is_draining or record.is_removed) and record.state in LASTING


def _can_run(one: FileSet, room: HostSpace) -> bool:
    record = room.record
    has_labels = all(record.labels.get(key) == value for key, value in one.labels)
    # The abilities of a host that has not answered yet are not known.
    is_able = one.ability is None or not record.epoch or one.ability in record.abilities
    has_device = bool(room.kinds) if one.device_kind == "any" else one.device_kind in room.kinds
    return has_labels and is_able and has_device


def _rank(files: str, host: str) -> bytes:
    return blake2b(f"{host}\0{files}".encode(), digest_size=16).digest()
