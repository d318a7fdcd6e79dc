"""Which requests a replica takes, owes and gives up. Pure: no sockets, no threads.

Invariant: over all links no more than `limit` requests are owed at any time, and a link that was
turned away for lack of room is told as soon as there is some: one link for each free place, the
first first, and all of them when nothing is owed, since no other end would come to tell them by.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from runtime_image.contract.link import NotStarted
from runtime_image.link.meta import RequestMeta


@dataclass(slots=True, eq=False)
class Job:
    """One request a replica owes an answer. `link` and `id` are where the answer goes.

    A body that is a memoryview lies in its gateway's memory until the job is answered.
    `cancelled` may be set at any time; whoever runs jobs leaves such a one out.
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
    """Accepts, hands out in order of arrival, and forgets. `now` is monotonic seconds."""

    limit: int
    draining: bool = False
    last_end_s: float = 0.0
    waiting: deque[Job] = field(default_factory=deque)
    owed: dict[tuple[int, int], Job] = field(default_factory=dict)
    last_accepted: dict[int, int] = field(default_factory=dict)
    turned_away: dict[int, None] = field(default_factory=dict)

    def accept(self, job: Job) -> NotStarted | None:
        """Owe an answer to `job`, or say why not. Raises KeyError where its id is in use."""
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
        """The next jobs to run together, at most `most`; one that must be alone comes alone."""
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
        """Every job that waits."""
        jobs = list(self.waiting)
        self.waiting.clear()
        return jobs

    def finish(self, job: Job, now: float) -> list[int]:
        """`job` is answered; the links to tell that there is room again."""
        self.owed.pop((job.link, job.id), None)
        self.last_end_s = now
        if not self.turned_away:
            return []
        room = self.limit - len(self.owed) if self.owed else len(self.turned_away)
        told = list(self.turned_away)[:room]
        for link in told:
            del self.turned_away[link]
        return told

    def cancel(self, link: int, id: int) -> Job | None:
        """Mark the request as not wanted any more; the job if it is still owed."""
        job = self.owed.get((link, id))
        if job is not None:
            job.cancelled = True
        return job

    def lose_link(self, link: int) -> None:
        """Nobody waits for this link's answers any more."""
        self.last_accepted.pop(link, None)
        self.turned_away.pop(link, None)
        for (owner, _), job in self.owed.items():
            if owner == link:
                job.cancelled = True

    def idle_s(self, now: float) -> float:
        """Seconds without an owed request; 0 while there is one."""
        return 0.0 if self.owed else max(0.0, now - self.last_end_s)
