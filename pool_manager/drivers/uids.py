"""A user id of its own for every container. Pure.

The kernel counts much of what a process may take per user and not per process: epoll watches,
descriptors on their way through a socket, inotify instances, keys, pending signals. Containers
that share a user share these limits, and with the server's own user they share the server's.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from registry.errors import DriverError

SLICE: Final = 1024
"""User ids of one data folder: more than its replicas at once."""
UIDS_MIN: Final = 256
UID_MAX: Final = 2**31 - 2
"""The last user id that container engines take."""
DEFAULT: Final = "1879048192:65536"
"""Far from what distributions give to people, services, subordinate ids (subuid(5)) and
systemd's dynamic users and containers."""
SYSTEM_MAX: Final = 65534
"""Below are people and services, at it is nobody."""


def parse_range(text: str) -> range:
    """User ids given as FIRST:COUNT, as in subuid(5). Raises ValueError saying what it expects."""
    matched = re.fullmatch(r"(\d{1,10}):(\d{1,10})", text)
    first, count = (int(matched[1]), int(matched[2])) if matched else (0, 0)
    if first < 1 or count < UIDS_MIN or first + count - 1 > UID_MAX:
        raise ValueError(f"expected FIRST:COUNT, at least {UIDS_MIN} ids from 1 to {UID_MAX}")
    return range(first, first + count)


def slice_of(uids: range, owner: str) -> range:
    """The part of `uids` that the containers of one data folder get.

    By its owner's name (hexadecimal digits of a hash): the same after a restart, and most likely
    not that of another data folder on the same machine.
    """
    parts = max(1, len(uids) // SLICE)
    at = int(owner, 16) % parts * SLICE
    return uids[at : at + SLICE]


def misfit(uids: range, uid_map: str) -> str:
    """Why processes cannot have these user ids, with a range that fits; "" if they can.

    `uid_map` is /proc/self/uid_map (user_namespaces(7)): lines of first id inside, first id
    outside, count.
    """
    rows = [[int(field) for field in line.split()] for line in uid_map.splitlines()]
    mapped = [range(row[0], row[0] + row[2]) for row in rows]
    if any(uids[0] in part and uids[-1] in part for part in mapped):
        return ""
    found = f"user ids {uids[0]} to {uids[-1]} do not exist in this user namespace"
    return f"{found}; {_advice(max(mapped, key=len, default=range(0)))}"


def _advice(mapped: range) -> str:
    """A range in the upper half of `mapped`, away from the ids of people and services."""
    end = min(mapped.stop, UID_MAX + 1)
    if mapped.start < SYSTEM_MAX < end <= SYSTEM_MAX + 2:
        end = SYSTEM_MAX
    count = min(65536, (end - mapped.start) // 2)
    if count < UIDS_MIN:
        return f"it has {len(mapped)}: give it more, or use --driver process"
    return f"set FN_REPLICA_UIDS={end - count}:{count}"


class UidAllocator:
    """Gives each replica a user id that no other living replica has.

    In rotation: what the kernel still counts for a replica that has just ended is not the next
    one's. The first id of the slice is the network holders'.
    """

    def __init__(self, uids: range, skip: int = 0) -> None:
        """`uids` is the slice; the rotation begins `skip` ids later."""
        self.holder = uids[0]
        self._order = deque(uids[1:])
        self._order.rotate(-skip)
        self._held: dict[str, int] = {}

    def take(self, replica: str) -> int:
        """The user id of a replica that starts, until `free`. Raises DriverError where every one is
        taken."""
        if replica in self._held:
            return self._held[replica]
        taken = {*self._held.values()}
        for _ in range(len(self._order)):
            uid = self._order[0]
            self._order.rotate(-1)
            if uid not in taken:
                self._held[replica] = uid
                return uid
        raise DriverError("every user id for replicas is taken: set FN_REPLICA_UIDS to more")

    def adopt(self, replica: str, uid: int | None) -> None:
        """A replica of an earlier server runs with this user id, perhaps of another slice; None: it
        was given none of its own."""
        if uid is not None:
            self._held.setdefault(replica, uid)

    def free(self, replica: str) -> None:
        """Nothing of a replica runs any more; one without a user id is fine."""
        self._held.pop(replica, None)

    def held(self) -> dict[str, int]:
        """User ids by replica."""
        return dict(self._held)
