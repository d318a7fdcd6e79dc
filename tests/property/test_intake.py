"""Property tests of the intake: any order of arrivals, runs, answers, cancels and lost links."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime_image.contract.link import NotStarted
from runtime_image.link.meta import RequestMeta
from runtime_image.replica.intake import Intake, Job

META = RequestMeta("application/json", "", -1, "")
LIMIT = 2
LINKS = st.integers(1, 5)


class Gateways(RuleBasedStateMachine):
    """Links that send, cancel and end, compared with the frames that each received."""

    def __init__(self) -> None:
        super().__init__()
        self.intake = Intake(LIMIT)
        self.ids = 0
        self.running: list[Job] = []
        self.refused: set[int] = set()
        """Links that got FULL and no WINDOW since."""

    @rule(link=LINKS, alone=st.booleans())
    def send(self, link: int, alone: bool) -> None:
        """A request is accepted exactly if there is room."""
        self.ids += 1
        had_room = len(self.intake.owed) < LIMIT
        job = Job(link, self.ids, META, b"", 60.0, 0.0, alone)

        said = self.intake.accept(job)

        if self.intake.draining:
            assert said is NotStarted.DRAINING
        elif had_room:
            assert said is None
        else:
            assert said is NotStarted.FULL
            self.refused.add(link)

    @precondition(lambda self: self.intake.waiting)
    @rule(most=st.integers(1, 5))
    def take(self, most: int) -> None:
        """Jobs are taken in order of arrival; a job marked alone is taken alone."""
        waiting = list(self.intake.waiting)

        taken = self.intake.take(most)

        assert taken == waiting[: len(taken)]
        assert 1 <= len(taken) <= most
        assert len(taken) == 1 or not any(job.alone for job in taken)
        self.running += taken

    @precondition(lambda self: self.running)
    @rule(place=st.integers(0, LIMIT - 1))
    def answer(self, place: int) -> None:
        """An answer makes room, which is announced to refused links."""
        job = self.running.pop(place % len(self.running))
        told = self.intake.finish(job, 1.0)

        room = LIMIT - len(self.intake.owed)
        assert len(told) >= min(room, len(self.refused))
        assert set(told) <= self.refused
        assert len(set(told)) == len(told)
        self.refused -= set(told)

    @precondition(lambda self: self.intake.owed)
    @rule(place=st.integers(0, LIMIT - 1))
    def cancel(self, place: int) -> None:
        """A cancelled job is marked and stays owed until it is finished."""
        link, id = list(self.intake.owed)[place % len(self.intake.owed)]

        job = self.intake.cancel(link, id)

        assert job is not None
        assert job.cancelled

    @rule(link=LINKS)
    def lose(self, link: int) -> None:
        """All jobs of a lost link are cancelled, and it gets no WINDOW."""
        self.intake.lose_link(link)
        self.refused.discard(link)

        assert all(job.cancelled for job in self.intake.owed.values() if job.link == link)

    @rule()
    def hand_back(self) -> None:
        """Waiting jobs are returned and answered as not started."""
        for job in self.intake.take_all():
            self.refused -= set(self.intake.finish(job, 1.0))

    @rule(draining=st.booleans())
    def drain(self, draining: bool) -> None:
        """A replica starts to drain, or refuses and accepts requests again."""
        self.intake.draining = draining

    @invariant()
    def is_bounded(self) -> None:
        """The owed jobs of all links never exceed the limit; each waiting or running job is
        owed."""
        assert len(self.intake.owed) <= LIMIT
        assert len(self.intake.owed) == len(self.intake.waiting) + len(self.running)

    @invariant()
    def refused_links_will_get_a_window(self) -> None:
        """While a link was refused and got no WINDOW, an owed job remains whose end will announce
        room."""
        assert set(self.intake.turned_away) == self.refused
        assert not self.refused or self.intake.owed

    @invariant()
    def idle_is_when_nothing_is_owed(self) -> None:
        """Idle time counts only while no job is owed."""
        assert (self.intake.idle_s(10.0) == 0.0) == bool(self.intake.owed)


TestGateways = Gateways.TestCase
TestGateways.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
