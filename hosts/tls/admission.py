"""The replicas that may dial in: what their manager says of them, and their connections."""

from __future__ import annotations

import hmac
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Protocol

from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import FETCHES_MAX
from runtime_image.contract.link import Kind

Identify = Callable[[str, str], Coroutine[Any, Any, str | None]]
"""Returns the id of the replica that has shown a credential, None for no replica; the arguments are
the credential and the address of the peer. It runs in the loop that has opened the door."""

CONNECTIONS_MAX: Final = {Kind.HELLO: 2, Kind.FETCH: FETCHES_MAX}
"""Connections of one replica at the same time, by the first frame. One more closes the oldest: a
replica dials anew when a connection is broken, of which its server may know nothing yet."""

Close = Callable[[], None]


class Admission(Protocol):
    """A replica that may dial in, as its manager admits it."""

    @property
    def token(self) -> str:
        """Its one-time token to enrol with; "" if only `LinkDoor.identify` can tell who it is. Read
        in the door's thread."""

    @property
    def is_enrolled(self) -> bool:
        """Whether it has enrolled before, also in the time of an earlier server. Read in the door's
        thread."""

    async def enrol(self, host: str, port: int) -> ReplicaRecord:
        """Store durably that it has enrolled, and that gateways dial it at this address; return the
        record to send to it. In the loop that has opened the door; called once. Raises
        FnError or OSError, whose text the replica gets: it is refused, and its token stays used
        up."""

    def connected(self, sock: socket.socket) -> None:
        """Take over its control link, whose HELLO is still to be read: one end of a socket pair,
        non-blocking. In the loop that has opened the door."""

    def file(self, sha256: str) -> Path | None:
        """Return where a file is that it may fetch, None for any other. In the door's thread."""


class ReplicaEntry:
    """A replica that may dial in."""

    def __init__(self, id: str, admission: Admission, source: str) -> None:
        self.id = id
        self.admission = admission
        self.source = source
        """Where it came from last (`handshake_limits.source_of`), "" if it never came."""
        self.served_bytes = 0
        """Bytes of files that it was sent."""
        self._is_spent = False
        self._connections: dict[Kind, dict[object, Close]] = {kind: {} for kind in CONNECTIONS_MAX}

    @property
    def may_enrol(self) -> bool:
        """Whether its token is not used up."""
        return not (self._is_spent or self.admission.is_enrolled)

    def spend_token(self) -> None:
        """Let it enrol no more, whether that succeeds or not."""
        self._is_spent = True

    def add(self, kind: Kind, connection: object, close: Close) -> None:
        """Add a connection; `close` is called when it has to go, perhaps at once."""
        of_kind = self._connections[kind]
        of_kind[connection] = close
        if len(of_kind) > CONNECTIONS_MAX[kind]:
            of_kind.pop(next(iter(of_kind)))()

    def remove(self, kind: Kind, connection: object) -> None:
        """Forget a connection that has ended."""
        self._connections[kind].pop(connection, None)

    def close(self) -> None:
        """Close all connections."""
        for of_kind in self._connections.values():
            for close in of_kind.values():
                close()
            of_kind.clear()


class ReplicaTable:
    """The replicas that may dial in, by id."""

    def __init__(self) -> None:
        self._by_id: dict[str, ReplicaEntry] = {}
        self._sources: Counter[str] = Counter()
        """How many replicas came from each source."""

    def admit(self, id: str, admission: Admission, source: str = "") -> None:
        """Let a replica in, in place of one of the same id. `source` is where it came from in the
        time of an earlier server."""
        self.forget(id)
        self._by_id[id] = ReplicaEntry(id, admission, "")
        self.set_source(self._by_id[id], source)

    def set_source(self, entry: ReplicaEntry, source: str) -> None:
        """Note where a replica comes from."""
        if entry.source != source and self._by_id.get(entry.id) is entry:
            self._leave(entry)
            entry.source = source
            self._sources[source] += 1

    def _leave(self, entry: ReplicaEntry) -> None:
        if entry.source:
            self._sources[entry.source] -= 1
            if not self._sources[entry.source]:
                del self._sources[entry.source]

    def has_source(self, source: str) -> bool:
        """Whether a replica has come from a source, and may do so again."""
        return source in self._sources

    def forget(self, id: str) -> None:
        """Let a replica in no more, and close its connections."""
        if (found := self._by_id.pop(id, None)) is not None:
            self._leave(found)
            found.close()

    def find(self, id: str) -> ReplicaEntry | None:
        """Return the replica of an id."""
        return self._by_id.get(id)

    def find_by_token(self, token: str) -> ReplicaEntry | None:
        """Return the replica that a token is of. Takes the same time for each token."""
        given = token.encode("utf-8", "replace")
        found = None
        for one in self._by_id.values():
            expected = one.admission.token.encode()
            if hmac.compare_digest(given, expected) and expected:
                found = one
        return found
