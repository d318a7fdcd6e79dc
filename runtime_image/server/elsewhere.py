"""Whether a starting server listens somewhere else than it should.

A server may open other ports while it starts: for metrics, for its own processes. So it has only
missed its port if it stays with the same addresses, has nothing more to do, and answers there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from runtime_image.contract.server import ServerSpec
from runtime_image.replica.loop import Loop
from runtime_image.server import listeners, readiness
from runtime_image.server.connecting import REFUSED, Server
from runtime_image.server.listeners import Listener
from runtime_image.server.probe import Probe
from runtime_image.server.process_tree import Process, cpu_s
from runtime_image.server.readiness import Answer, Readiness

SETTLED_S: Final = 10.0
"""Seconds after which a server with the same addresses has settled."""
BUSY: Final = 0.25
"""Share of a core above which a server still starts."""
REACHED: Final = ("0.0.0.0", "127.0.0.1", "::", "::1", "::ffff:0.0.0.0", "::ffff:127.0.0.1")  # noqa: S104 - compared
"""Addresses of a listener that the sidecar reaches."""


def misplaced(own: Iterable[Listener], port: int) -> list[Listener]:
    """Return those of the server's listeners that are not at the expected port; 0 for a socket."""
    return sorted(one for one in own if one.port != port or one.host not in REACHED)


def strangers_of(spec: ServerSpec) -> str:
    """Return who else reaches a server that is apart, "" if nobody does.

    On the engine's network everybody on this machine and in other containers does, except where it
    listens on the loopback interface. The sidecar itself listens on nothing.
    """
    if not spec.is_apart or spec.network == "none":
        return ""
    found = [one for one in listeners.listeners() if not one.is_local]
    if not found:
        return ""
    return (
        f"local users and other containers can reach the server at {listeners.describe(found)}; one"
        " that listens on 127.0.0.1 is reached by its calls only"
    )


class Elsewhere:
    """The addresses of one start, seen about once a second. Pure; `now` is monotonic seconds."""

    def __init__(self) -> None:
        self._found: list[Listener] = []
        self._since_s = 0.0
        self._seen_s = 0.0
        self._cpu_s = 0.0

    def has_settled(self, now: float, found: list[Listener], cpu_s: float) -> bool:
        """Whether the server has had these addresses for SETTLED_S, with little else to do.

        `found` is from `misplaced`, empty if the expected port does not refuse connections;
        `cpu_s` is the CPU time of all its processes.
        """
        is_busy = cpu_s - self._cpu_s > BUSY * (now - self._seen_s)
        if found != self._found or is_busy:
            self._since_s = now
        self._found, self._seen_s, self._cpu_s = found, now, cpu_s
        return bool(found) and now - self._since_s >= SETTLED_S


class PortWatch:
    """Looks where a starting server listens. `missed` is called if it has missed its port."""

    def __init__(
        self,
        loop: Loop,
        server: Server,
        readiness: Readiness,
        *,
        log: Callable[[str], None],
        missed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._port = server.port if server.socket_path is None else 0
        self._readiness = readiness
        self._log = log
        self._missed = missed
        self._elsewhere = Elsewhere()
        self._is_over = False

    def why_not(self, what: str, processes: list[Process] | None) -> str:
        """Return why a start failed: `what` happened. `processes` are the server's, None if
        everything that listens in this network is its."""
        found = listeners.describe(self._misplaced(processes))
        return readiness.failure(self._readiness, what, self._port, found)

    def look(self, processes: list[Process]) -> None:
        """Look once; for a call every second. Says where the server listens, and asks there."""
        if self._is_over or self._readiness.is_ready:
            return
        is_refused = self._readiness.last.text == REFUSED
        found = self._misplaced(processes) if is_refused else []
        if not self._elsewhere.has_settled(self._loop.clock(), found, cpu_s(processes)):
            return
        self._is_over = True
        self._log(readiness.misplaced(self._port, listeners.describe(found)))
        reached = {one.port for one in found if one.host in REACHED}
        for port in sorted(reached)[: listeners.SHOWN_MAX]:
            Probe(self._loop, Server(port, None, is_shared=False), "/", self._answered)

    def _misplaced(self, processes: list[Process] | None) -> list[Listener]:
        found = listeners.listeners()
        if processes is not None:
            own = listeners.sockets_of(processes)
            found = [one for one in found if one.inode in own]
        return misplaced(found, self._port)

    def _answered(self, answer: Answer) -> None:
        if answer.status and not self._readiness.is_ready:
            self._missed()
