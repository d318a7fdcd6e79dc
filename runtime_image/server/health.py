"""Reads how a ready server fares, and tells the manager, which decides.

A reading is taken each second while exchanges are open, and with each probe. Probes are sent only
after an exchange that went wrong: its connection was refused, closed without an answer, or it got
none in time. They go on until the server answers one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from runtime_image.contract.control import Loaded
from runtime_image.contract.health import LEARNT_SECONDS, READ_S, SAID_MAX, Health, Learnt, Ready
from runtime_image.contract.server import ServerSpec
from runtime_image.link.frames import Frame, LinkError
from runtime_image.proc import activity
from runtime_image.replica.loop import Loop
from runtime_image.server.connecting import Server
from runtime_image.server.counter import BODY_MAX, LIMIT_S, read_counter
from runtime_image.server.elsewhere import machine_cpu_s
from runtime_image.server.probe import Probe
from runtime_image.server.process_tree import Process
from runtime_image.server.progress import Progress
from runtime_image.server.readiness import Answer

ANSWER_S: Final = 5.0
"""Seconds that a probe waits: the machine may be busy."""
AGAIN_S: Final = 2.0
"""Seconds between two probes of a server that does not answer them."""
SLOW_AFTER: Final = 5
"""Probes in a row without an answer, after which the pause is SLOW_S."""
SLOW_S: Final = 10.0
REST_S: Final = 5.0
"""Seconds after an answered probe in which no other one is sent: servers log them."""
COUNT_AFTER_S: Final = 5.0
"""Seconds without progress after which the server's counter is read, and how often it is."""


class Exchanges(Protocol):
    """The open exchanges of a server."""

    progress: Progress

    def read_progress(self) -> tuple[int, bool]:
        """Read all of them; return their number, and whether bytes lie unread."""


