"""Starts: how far their fetches are, what readiness probes meet, and whether that is progress.

A server that has yet to load something may answer 404 at its readiness path for minutes, and is
left alone. One whose path is wrong answers so for ever, and does nothing else. The two are told
apart by what else happens in the meantime; what cannot be read ends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from runtime_image.contract.enrolment import FETCH_PATIENCE_S

NO_PROGRESS_S: Final = 60.0
"""A trial without progress ends after this long."""
NO_PROGRESS_WANTED_S: Final = 30.0
"""The same while calls of a function wait for its device. It leaves time for that function's start
within 55 s, the default wait budget of servers."""
WRONG: Final = frozenset({401, 403, 404, 405})
"""Statuses of a readiness path that is the wrong one, or is not for everybody. All others, and
refused connections, are usual while a server loads."""
IDLE_CPU: Final = 0.02
"""Share of a core up to which a server has nothing to do: answering the probes takes less."""
IDLE_BYTES_S: Final = 16 * 1024
"""Bytes read and written per second up to which a server has nothing to do: the probes'."""
IDLE_GPU_MIB: Final = 1.0
READ_S: Final = 5.0
"""Least seconds between two activities of a replica that are compared."""
READ_LATE_S: Final = 15.0
"""After a longer pause between two activities nothing is known of the time between."""
TOLD_AFTER_S: Final = 10.0
"""What the probes meet is told once it is the same for this long; most starts are shorter."""
_STEP_S: Final = 5
"""Seconds are told in steps, so that a text does not change with every report."""


class Activity(NamedTuple):
    """What a replica's server has done since its start, as far as it can be read."""

    cpu_s: float
    """CPU time of its processes in seconds. It falls when one of them ends."""
    io_bytes: int | None
    """Bytes that its processes have read and written, None if that cannot be read."""
    log_lines: int
    """Lines of its log, without those that name the path of the probe."""
    gpu_mib: float | None = None
    """MiB in use on its GPU, None without one."""
    log_tail: tuple[str, ...] = ()
    """The last lines of its log."""
    is_waiting: bool = False
    """Whether a thread is runnable or waits for a disk, as of `proc.activity`."""
    is_traced: bool = False
    """Whether a debugger traces one of its processes."""


@dataclass(frozen=True, slots=True)
class Probing:
    """The probes of one start, as last reported. Times are monotonic seconds."""

    path: str
    """The path of the readiness probe."""
    status: int
    """The status of the last answer, 0 without an HTTP answer."""
    answer: str
    """The last answer, or why there was none, in words."""
    since_s: float
    """Since when the answer is the same."""
    activity: Activity | None = None
    """The last activity that was read."""
    read_s: float = 0.0
    """When it was read."""
    idle_since_s: float | None = None
    """Since when the server has done nothing else, None while that is unknown."""


def folded(known: Probing | None, report: Probing, now: float) -> Probing:
    """Return what is known after a report, whose `activity` alone may be set, at `now`.

    (1) Nothing was read this time: what was read before stays.
    (2) The first activity, or the first after a long pause: idle from now on, at the earliest.
    (3) The server has done something since the last one: the same.
    (4) It has done nothing: idle as long as before.
    """
    if report.activity is None:  # (1)
        if known is None:
            return report
        kept = known.activity
        return replace(report, activity=kept, read_s=known.read_s, idle_since_s=known.idle_since_s)
    idle_since_s: float | None = now
    if known is not None and known.activity is not None:
        passed_s = now - known.read_s
        is_late = passed_s > READ_LATE_S  # (2)
        if not is_late and not has_moved(known.activity, report.activity, passed_s):  # (4)
            idle_since_s = known.idle_since_s  # else (3)
    return replace(report, read_s=now, idle_since_s=idle_since_s)


def has_moved(before: Activity, after: Activity, passed_s: float) -> bool:
    """Whether a server has done more in `passed_s` seconds than answer probes, or could not.

    (1) A debugger holds it, or it waits for the CPU or a disk both times: on a busy machine it may
    get nothing for long. (2) CPU time, or a process that has ended. (3) Bytes. (4) Lines of its
    log. (5) Memory of its GPU. What could not be read both times says nothing.
    """
    if after.is_traced or (before.is_waiting and after.is_waiting):  # (1)
        return True
    cpu_s = after.cpu_s - before.cpu_s
    if not 0.0 <= cpu_s <= IDLE_CPU * passed_s:  # (2)
        return True
    if after.io_bytes is not None and before.io_bytes is not None:  # (3)
        io_bytes = after.io_bytes - before.io_bytes
        if not 0 <= io_bytes <= IDLE_BYTES_S * passed_s:
            return True
    if after.log_lines != before.log_lines:  # (4)
        return True
    if after.gpu_mib is None or before.gpu_mib is None:  # (5)
        return False
    return abs(after.gpu_mib - before.gpu_mib) > IDLE_GPU_MIB


