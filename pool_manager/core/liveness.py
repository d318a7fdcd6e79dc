"""Whether a ready server still works: one table over what its sidecar reads each second. Pure.

A server may be silent for minutes and be healthy: a long prefill, a picture, a compilation. So
silence alone replaces none. What it takes is a second witness: a probe of its readiness, the golden
sample, the server's own counter, or idle hardware. How long a silence is suspicious is learnt from
the silences of the same revision that ended well (`Silences.limit_s`).

A *silence* is the time in which exchanges were open and none moved: no byte of an answer came, none
of a request was taken, none ended, and the counter stood still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import Final, Literal, NamedTuple

from runtime_image.contract.health import READ_S, Ready
from runtime_image.contract.samples import SampleVerdict

LIMIT_MIN_S: Final = 30.0
LIMIT_FACTOR: Final = 2.0
"""The limit is this multiple of the longest silences that ended well."""
QUANTILE: Final = 0.999
SILENCES_MAX: Final = 500
"""Last silences of a revision that are kept."""
KNOWN_MIN: Final = 50
"""Silences from which on the limit is learnt."""
UNLEARNT_S: Final = 300.0
"""The limit before that."""
NEW_S: Final = 600.0
"""Seconds after a start in which the limit is NEW_FACTOR times as long: kernels are compiled."""
NEW_FACTOR: Final = 4.0
LATE_S: Final = 5.0
"""A reading that comes later than this proves nothing: the host slept, or a disk stalled."""
PROBES_MIN: Final = 3
"""Probes in a row that must go wrong."""
IDLE_CPU: Final = 0.05
"""Share of a core below which a server's processes are idle."""
IDLE_READINGS: Final = 10
"""Readings in a row with idle processes and an idle GPU that make the hardware idle."""
BUSY_FACTOR: Final = 3.0
"""With busy hardware, the limit is this many times as long."""
LONGEST_FACTOR: Final = 1.5
"""And at least this many times the longest silence that ended well."""

Hang = Literal["replace", "report", "off"]
"""What happens to a server that does not answer any more."""


class Verdict(StrEnum):
    """What a reading says."""

    RESTARTED = "restarted"
    """Nothing: the clocks start anew."""
    MOVED = "moved"
    """The server works."""
    WAITING = "waiting"
    """The silence is below its limit."""
    HELD_UP = "held up"
    """The server answers its sample: the limit doubles for this silence."""
    REPORT = "report"
    """The silence is above its limit, and there is no proof that the server hangs."""
    REPLACE = "replace"


class Cause(StrEnum):
    """Why a server is replaced; also a label of metrics."""

    REFUSED = "refused"
    """It does not listen any more."""
    FAILING = "failing"
    """Its readiness probe gets errors, or no answer but the end of its connection."""
    UNREADY = "unready"
    """Its readiness probe gets nothing, and its processes are idle."""
    WRONG = "wrong_sample"
    """It answers its golden sample wrongly."""
    IDLE = "hung_idle"
    """Its exchanges do not move, and its processes are idle."""
    STUCK = "hung_busy"
    """Its exchanges do not move, and its processes are busy."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a server; fields as in `contract.health.Health`."""

    open: int = 0
    moved: int = 0
    given: int = 0
    unread: bool = False
    counter: float | None = None
    cpu: float | None = None
    is_traced: bool = False
    probes: int = 0
    ready: Ready | None = None
    said: str = ""


class Silences:
    """The last silences of a revision that ended well, in seconds."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=SILENCES_MAX)
        self.longest_s = 0.0
        """The longest one of all, not only of the last ones: a stream has one each second, and a
        compilation once in hours."""

    def add(self, silent_s: float) -> None:
        """Add one."""
        self._last.append(silent_s)
        self.longest_s = max(self.longest_s, silent_s)

    @property
    def is_learnt(self) -> bool:
        """Whether there are enough of them for a limit."""
        return len(self._last) >= KNOWN_MIN

    def limit_s(self, age_s: float) -> float:
        """Return the silence that is suspicious for a server that is ready since `age_s`."""
        limit_s = UNLEARNT_S
        if self.is_learnt:
            rank = ceil(QUANTILE * len(self._last)) - 1
            limit_s = max(LIMIT_MIN_S, LIMIT_FACTOR * sorted(self._last)[rank])
        return limit_s * NEW_FACTOR if age_s < NEW_S else limit_s


class Facts(NamedTuple):
    """What is known about a server at one reading. Times in seconds."""

    is_traced: bool = False
    is_late: bool = False
    """Whether the reading came LATE_S late, or is the first one."""
    is_open: bool = True
    """Whether exchanges are open."""
    has_moved: bool = False
    """Whether an exchange moved since the last reading."""
    is_unread: bool = False
    """Whether bytes of the server wait for a gateway or client that does not read."""
    has_counter: bool = False
    """Whether the server's counter has been read."""
    has_counted: bool = False
    """Whether it moved since the last reading."""
    ready: Ready | None = None
    """Result of the last probe."""
    bad_probes: int = 0
    """Number of probes in a row that went wrong, the last one included."""
    silent_s: float = 0.0
    limit_s: float = UNLEARNT_S
    """The limit of this silence."""
    sample: SampleVerdict = SampleVerdict.NONE
    is_idle: bool = False
    """Whether its processes and its GPU were idle for IDLE_READINGS."""
    is_learnt: bool = False
    longest_s: float = 0.0
    """The longest silence that ended well."""
    step_s: float = 900.0
    """Longest time within which a healthy engine moves its counter."""