class HealthMonitor:
    """Readings of one ready server, each passed to `tell`. Runs in the sidecar's loop."""

    def __init__(  # noqa: PLR0913 - the sidecar's parts that a reading needs
        self,
        loop: Loop,
        server: Server,
        spec: ServerSpec,
        path: str,
        exchanges: Exchanges,
        *,
        processes: Callable[[], list[Process]] | None,
        tell: Callable[[Health], None],
    ) -> None:
        """`path` is that of the readiness probe. `processes` are the server's, None if it is
        apart."""
        self._loop = loop
        self._server = server
        self._path = path
        self._exchanges = exchanges
        self._processes = processes
        self._spec = spec
        self._tell = tell
        self._probe: Probe | None = None
        self._probes = self._bad = 0
        self._is_due = False
        """Whether a probe is due, now or after a pause."""
        self._rests_until_s = 0.0
        self._last = Answer(0, "")
        self._counting: Probe | None = None
        self._counter: float | None = None
        self._count_s = 0.0
        """When the counter may be read again."""
        self._moved, self._moved_s = 0, loop.clock()
        self._cpu: tuple[float, float] | None = None
        """Total CPU seconds of the last reading, and its time."""
        self._was_open = self._was_waiting = False
        self._is_closed = self._is_resting = False
        self._ready_s = loop.clock()
        self._learnt: Learnt | None = None
        loop.after(READ_S, self._tick)

    def close(self) -> None:
        """End all probes."""
        self._is_closed = True
        self._end_probes()

    def _end_probes(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None
        if self._counting is not None:
            self._counting.close()
            self._counting = None

    # Parks

    def rest(self) -> None:
        """Take and tell no readings until `resume`: the server is parked or woken, which its engine
        may spend in silence, and some answer a probe only when they are awake."""
        self._is_resting = True
        self._is_due = self._was_open = False
        self._bad = 0
        self._cpu = None
        self._end_probes()

    def resume(self) -> None:
        """Take readings again; a silence begins now."""
        self._is_resting = False
        self._moved_s = self._loop.clock()

    # For the next manager

    def keep_learnt(self, frame: Frame) -> None:
        """Keep what the manager has learnt of the server's silences. Raises LinkError."""
        if len(frame.body) != LEARNT_SECONDS.size:
            raise LinkError(f"malformed LEARNT: a body of {len(frame.body)} bytes")
        self._learnt = Learnt(frame.aux, *LEARNT_SECONDS.unpack(frame.body))

    def recalled(self, loaded: Loaded) -> Loaded:
        """Return what LOADED said, with the server's age and what was learnt: for HELLO."""
        recalled: Loaded = {**loaded, "ready_for_s": self._loop.clock() - self._ready_s}
        if self._learnt is not None:
            recalled["learnt"] = self._learnt._asdict()
        return recalled

    # Probes

    def suspect(self) -> None:
        """Probe the server, unless that is being done: an exchange went wrong."""
        if self._is_closed or self._is_resting or self._is_due or self._probe is not None:
            return
        self._is_due = True
        self._loop.after(max(0.0, self._rests_until_s - self._loop.clock()), self._begin)

    def _begin(self) -> None:
        # A pause may end in a rest, or after one that began meanwhile.
        if self._is_closed or not self._is_due or self._probe is not None:
            return
        self._is_due = False
        self._probe = Probe(self._loop, self._server, self._path, self._answered, ANSWER_S)

    def _answered(self, answer: Answer) -> None:
        self._probe = None
        if self._is_closed:
            return
        self._probes += 1
        self._last = answer
        if answer.health is Ready.RIGHT:
            self._bad = 0
            self._rests_until_s = self._loop.clock() + REST_S
        else:
            self._bad += 1
            self._is_due = True
            self._loop.after(SLOW_S if self._bad >= SLOW_AFTER else AGAIN_S, self._begin)
        self._read()

    # Readings

    def _tick(self) -> None:
        if self._is_closed:
            return
        if not self._is_resting:
            self._read(is_regular=True)
        self._loop.after(READ_S, self._tick)

    def _read(self, *, is_regular: bool = False) -> None:
        """Take a reading. A regular one is told only if there is something to tell: open exchanges,
        the end of the last one, or a server that is being probed."""
        count, is_unread = self._exchanges.read_progress()
        now, moved = self._loop.clock(), self._exchanges.progress.moved
        has_moved = moved != self._moved or not count
        if has_moved:
            self._moved, self._moved_s = moved, now
        was_open, self._was_open = self._was_open, bool(count)
        if is_regular and not (count or was_open or self._bad):
            self._cpu = None
            return
        if count and now - self._moved_s >= COUNT_AFTER_S:
            self._count(now)
        cpu, is_traced = self._activity(now, is_needed=self._bad > 0 or not has_moved)
        self._tell(
            {
                "open": count,
                "moved": moved,
                "given": self._exchanges.progress.given,
                "unread": is_unread,
                "counter": self._counter,
                "cpu": cpu,
                "is_traced": is_traced,
                "probes": self._probes,
                "ready": self._last.health if self._probes else "",
                "said": self._last.text[:SAID_MAX],
            }
        )

    def _activity(self, now: float, *, is_needed: bool) -> tuple[float | None, bool]:
        """Return the CPU seconds per second since the last reading, and whether the server is
        traced. Not needed while it makes progress: a look at all processes costs time."""
        if not is_needed:
            self._cpu = None
            return None, False
        if self._processes is None:
            total_s, is_waiting, is_traced = machine_cpu_s(), False, False
        else:
            folders = [one.folder for one in self._processes()]
            total_s, is_waiting, is_traced = activity(folders)
        # A server that is woken by a probe may be runnable for a moment; one that computes and does
        # not get its turn is so at each look.
        was_waiting, self._was_waiting = self._was_waiting, is_waiting
        before, self._cpu = self._cpu, (total_s, now)
        if before is None or now <= before[1]:
            return None, is_traced
        share = max(0.0, total_s - before[0]) / (now - before[1])
        return (max(1.0, share) if is_waiting and was_waiting else share), is_traced

    def _count(self, now: float) -> None:
        """Read the server's counter, if it has one and that is due."""
        if not self._spec.counter or self._counting is not None or now < self._count_s:
            return
        self._count_s = now + COUNT_AFTER_S
        path = self._spec.metrics
        self._counting = Probe(
            self._loop, self._server, path, self._counted, LIMIT_S, body_max=BODY_MAX
        )

    def _counted(self, answer: Answer) -> None:
        self._counting = None
        value = read_counter(answer.whole, self._spec.counter)
        if value is not None:
            self._counter = value
