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
from itertools import repeat
from math import ceil
from typing import Final, Literal, NamedTuple

from runtime_image.contract.health import READ_S, Learnt, Ready
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
    ASK = "ask"
    """The silence has reached its limit: the golden sample is to be asked."""
    HELD_UP = "held up"
    """The server answers its sample: the limit of this silence is twice its length."""
    REPORT = "report"
    """The silence is above its limit, and there is no proof that the server hangs."""
    REPLACE = "replace"
    """It hangs, or answers wrong: another replica is to take its place."""


class Cause(StrEnum):
    """Why a server is replaced; also a label of metrics."""

    REFUSED = "refused"
    """It does not listen any more."""
    FAILING = "failing"
    """Its readiness probe gets errors, or no answer but the end of its connection."""
    UNREADY = "unready"
    """Its readiness probe gets nothing, and its processes are idle."""
    WRONG = "wrong_sample"
    """It answers its golden sample wrong."""
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
            limit_s = max(LIMIT_MIN_S, LIMIT_FACTOR * self._usual_s())
        return limit_s * NEW_FACTOR if age_s < NEW_S else limit_s

    def _usual_s(self) -> float:
        """Return the quantile of the last ones, 0 for none."""
        rank = ceil(QUANTILE * len(self._last)) - 1
        return sorted(self._last)[rank] if self._last else 0.0

    def learnt(self) -> Learnt:
        """Return what `restore` needs for the same limits."""
        return Learnt(len(self._last), self._usual_s(), self.longest_s)

    def restore(self, learnt: Learnt) -> None:
        """Take over what an earlier manager had learnt. It is older than all that is known here,
        and no limit becomes shorter than it was there."""
        missing = min(learnt.known, SILENCES_MAX) - len(self._last)
        self._last.extendleft(repeat(learnt.usual_s, max(0, missing)))
        if learnt.known and self._usual_s() < learnt.usual_s:
            self._last.append(learnt.usual_s)
        self.longest_s = max(self.longest_s, learnt.longest_s)


class Facts(NamedTuple):
    """What is known about a server at one reading. Times in seconds."""

    is_traced: bool = False
    """Whether a debugger traces one of its processes."""
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
    """How long nothing has moved."""
    limit_s: float = UNLEARNT_S
    """The limit of this silence."""
    is_due: bool = False
    """Whether the golden sample is to be asked once the silence is over its limit."""
    is_asked: bool = False
    """Whether its answer is awaited."""
    sample: SampleVerdict = SampleVerdict.NONE
    """What it showed in this silence, NONE before it was asked."""
    is_idle: bool = False
    """Whether its processes and its GPU were idle for IDLE_READINGS."""
    is_learnt: bool = False
    """Whether enough silences of the revision are known for a limit of its own."""
    longest_s: float = 0.0
    """The longest silence that ended well."""
    step_s: float = 900.0
    """Longest time within which a healthy engine that computes shows progress."""


class Row(NamedTuple):
    """One row of the table: what is said where `applies`."""

    applies: Callable[[Facts], bool]
    verdict: Verdict
    text: str = ""
    """Reason of REPORT and REPLACE, with names of facts in braces, `said` and `shown`."""
    cause: Cause | None = None
    """That of REPLACE."""


def _went_wrong(it: Facts, ready: Ready) -> bool:
    return it.ready is ready and it.bad_probes >= PROBES_MIN


