"""Admission of requests by a replica. Pure: no sockets, no threads.

Invariant: over all links, at most `limit` accepted requests are unanswered. A link refused because
of this limit gets a WINDOW frame when capacity is free: one link per free place, in order of
refusal, and all of them if no request is unanswered, because no later answer would trigger the
frame.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from runtime_image.contract.link import NotStarted
from runtime_image.link.meta import RequestMeta


@dataclass(slots=True, eq=False)
class Job:
    """One unanswered request, with `id` on `link`.

    A memoryview body refers to its gateway's memory until the job is answered.
    `cancelled` may be set at any time; such a job is not run.
    """

    link: int
    id: int
    meta: RequestMeta
    body: bytes | bytearray | memoryview
    timeout_s: float
    arrived_s: float
    alone: bool = False
    cancelled: bool = False


@dataclass(slots=True)
class Intake:
    """Accepts jobs up to `limit` and returns them in order of arrival. `now` is monotonic
    seconds."""

    limit: int
    draining: bool = False
    last_end_s: float = 0.0
    waiting: deque[Job] = field(default_factory=deque)
    owed: dict[tuple[int, int], Job] = field(default_factory=dict)
    last_accepted: dict[int, int] = field(default_factory=dict)
    turned_away: dict[int, None] = field(default_factory=dict)

    def accept(self, job: Job) -> NotStarted | None:
        """Accept `job`, or return the reason to refuse it. Raises KeyError if its id is in use."""
        key = (job.link, job.id)
        if key in self.owed:
            raise KeyError(job.id)
        if self.draining:
            return NotStarted.DRAINING
        if len(self.owed) >= self.limit:
            self.turned_away[job.link] = None
            return NotStarted.FULL
        self.owed[key] = job
        self.last_accepted[job.link] = job.id
        self.waiting.append(job)
        return None

    def take(self, most: int) -> list[Job]:
        """Return the next jobs, at most `most`; a job that must run alone is returned alone."""
        taken: list[Job] = []
        while self.waiting and len(taken) < most:
            if self.waiting[0].alone and taken:
                break
            job = self.waiting.popleft()
            taken.append(job)
            if job.alone:
                break
        return taken

    def take_all(self) -> list[Job]:
        """Remove and return all waiting jobs."""
        jobs = list(self.waiting)
        self.waiting.clear()
        return jobs

    def finish(self, job: Job, now: float) -> list[int]:
        """Record that `job` is answered; return the links that are due a WINDOW frame."""
        self.owed.pop((job.link, job.id), None)
        self.last_end_s = now
        if not self.turned_away:
            return []
        room = self.limit - len(self.owed) if self.owed else len(self.turned_away)
        due = list(self.turned_away)[:room]
        for link in due:
            del self.turned_away[link]
        return due

    def cancel(self, link: int, id: int) -> Job | None:
        """Mark a request as cancelled; return its job, None if it is answered already."""
        job = self.owed.get((link, id))
        if job is not None:
            job.cancelled = True
        return job

    def lose_link(self, link: int) -> None:
        """Cancel all jobs of a lost link."""
        self.last_accepted.pop(link, None)
        self.turned_away.pop(link, None)
        for (owner, _), job in self.owed.items():
            if owner == link:
                job.cancelled = True

    def idle_s(self, now: float) -> float:
        """Return the seconds since the last answer; 0 while a request is unanswered."""
        return 0.0 if self.owed else max(0.0, now - self.last_end_s)