class Row(NamedTuple):
    """One row of the table: what is said where `applies`."""

    applies: Callable[[Facts], bool]
    verdict: Verdict
    text: str = ""
    cause: Cause | None = None


def _went_wrong(it: Facts, ready: Ready) -> bool:
    return it.ready is ready and it.bad_probes >= PROBES_MIN


_SILENT: Final = "nothing has moved for {silent_s:.0f} s (limit {limit_s:.0f} s)"

ROWS: Final = (
    # 1, 2. The reading proves nothing.
    Row(lambda it: it.is_traced, Verdict.RESTARTED),
    Row(lambda it: it.is_late, Verdict.RESTARTED),
    # 3. Nobody listens any more. Streams may go on, new calls cannot.
    Row(
        lambda it: _went_wrong(it, Ready.REFUSED),
        Verdict.REPLACE,
        "it refuses connections ({said})",
        Cause.REFUSED,
    ),
    # 4-6. It works, or it is the gateway or the client that does not read.
    Row(lambda it: it.has_moved, Verdict.MOVED),
    Row(lambda it: it.is_unread, Verdict.RESTARTED),
    Row(lambda it: it.has_counted, Verdict.MOVED),
    # 7, 8. A probe after a failed exchange, and nothing moves. A server with one thread answers no
    # probe while it computes: so no answer counts only where nothing computes.
    Row(
        lambda it: _went_wrong(it, Ready.FAILING),
        Verdict.REPLACE,
        "its readiness probe fails ({said})",
        Cause.FAILING,
    ),
    Row(
        lambda it: _went_wrong(it, Ready.SILENT) and it.is_idle,
        Verdict.REPLACE,
        "its readiness probe gets no answer ({said}), and its processes are idle",
        Cause.UNREADY,
    ),
    # 9, 10. Nobody waits for it, or not for long.
    Row(lambda it: not it.is_open, Verdict.RESTARTED),
    Row(lambda it: it.silent_s < it.limit_s, Verdict.WAITING),
    # 11, 12. The sample decides.
    Row(lambda it: it.sample is SampleVerdict.RIGHT, Verdict.HELD_UP),
    Row(
        lambda it: it.sample is SampleVerdict.WRONG,
        Verdict.REPLACE,
        f"{_SILENT}, and it answers its golden sample wrongly",
        Cause.WRONG,
    ),
    # 13. Silence alone replaces nothing.
    Row(
        lambda it: it.sample is SampleVerdict.NONE and not it.has_counter,
        Verdict.REPORT,
        f"{_SILENT}; nothing proves that it hangs, as it has no counter in [health]",
    ),
    # 14. It does not answer its sample, or its counter stands still, and nothing computes.
    Row(
        lambda it: it.is_idle,
        Verdict.REPLACE,
        f"{_SILENT}, and its processes are idle",
        Cause.IDLE,
    ),
    # 15, 16. Something computes, and the counter stands still for longer than the longest step.
    Row(
        lambda it: it.has_counter and it.silent_s >= max(BUSY_FACTOR * it.limit_s, it.step_s),
        Verdict.REPLACE,
        f"{_SILENT}, nor has its counter, though its processes are busy",
        Cause.STUCK,
    ),
    Row(lambda it: it.has_counter, Verdict.REPORT, f"{_SILENT}, but its processes are busy"),
    # 17-19. Something computes, and there is no counter: only what was learnt tells, and not even
    # that before UNLEARNT_S: a server of short answers may compile for minutes, for the first time.
    Row(
        lambda it: not it.is_learnt,
        Verdict.REPORT,
        f"{_SILENT}; its processes are busy, and how long its silences are is not learnt yet",
    ),
    Row(
        lambda it: (
            it.silent_s >= max(BUSY_FACTOR * it.limit_s, LONGEST_FACTOR * it.longest_s, UNLEARNT_S)
        ),
        Verdict.REPLACE,
        f"{_SILENT}, though its processes are busy",
        Cause.STUCK,
    ),
    Row(lambda _: True, Verdict.REPORT, f"{_SILENT}, but its processes are busy"),
)


