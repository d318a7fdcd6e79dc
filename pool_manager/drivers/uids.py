"""Allocation of a separate user id for each container. No I/O.

The kernel applies many limits per user and not per process: epoll watches, descriptors in transit
through a socket, inotify instances, keys, pending signals. Containers with the same user share
these limits; containers with the server's user share those of the server.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from registry.errors import DriverError

SLICE: Final = 1024
"""User ids of one data folder; more than it ever has concurrent replicas."""
UIDS_MIN: Final = 256
UID_MAX: Final = 2**31 - 2
"""The largest user id that container engines accept."""
DEFAULT: Final = "1879048192:65536"
"""Default range, far from the ids that distributions assign to people, services, subordinate ids
(subuid(5)) and systemd's dynamic users and containers."""
SYSTEM_MAX: Final = 65534
"""User id of `nobody`; the ids of people and services are below it."""


def parse_range(text: str) -> range:
    """Parse FIRST:COUNT, as in subuid(5). Raises ValueError that states the expected format."""
    matched = re.fullmatch(r"(\d{1,10}):(\d{1,10})", text)
    first, count = (int(matched[1]), int(matched[2])) if matched else (0, 0)
    if first < 1 or count < UIDS_MIN or first + count - 1 > UID_MAX:
        raise ValueError(f"expected FIRST:COUNT, at least {UIDS_MIN} ids from 1 to {UID_MAX}")
    return range(first, first + count)


def slice_of(uids: range, owner: str) -> range:
    """Return the part of `uids` for the containers of one data folder.

    It depends on the owner's name (hexadecimal digits of a hash): it is the same after a restart,
    and most likely not that of another data folder on the same machine.
    """
    parts = max(1, len(uids) // SLICE)
    at = int(owner, 16) % parts * SLICE
    return uids[at : at + SLICE]


def misfit(uids: range, uid_map: str) -> str:
    """Return why processes cannot have these user ids, and a range that fits; "" if they can.

    `uid_map` is /proc/self/uid_map (user_namespaces(7)), with lines of: first id inside, first id
    outside, count.
    """
    rows = [[int(field) for field in line.split()] for line in uid_map.splitlines()]
    mapped = [range(row[0], row[0] + row[2]) for row in rows]
    if any(uids[0] in part and uids[-1] in part for part in mapped):
        return ""
    found = f"user ids {uids[0]} to {uids[-1]} do not exist in this user namespace"
    return f"{found}; {_advice(max(mapped, key=len, default=range(0)))}"


def _advice(mapped: range) -> str:
    """Return the advice to use a range in the upper half of `mapped`, away from the ids of people
    and services."""
    end = min(mapped.stop, UID_MAX + 1)
    if mapped.start < SYSTEM_MAX < end <= SYSTEM_MAX + 2:
        end = SYSTEM_MAX
    count = min(65536, (end - mapped.start) // 2)
    if count < UIDS_MIN:
        return f"it has only {len(mapped)}: map more user ids, or use --driver process"
    return f"set FN_REPLICA_UIDS={end - count}:{count}"


class UidAllocator:
    """Assigns each replica a user id that no other live replica has.

    Ids are assigned in rotation, so that a new replica does not inherit what the kernel still
    counts for one that has just ended. The first id of the slice belongs to network holders.
    """

    def __init__(self, uids: range, skip: int = 0) -> None:
        """`uids` is the slice; the rotation begins `skip` ids later."""
        self.holder = uids[0]
        self._order = deque(uids[1:])
        self._order.rotate(-skip)
        self._held: dict[str, int] = {}

    def take(self, replica: str) -> int:
        """Assign a user id to a replica until `free`. Raises DriverError if all are taken."""
        if replica in self._held:
            return self._held[replica]
        taken = {*self._held.values()}
        for _ in range(len(self._order)):
            uid = self._order[0]
            self._order.rotate(-1)
            if uid not in taken:
                self._held[replica] = uid
                return uid
        raise DriverError(
            "every user id for replicas is taken: set FN_REPLICA_UIDS to a larger range"
        )

    def adopt(self, replica: str, uid: int | None) -> None:
        """Record the user id of an earlier server's replica, possibly of another slice; None if it
        has no separate user id."""
        if uid is not None:
            self._held.setdefault(replica, uid)

    def free(self, replica: str) -> None:
        """Free the user id of a replica that has ended, if it has one."""
        self._held.pop(replica, None)