def is_hopeless(probing: Probing, now: float, *, is_wanted: bool) -> bool:
    """Whether a start makes no progress: the probes meet the same wrong status, and the server does
    nothing else, for the whole time. `is_wanted`: calls wait for its device."""
    if probing.status not in WRONG or probing.idle_since_s is None:
        return False
    if now - probing.read_s > READ_LATE_S:
        return False
    limit_s = NO_PROGRESS_WANTED_S if is_wanted else NO_PROGRESS_S
    return now - max(probing.since_s, probing.idle_since_s) >= limit_s


def met(probing: Probing) -> str:
    """Return what the probes meet, "404" or "connection refused"."""
    return str(probing.status) if probing.status else probing.answer


class Awaited(NamedTuple):
    """What a start waits for, and for how many seconds."""

    what: str
    seconds: float
    why: str = ""
    """Why it takes so long."""
    progress: str = ""
    """How far it is; stands for seconds and reason, and changes with every report."""

    def __str__(self) -> str:
        """Return all as one text, with the seconds in steps of _STEP_S."""
        if self.progress:
            return f"{self.what} {self.progress}"
        text = f"{self.what} for {int(self.seconds) // _STEP_S * _STEP_S} s"
        return f"{text}: {self.why}" if self.why else text


TEXT_MAX: Final = 400
"""Max characters of what an engine says that are kept."""


class EngineStep(NamedTuple):
    """What the engine of a host does for a start, as last reported."""

    text: str
    """In its own words, at most TEXT_MAX characters."""
    since_s: float
    """Since when the text is the same, in monotonic seconds."""

    def awaited(self, now: float) -> Awaited:
        """Return what is told of it: without the seconds, as a start is not looked at while nothing
        new is reported."""
        return Awaited("starting:", now - self.since_s, progress=self.text)


FETCH_STALL_S: Final = FETCH_PATIENCE_S + 20.0
"""Min seconds that a start has without progress of its fetch: its replica gives up before that, and
says why."""


@dataclass(frozen=True, slots=True)
class Fetching:
    """The fetch of a starting replica, as last reported; it is not complete."""

    done_bytes: int
    total_bytes: int
    seconds: float
    """Since it began."""
    counted_bytes: int = 0
    """`done_bytes` of the last report that began the time limit of the start anew."""

    @property
    def bytes_per_s(self) -> float:
        """Mean speed so far."""
        return self.done_bytes / max(self.seconds, 0.001)

    @property
    def left_s(self) -> float | None:
        """Seconds until it is complete at that speed, None before the first byte."""
        if not self.done_bytes:
            return None
        return (self.total_bytes - self.done_bytes) / self.bytes_per_s

    @property
    def awaited(self) -> Awaited:
        """What is told of it."""
        done, total, speed = (
            f"{number / 1e6:.0f}"
            for number in (self.done_bytes, self.total_bytes, self.bytes_per_s)
        )
        return Awaited("fetches", self.seconds, progress=f"{done} of {total} MB, {speed} MB/s")


def awaited(probing: Probing | None, now: float) -> Awaited | None:
    """Return what a starting server is waited for, None while its answer is new or unknown."""
    if probing is None or now - probing.since_s < TOLD_AFTER_S:
        return None
    what = f"waiting for GET {probing.path}: {met(probing)}"
    return Awaited(what, now - probing.since_s)


def hopeless_text(probing: Probing, now: float) -> str:
    """Return why a start without progress was ended, and what mends it."""
    idle_s = now - max(probing.since_s, probing.idle_since_s or 0.0)
    is_known = probing.activity is not None and probing.activity.io_bytes is not None
    io_text = " read and wrote nothing," if is_known else ""
    return (
        f"not ready: GET {probing.path} was answered with {met(probing)} for {idle_s:.0f} s."
        f" The server did nothing else: it used no CPU time,{io_text} and logged nothing;"
        f" expected a status from 200 to 399 for {probing.path}: name a path that answers so with"
        " --ready PATH, or [server] ready in function.toml"
    )
