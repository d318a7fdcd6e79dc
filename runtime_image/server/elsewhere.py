"""Whether a starting server listens somewhere else than it should.

A server may open other ports while it starts: for metrics, for its own processes. So it has only
missed its port if it stays with the same addresses, has nothing more to do, and answers there.

The processes of a server that is apart are not seen. It has nothing more to do if the whole machine
has not, or after APART_SETTLED_S; and its answer must be one that would make it ready.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from runtime_image.contract.server import ServerSpec
from runtime_image.proc import activity
from runtime_image.replica.loop import Loop
from runtime_image.server import listeners, readiness
from runtime_image.server.connecting import REFUSED, Server
from runtime_image.server.listeners import Listener
from runtime_image.server.probe import Probe
from runtime_image.server.process_tree import Process
from runtime_image.server.readiness import Answer, Readiness

SETTLED_S: Final = 10.0
"""Seconds after which a server with the same addresses has settled."""
BUSY: Final = 0.25
"""Share of a core above which a server still starts."""
MACHINE_BUSY: Final = 0.5
"""The same for all processes of the machine, with their waits for disks."""
APART_SETTLED_S: Final = 60.0
"""Seconds after which a server that is apart has settled, however busy the machine is."""
REACHED: Final = ("0.0.0.0", "127.0.0.1", "::", "::1", "::ffff:0.0.0.0", "::ffff:127.0.0.1")  # noqa: S104 - compared
"""Addresses of a listener that the sidecar reaches."""


def misplaced(own: Iterable[Listener], port: int) -> list[Listener]:
    """Return those of the server's listeners that are not at the expected port; 0 for a socket."""
    return sorted(one for one in own if one.port != port or one.host not in REACHED)


def strangers_of(spec: ServerSpec) -> str:
    """Return who else reaches a server that is apart, "" if nobody does.

    On the engine's network everybody on this machine and in other containers does, except where it
    listens on the loopback interface.
    """
    if not spec.is_apart or spec.network == "none":
        return ""
    found = [one for one in listeners.others() if not one.is_local]
    if not found:
        return ""
    return (
        f"local users and other containers can reach the server at {listeners.describe(found)}; one"
        " that listens on 127.0.0.1 is reached by its calls only"
    )


class Elsewhere:
    """The addresses of one start, seen about once a second. Pure; `now` is monotonic seconds."""

    def __init__(self, busy: float = BUSY, longest_s: float = math.inf) -> None:
        """`busy` is the share of a core above which the server still starts, until it has had the
        same addresses for `longest_s`."""
        self._busy = busy
        self._longest_s = longest_s
        self._found: list[Listener] = []
        self._same_since_s = 0.0
        self._calm_since_s = 0.0
        self._seen_s = 0.0
        self._cpu_s = 0.0
        self._was_waiting = False

    def has_settled(
        self, now: float, found: list[Listener], cpu_s: float, *, is_waiting: bool
    ) -> bool:
        """Whether the server has had these addresses for SETTLED_S, with little else to do, or for
        the longest time.

        `found` is from `misplaced`, empty if the expected port does not refuse connections;
        `cpu_s` and `is_waiting` are those of all its processes, as of `proc.activity`.
        """
        is_busy = cpu_s - self._cpu_s > self._busy * (now - self._seen_s)
        is_busy = is_busy or (is_waiting and self._was_waiting)
        if found != self._found:
            self._same_since_s = self._calm_since_s = now
        elif is_busy:
            self._calm_since_s = now
        self._found, self._seen_s, self._cpu_s = found, now, cpu_s
        self._was_waiting = is_waiting
        is_calm = now - self._calm_since_s >= SETTLED_S
        return bool(found) and (is_calm or now - self._same_since_s >= self._longest_s)


def machine_cpu_s(text: str | None = None) -> float:
    """Return the CPU time of all processes of this machine in seconds, with their waits for disks.
    `text` is /proc/stat (proc_stat(5)), which is the machine's in every container, or is read; 0
    if it says nothing."""
    try:
        row = (Path("/proc/stat").read_text() if text is None else text).partition("\n")[0].split()
        user, nice, system, _idle, waits, irq, soft_irq = map(int, row[1:8])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + waits + irq + soft_irq) / os.sysconf("SC_CLK_TCK")


class PortWatch:
    """Looks where a starting server listens. `missed(what)` is called with what has happened if the
    server has missed its port."""

    def __init__(
        self,
        loop: Loop,
        server: Server,
        readiness: Readiness,
        *,
        is_apart: bool,
        log: Callable[[str], None],
        missed: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._port = server.port if server.socket_path is None else 0
        self._at = server.at
        self._readiness = readiness
        self._is_apart = is_apart
        self._log = log
        self._missed = missed
        limits = (MACHINE_BUSY, APART_SETTLED_S) if is_apart else (BUSY, math.inf)
        self._elsewhere = Elsewhere(*limits)
        self._is_over = False

    def why_not(self, what: str, processes: list[Process] | None) -> str:
        """Return why a start failed: `what` happened. `processes` are the server's, None if
        everything that listens in this network is its."""
        found = listeners.describe(self._misplaced(processes))
        return readiness.failure(self._readiness, what, self._port, found)

    def look(self, processes: list[Process] | None) -> None:
        """Look once; for a call every second. Says where the server listens, and asks there.
        `processes` as for `why_not`."""
        if self._is_over or self._readiness.is_ready:
            return
        is_refused = self._readiness.last.text == REFUSED
        found = self._misplaced(processes) if is_refused else []
        if processes is None:
            used_s, is_waiting = machine_cpu_s(), False
        else:
            used_s, is_waiting, _ = activity(one.folder for one in processes if found)
        now = self._loop.clock()
        if not self._elsewhere.has_settled(now, found, used_s, is_waiting=is_waiting):
            return
        self._is_over = True
        self._log(readiness.misplaced(self._port, listeners.describe(found)))
        reached = {one.port for one in found if one.host in REACHED}
        path = self._readiness.path if self._is_apart else "/"
        for port in sorted(reached)[: listeners.SHOWN_MAX]:
            Probe(self._loop, self._at(port), path, partial(self._answered, port))

    def _misplaced(self, processes: list[Process] | None) -> list[Listener]:
        found = listeners.others()
        if processes is not None:
            own = listeners.sockets_of(processes)
            found = [one for one in found if one.inode in own]
        return misplaced(found, self._port)

    def _answered(self, port: int, answer: Answer) -> None:
        if self._readiness.is_ready or not answer.status:
            return
        if not self._is_apart:
            self._missed(f"not ready, and idle for {SETTLED_S:g} s")
        elif self._readiness.accepts(answer):
            self._missed(f"not ready, but port {port} answers: is it the server's? (--port {port})")