def decide(facts: Facts) -> Row:
    """Return the first row that applies."""
    return next(row for row in ROWS if row.applies(facts))


class Judgement(NamedTuple):
    """What a reading says; `text` is the reason of REPORT and REPLACE."""

    verdict: Verdict
    cause: Cause | None
    text: str


@dataclass(slots=True)
class Watch:
    """The clocks of one ready replica. Times are monotonic seconds."""

    ready_s: float
    """When it became ready."""
    read_s: float | None = None
    """When it was read last."""
    moved_s: float = 0.0
    """When the present silence began."""
    is_open: bool = False
    """Whether exchanges were open at the last reading."""
    is_right: bool = False
    """Whether the last probe was answered rightly."""
    _last: Reading = field(default_factory=Reading)
    _bad_probes: int = 0
    _idle_readings: int = 0
    _held_up: float = 1.0
    """Factor of the limit in this silence."""

    def silent_s(self, now: float) -> float:
        """Return the length of the present silence; 0 without open exchanges."""
        return now - self.moved_s if self.is_open else 0.0

    def is_watched(self, now: float) -> bool:
        """Whether exchanges are open, as far as a reading in time says."""
        return self.is_open and not self._is_late(now)

    def _is_late(self, now: float) -> bool:
        return self.read_s is None or now - self.read_s > READ_S + LATE_S

    def read(
        self,
        reading: Reading,
        now: float,
        silences: Silences,
        *,
        gpu: float | None = 0.0,
        sample: SampleVerdict = SampleVerdict.NONE,
        step_s: float = 900.0,
    ) -> Judgement:
        """Judge a reading. `gpu` is the use of its GPU, 0 without one, None if unknown. A silence
        that ends is added to `silences`."""
        is_late = self._is_late(now)
        if is_late or reading.is_traced:
            self._bad_probes = self._idle_readings = 0
        last, self._last, self.read_s = self._last, reading, now
        self._note_probe(reading, last)
        is_idle = reading.cpu is not None and reading.cpu < IDLE_CPU and gpu == 0.0
        self._idle_readings = self._idle_readings + 1 if is_idle else 0
        silent_s, limit_s = now - self.moved_s, self._held_up
        if silent_s >= LIMIT_MIN_S:  # below, no limit matters
            limit_s *= silences.limit_s(now - self.ready_s)
        else:
            limit_s *= LIMIT_MIN_S
        facts = Facts(
            is_traced=reading.is_traced,
            is_late=is_late,
            is_open=reading.open > 0,
            has_moved=reading.moved != last.moved,
            is_unread=reading.unread,
            has_counter=reading.counter is not None,
            has_counted=None not in (last.counter, reading.counter)
            and reading.counter != last.counter,
            ready=reading.ready,
            bad_probes=self._bad_probes,
            silent_s=silent_s,
            limit_s=limit_s,
            sample=sample,
            is_idle=self._idle_readings >= IDLE_READINGS,
            is_learnt=silences.is_learnt,
            longest_s=silences.longest_s,
            step_s=step_s,
        )
        row = decide(facts)
        self._turn(facts, row.verdict, now, silences)
        self.is_open = facts.is_open
        text = row.text.format(said=reading.said, **facts._asdict())
        return Judgement(row.verdict, row.cause, text)

    def _note_probe(self, reading: Reading, last: Reading) -> None:
        """Count probes that went wrong in a row, whatever they met. Exchanges that move show that
        errors of a probe mean little; a server that refuses connections is found all the same."""
        self.is_right = reading.ready is Ready.RIGHT
        if self.is_right:
            self._bad_probes = 0
        elif reading.probes != last.probes:
            self._bad_probes += 1
        if reading.moved != last.moved and reading.ready is not Ready.REFUSED:
            self._bad_probes = min(self._bad_probes, 1)

    def _turn(self, facts: Facts, verdict: Verdict, now: float, silences: Silences) -> None:
        """Turn the clocks. What moved is noted whatever the verdict: streams of a server that
        refuses connections may go on."""
        is_over = facts.has_moved or facts.has_counted
        if is_over and verdict is not Verdict.RESTARTED and self.is_open:
            silences.add(facts.silent_s)
        if is_over or verdict is Verdict.RESTARTED:
            self.moved_s, self._held_up = now, 1.0
        elif verdict is Verdict.HELD_UP:
            self._held_up *= 2.0