_SILENT: Final = "nothing has moved for {silent_s:.0f} s (limit {limit_s:.0f} s){unanswered}"
_UNANSWERED: Final = ", its golden sample is not answered ({shown})"

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
    # 9. It answers its sample wrong, twice. That is asked in a silence, or of an idle server.
    Row(
        lambda it: it.sample is SampleVerdict.WRONG,
        Verdict.REPLACE,
        "it answers its golden sample wrong: {shown}",
        Cause.WRONG,
    ),
    # 10, 11. Nobody waits for it, or not for long.
    Row(lambda it: not it.is_open, Verdict.RESTARTED),
    Row(lambda it: it.silent_s < it.limit_s, Verdict.WAITING),
    # 12-14. The sample decides.
    Row(lambda it: it.is_asked, Verdict.WAITING),
    Row(lambda it: it.is_due, Verdict.ASK),
    Row(lambda it: it.sample is SampleVerdict.RIGHT, Verdict.HELD_UP),
    # 15. Silence alone replaces nothing.
    Row(
        lambda it: it.sample is SampleVerdict.NONE and not it.has_counter,
        Verdict.REPORT,
        _SILENT + "; nothing proves that it hangs: it has no counter in [health], and {shown}",
    ),
    # 16. It does not answer its sample, or its counter stands still, and nothing computes.
    Row(
        lambda it: it.is_idle,
        Verdict.REPLACE,
        f"{_SILENT}, and its processes are idle",
        Cause.IDLE,
    ),
    # 17, 18. Something computes, and the counter stands still for longer than the longest step.
    Row(
        lambda it: it.has_counter and it.silent_s >= max(BUSY_FACTOR * it.limit_s, it.step_s),
        Verdict.REPLACE,
        f"{_SILENT}, nor has its counter, though its processes are busy",
        Cause.STUCK,
    ),
    Row(lambda it: it.has_counter, Verdict.REPORT, f"{_SILENT}, but its processes are busy"),
    # 19-21. Something computes, and there is no counter: only what was learnt tells, and not even
    # that before the longest step: a server of short answers may compile for minutes, for the first
    # time. UNLEARNT_S is for a preset of `step_s` whose counter is not served.
    Row(
        lambda it: not it.is_learnt,
        Verdict.REPORT,
        f"{_SILENT}; its processes are busy, and how long its silences are is not learnt yet",
    ),
    Row(
        lambda it: (
            it.silent_s
            >= max(BUSY_FACTOR * it.limit_s, LONGEST_FACTOR * it.longest_s, it.step_s, UNLEARNT_S)
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


def judge(facts: Facts, said: str = "", shown: str = "") -> Judgement:
    """Judge a server. `said` is what its last probe met, `shown` what its golden sample showed."""
    row = decide(facts)
    is_unanswered = facts.sample is SampleVerdict.NO_ANSWER
    unanswered = _UNANSWERED.format(shown=shown) if is_unanswered else ""
    text = row.text.format(said=said, shown=shown, unanswered=unanswered, **facts._asdict())
    return Judgement(row.verdict, row.cause, text)


def judge_idle(sample: SampleVerdict, shown: str) -> Judgement:
    """Judge a server without exchanges by its golden sample alone."""
    return judge(Facts(is_open=False, sample=sample), shown=shown)


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
    _held_up_s: float = 0.0
    """Limit of this silence at least, since the golden sample was answered right."""
    _asked_s: float | None = None
    """When the silence began in which the golden sample is being asked."""
    _ask_from_s: float = 0.0
    """Length of this silence from which on it is asked again: twice that of the last time."""
    _sample: SampleVerdict = SampleVerdict.NONE
    """What it showed in this silence."""
    _shown: str = ""
    _was_busy: bool = False
    """Whether the hardware was busy at a reading since it was asked."""

    def sampled(self, verdict: SampleVerdict, shown: str) -> None:
        """Note what the golden sample showed that ASK had asked; `shown` are the words for it. In
        another silence than the one in which it was asked it says nothing."""
        asked_s, self._asked_s = self._asked_s, None
        if asked_s == self.moved_s:
            self._sample, self._shown = verdict, shown

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
        step_s: float = 900.0,
    ) -> Judgement:
        """Judge a reading. `gpu` is the use of its GPU, 0 without one, None if unknown. A silence
        that ends is added to `silences`. After ASK, `sampled` has to follow."""
        is_late = self._is_late(now)
        if is_late or reading.is_traced:
            self._bad_probes = self._idle_readings = 0
        last, self._last, self.read_s = self._last, reading, now
        self._note_probe(reading, last)
        is_idle = reading.cpu is not None and reading.cpu < IDLE_CPU and gpu == 0.0
        self._idle_readings = self._idle_readings + 1 if is_idle else 0
        self._was_busy = self._was_busy or not is_idle
        silent_s, limit_s = now - self.moved_s, LIMIT_MIN_S
        if silent_s >= LIMIT_MIN_S:  # below, no limit matters
            limit_s = max(silences.limit_s(now - self.ready_s), self._held_up_s)
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
            is_due=silent_s >= self._ask_from_s,
            is_asked=self._asked_s is not None,
            sample=self._fresh_sample(),
            is_idle=self._is_idle,
            is_learnt=silences.is_learnt,
            longest_s=silences.longest_s,
            step_s=step_s,
        )
        judged = judge(facts, reading.said, self._shown)
        self._turn(facts, judged.verdict, now, silences)
        self.is_open = facts.is_open
        return judged

    @property
    def _is_idle(self) -> bool:
        return self._idle_readings >= IDLE_READINGS

    def _fresh_sample(self) -> SampleVerdict:
        """Return what the sample shows now. That a server gave no answer while it was busy is no
        evidence once it is idle: what kept it busy may be over."""
        is_stale = self._is_idle and self._was_busy
        if self._sample is SampleVerdict.NO_ANSWER and is_stale:
            return SampleVerdict.NONE
        return self._sample

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
            self.moved_s, self._held_up_s, self._ask_from_s = now, 0.0, 0.0
            self._sample, self._shown = SampleVerdict.NONE, ""
        elif verdict is Verdict.ASK:
            self._asked_s, self._ask_from_s = self.moved_s, 2.0 * facts.silent_s
            self._was_busy = False
        elif verdict is Verdict.HELD_UP:
            self._held_up_s = self._ask_from_s
            self._sample = SampleVerdict.NONE
