"""Servers that do not work any more are replaced: the new one starts before the old one ends."""

from __future__ import annotations

import pytest

from pool_manager.core import events
from pool_manager.core.commands import (
    AskSample,
    Command,
    KeepLearnt,
    Launch,
    Quiesce,
    RecordReplacement,
    RecordSilence,
    Release,
    Resume,
)
from pool_manager.core.health.guards import WAIT_S
from pool_manager.core.health.liveness import Cause, Hang, Reading
from pool_manager.core.replacement import LEARNT_S
from pool_manager.core.state import QUIET_S, State
from runtime_image.contract.health import Learnt, Ready
from runtime_image.contract.samples import SampleVerdict
from tests.support.play import Play, launched
from tests.unit.pool_manager.core.test_server_pools import A, B, notes, only, server

HUNG = "nothing has moved for 30 s (limit 30 s), and its processes are idle"
SHOWN = "expected a, got b"
REFUSES = "it refuses connections (connection refused)"


class Servers:
    """Servers of a play, which are read each second; their silences are learnt."""

    def __init__(self, *names: str, devices: int = 2, hang: Hang = "replace") -> None:
        self.play = Play(
            *(server(f"default/{name}@1", hang=hang, idle_s=1e5) for name in names),
            devices=devices,
        )
        self.readings: dict[str, Reading] = {}
        for number, name in enumerate(names, 1):
            self.play.demand(**{name: 1})
            self.play.ready(f"r{number}")
            self.readings[f"r{number}"] = Reading(open=1, moved=1, counter=1.0, cpu=0.0)
            for _ in range(60):
                self.play.pool(name).silences.add(1.0)
        self.answer: SampleVerdict | None = SampleVerdict.NONE
        """What a golden sample shows when it is asked; None for an answer that is late."""
        self.asked = 0
        self.busy = dict.fromkeys(names, 1)
        self.second(after_s=700.0)

    def second(self, after_s: float = 1.0) -> list[Command]:
        """Let a second pass, with its readings."""
        commands = self.play.run(after_s, **self.busy)
        for id in self.readings:
            commands += self.read(id)
        return commands + self.play.tick()

    def read(self, id: str) -> list[Command]:
        """Read a server, and once more after its golden sample was asked."""
        commands = self.play.on(events.Observed(id, self.readings[id]))
        asked = only(commands, AskSample)
        self.asked += len(asked)
        if asked and self.answer is not None:
            commands += self.sampled(id, self.answer, in_silence=True)
            commands += self.play.on(events.Observed(id, self.readings[id]))
        return commands

    def sampled(self, id: str, verdict: SampleVerdict, *, in_silence: bool) -> list[Command]:
        """Let the golden sample of a server have shown this."""
        return self.play.on(events.SampleAnswered(id, verdict, SHOWN, in_silence))

    def seconds(self, count: int) -> list[Command]:
        return [one for _ in range(count) for one in self.second()]

    def change(self, id: str, **changes: object) -> list[Command]:
        """Read a server once more, after these changes."""
        values = {name: getattr(self.readings[id], name) for name in Reading.__slots__}
        self.readings[id] = Reading(**{**values, **changes})
        return self.read(id)

    def probe(self, id: str, ready: Ready, times: int = 3) -> list[Command]:
        """Let probes of a server have this result."""
        commands: list[Command] = []
        for _ in range(times):
            probes = self.readings[id].probes + 1
            said = "connection refused"
            commands += self.change(id, ready=ready, probes=probes, said=said)
        return commands

    def released(self, id: str) -> list[Command]:
        self.readings.pop(id, None)
        return self.play.on(events.Released(id))


def test_the_new_one_is_ready_before_the_hung_one_ends() -> None:
    """A hung server gets no new calls, another one starts beside it, and it ends when that is
    ready; its callers get the reason."""
    servers = Servers("a")
    play = servers.play
    servers.seconds(29)

    commands = servers.second()

    assert only(commands, RecordSilence) == [RecordSilence(A, "r1", HUNG)]
    assert only(commands, Quiesce) == [Quiesce("r1")]
    assert launched(commands) == [("r2", "d1")]
    assert f"r1 takes no new calls: it is not answering: {HUNG}" in notes(play, A)
    play.hear_all(in_flight={"a": 1}, queued={"a": 1})
    assert (play.shown("a"), play.reason("a")) == ("waking", play.pool("a").wanted_reason)
    assert only(servers.seconds(3), Release) == []

    play.on(events.Greeted("r2", {}))
    commands = play.on(events.Loaded("r2", 4, True, 80.0, {}))

    why = f"is not answering: {HUNG}"
    assert only(commands, Release) == [Release("r1", why)]
    assert only(commands, RecordReplacement) == [RecordReplacement(A, "r1", Cause.IDLE, why)]
    assert f"r1 was replaced: it {why}" in notes(play, A)
    shown = play.machine.endpoints(A, play.now)
    assert (shown.state, shown.ended, shown.hung) == ("warm", {"r1": why}, ["r1"])
    servers.released("r1")
    assert play.pool("a").count() == 1


def test_without_room_the_hung_one_makes_room() -> None:
    """On the only device the hung server ends first, and its place is its function's."""
    servers = Servers("a", devices=1)
    play = servers.play
    play.on(events.PoolDefined(server(B)))
    commands = servers.seconds(30)

    assert only(commands, Release) == [Release("r1", f"is not answering: {HUNG}")]
    assert launched(commands) == []
    assert play.reason("a").startswith("waits for the place of r1, which is not answering")
    servers.readings.clear()
    play.hear_all(1.0, in_flight={}, queued={"a": 1, "b": 1})
    assert launched(servers.released("r1")) == [("r2", "d0")]
    assert play.machine.replica("r2").pool == A  # type: ignore[union-attr]


def test_without_room_streams_that_go_on_are_waited_for() -> None:
    """A server that refuses connections gives its place once nothing moves on it."""
    servers = Servers("a", devices=1)
    commands = servers.probe("r1", Ready.REFUSED)
    for number in range(2, 12):
        commands += servers.change("r1", moved=number)
        commands += servers.second()
    assert only(commands, Release) == []

    assert only(servers.seconds(int(QUIET_S)), Release) != []


@pytest.mark.parametrize("hang", ["report", "off"])
def test_a_function_may_refuse_to_have_its_servers_replaced(hang: Hang) -> None:
    """`report` shows it, `off` does nothing."""
    servers = Servers("a", hang=hang)
    commands = servers.seconds(60)

    assert only(commands, Quiesce) == []
    text = f'{HUNG}; it is not replaced: hang = "report"'
    silences = [RecordSilence(A, "r1", text)] if hang == "report" else []
    assert only(commands, RecordSilence) == silences
    play = servers.play
    if hang == "report":
        assert (play.shown("a"), play.reason("a")) == ("warm", f"not answering: {text}")
        servers.change("r1", moved=2)
        assert notes(play, A)[-1] == "r1 answers again"
        assert play.reason("a") == play.pool("a").wanted_reason


def test_a_report_ends_with_the_exchanges() -> None:
    """Nobody waits any more: nothing is known about the server."""
    servers = Servers("a", hang="report")
    servers.seconds(31)

    servers.change("r1", open=0)

    assert notes(servers.play, A)[-1] == "r1 is waited for no more"


def test_a_report_of_probes_ends_with_a_right_one() -> None:
    """A probe that proves nothing leaves it; a right one takes it back."""
    servers = Servers("a", hang="report")
    play = servers.play
    servers.probe("r1", Ready.REFUSED)
    said = play.reason("a")
    assert said.startswith(f"not answering: {REFUSES}")
    servers.change("r1", cpu=1.0)
    servers.probe("r1", Ready.SILENT, times=1)
    assert play.reason("a") == said

    servers.probe("r1", Ready.RIGHT, times=1)

    assert notes(play, A)[-1] == "r1 answers again"
    assert play.replica("r1").trouble == ""


def test_one_that_moves_again_is_taken_back() -> None:
    """A move while the new one starts revokes the drain; the surplus stops later."""
    servers = Servers("a")
    play = servers.play
    servers.seconds(30)
    assert play.state("r1") is State.DRAINING

    commands = servers.change("r1", moved=2)

    assert only(commands, Resume) == [Resume("r1")]
    assert "r1 is to take calls again: it answers again" in notes(play, A)
    assert servers.second() == []
    play.on(events.NotIdle("r1", 0.0))
    assert play.state("r1") is State.READY
    play.ready("r2")
    assert only(servers.second(), Release) == []


def test_a_server_that_refuses_connections_is_replaced() -> None:
    """Its streams go on until they have ended, or nothing moves for QUIET_S."""
    servers = Servers("a")
    play = servers.play
    assert only(servers.probe("r1", Ready.REFUSED), Quiesce) == [Quiesce("r1")]
    assert only(servers.second(), Launch) == []  # it was launched in the same step
    servers.change("r1", moved=2)
    play.on(events.Greeted("r2", {}))
    commands = play.on(events.Loaded("r2", 4, True, 80.0, {}))
    assert only(commands, Release) == []
    servers.change("r1", moved=3)
    assert only(servers.seconds(int(QUIET_S) - 1), Release) == []

    [release] = only(servers.second(), Release)

    assert release == Release("r1", f"is not answering: {REFUSES}")


def test_a_server_that_listens_again_is_taken_back() -> None:
    """A right probe revokes a replacement for a failed probe."""
    for ready in (Ready.REFUSED, Ready.FAILING):
        servers = Servers("a")
        servers.probe("r1", ready)
        servers.second()

        commands = servers.probe("r1", Ready.RIGHT, times=1)

        assert only(commands, Resume) == [Resume("r1")]


def test_a_hung_server_that_only_answers_probes_is_not_taken_back() -> None:
    """The readiness probe of many servers is answered by another process than their engine."""
    servers = Servers("a")
    servers.seconds(30)

    assert only(servers.probe("r1", Ready.RIGHT), Resume) == []


def test_one_that_ends_by_itself_was_replaced() -> None:
    """A quiesced server without exchanges stops by itself."""
    servers = Servers("a")
    servers.change("r1", open=0)
    servers.probe("r1", Ready.REFUSED)

    commands = servers.play.on(events.Lost("r1", "exited with code 0"))

    [record] = only(commands, RecordReplacement)
    assert isinstance(record, RecordReplacement)
    assert record.cause is Cause.REFUSED


def test_a_final_drain_is_no_replacement() -> None:
    """A server of a removed function just ends."""
    servers = Servers("a")
    servers.probe("r1", Ready.REFUSED)
    servers.play.on(events.PoolRemoved(A))

    commands = servers.play.on(events.Lost("r1", "exited with code 0"))

    assert only(commands, RecordReplacement) == []


def test_a_second_hung_one_has_to_wait() -> None:
    """One at a time, and then one in ten minutes; a server that refuses connections does not
    wait."""
    servers = Servers("a", "b", devices=3)
    play = servers.play
    servers.seconds(29)
    servers.change("r2", moved=2)  # so that not all servers of the host are silent
    servers.second()
    assert play.state("r1") is State.DRAINING
    play.on(events.Lost("r1", "exited with code 0"))
    servers.released("r1")
    play.tick(1.0)
    [new] = [one.id for one in play.pool("a").replicas.values()]
    play.ready(new)
    servers.readings = {new: Reading(open=1, moved=1, counter=1.0, cpu=0.0)}
    play.replica(new).ready_s -= 600.0

    commands = servers.seconds(40)
    assert only(commands, Quiesce) == []
    [silence] = only(commands, RecordSilence)
    assert isinstance(silence, RecordSilence)
    assert "it is not replaced: another one was replaced" in silence.reason

    assert only(servers.seconds(int(WAIT_S)), Quiesce) == [Quiesce(new)]


def test_one_of_two_replicas_at_a_time() -> None:
    """While one server of a function is being replaced, no other one is for the same reason."""
    servers = Servers("a", "b", devices=6)
    play = servers.play
    play.on(events.PoolDefined(server(A, min=2, max=3, target=1, idle_s=1e5)))
    servers.seconds(9)
    [new] = [id for id in play.pool("a").replicas if id != "r1"]
    play.ready(new)
    play.replica(new).ready_s -= 700.0
    servers.change("r1", moved=2)
    servers.readings[new] = Reading(open=1, moved=1, counter=1.0, cpu=0.0)
    commands: list[Command] = []

    for number in range(2, 34):
        servers.change("r2", moved=number)  # so that the host is not the cause
        commands += servers.second()

    assert len(only(commands, Quiesce)) == 1
    reasons = [one.reason for one in only(commands, RecordSilence)]  # type: ignore[attr-defined]
    assert reasons[-1].endswith("it is not replaced: another one is being replaced")


def test_a_host_that_is_silent_is_reported() -> None:
    """All servers of a host with open exchanges are silent at once: the host is the cause."""
    servers = Servers("a", "b")
    commands = servers.seconds(31)

    assert only(commands, Quiesce) == []
    text = f"{HUNG}; it is not replaced: every server of host local is silent"
    assert [one.reason for one in only(commands, RecordSilence)] == [  # type: ignore[attr-defined]
        f"{text}, so the host is the cause"
    ] * 2

    servers.change("r2", moved=2)
    assert only(servers.second(), Quiesce) == [Quiesce("r1")]


def test_three_without_an_answered_call_are_enough() -> None:
    """The fourth that refuses connections is shown and left; an answer allows the next one."""
    servers = Servers("a")
    play = servers.play
    for number in range(1, 4):
        assert only(servers.probe(f"r{number}", Ready.REFUSED), Quiesce)
        play.on(events.Lost(f"r{number}", "exited with code 0"))
        servers.released(f"r{number}")
        servers.second()
        play.ready(f"r{number + 1}")
        servers.readings[f"r{number + 1}"] = Reading(open=1, moved=1)
        servers.second()

    assert only(servers.probe("r4", Ready.REFUSED), Quiesce) == []
    assert play.reason("a").endswith("have answered no call")

    assert only(servers.change("r4", given=100), Quiesce) == [Quiesce("r4")]


def test_only_ready_servers_are_judged() -> None:
    """Readings of models, unknown replicas, and of servers that start or drain say nothing."""
    servers = Servers("a")
    play = servers.play
    assert play.on(events.Observed("r9", Reading())) == []
    play.on(events.SleepRequested(A, force=True))
    assert play.state("r1") is State.DRAINING

    assert servers.probe("r1", Ready.REFUSED) == []
    assert play.replica("r1").condemned is None


# Golden samples


@pytest.mark.parametrize(
    ("answer", "is_replaced", "why"),
    [
        (SampleVerdict.NONE, False, "no counter in [health], and expected a, got b"),
        (SampleVerdict.RIGHT, False, ""),
        (SampleVerdict.WRONG, True, "answers its golden sample wrong: expected a, got b"),
        (SampleVerdict.NO_ANSWER, True, "its golden sample is not answered (expected a, got b)"),
    ],
)
def test_the_sample_is_asked_once_the_silence_is_too_long(
    answer: SampleVerdict, is_replaced: bool, why: str
) -> None:
    """Once, at the limit; what it shows decides where there is no counter."""
    servers = Servers("a")
    servers.answer = answer
    servers.change("r1", counter=None)
    servers.seconds(28)
    assert servers.asked == 0

    commands = servers.second() + servers.second()

    assert servers.asked == 1
    assert only(commands, Quiesce) == ([Quiesce("r1")] if is_replaced else [])
    told = [*notes(servers.play, A), servers.play.replica("r1").trouble]
    assert not why or any(why in one for one in told)
    assert bool(servers.play.replica("r1").trouble) is (
        answer in (SampleVerdict.NONE, SampleVerdict.NO_ANSWER)
    )


def test_nothing_is_decided_before_the_sample_has_shown_something() -> None:
    """However long that takes. An answer for a replica that is gone is none."""
    servers = Servers("a")
    servers.answer = None
    assert only(servers.seconds(100), Quiesce) == []
    assert servers.asked == 1

    servers.sampled("r9", SampleVerdict.NO_ANSWER, in_silence=True)
    servers.sampled("r1", SampleVerdict.NONE, in_silence=True)
    servers.answer = SampleVerdict.NONE

    assert only(servers.second(), Quiesce) == [Quiesce("r1")]


def test_a_server_that_answers_its_sample_works() -> None:
    """What was reported before is taken back."""
    servers = Servers("a")
    servers.change("r1", counter=None)
    servers.seconds(31)
    assert servers.play.replica("r1").trouble

    servers.answer = SampleVerdict.RIGHT
    servers.seconds(30)

    assert servers.play.replica("r1").trouble == ""
    assert notes(servers.play, A)[-1] == "r1 answers again"


def idle(hang: Hang = "replace") -> Servers:
    """Return a server that has no exchange, and whose sidecar has told nothing yet."""
    servers = Servers("a", hang=hang)
    servers.play.replica("r1").watch = None
    servers.readings.clear()
    servers.busy = {}
    servers.play.hear_all(in_flight={}, queued={})
    return servers


def test_an_idle_server_that_answers_wrong_is_replaced() -> None:
    """By itself, and it is no server that does not answer."""
    servers = idle()
    play = servers.play
    assert servers.sampled("r1", SampleVerdict.NO_ANSWER, in_silence=False) == []
    assert servers.sampled("r1", SampleVerdict.NONE, in_silence=True) == []

    commands = servers.sampled("r1", SampleVerdict.WRONG, in_silence=False)

    why = f"answers its golden sample wrong: {SHOWN}"
    assert only(commands, Quiesce) == [Quiesce("r1")]
    assert only(commands, RecordSilence) == []
    assert f"r1 takes no new calls: it {why}" in notes(play, A)
    assert servers.sampled("r1", SampleVerdict.WRONG, in_silence=False) == []
    commands = play.on(events.Lost("r1", "exited with code 0"))
    assert only(commands, RecordReplacement) == [RecordReplacement(A, "r1", Cause.WRONG, why)]
    assert f"r1 was replaced: it {why}" in notes(play, A)


@pytest.mark.parametrize("hang", ["report", "off"])
def test_a_wrong_server_is_left_where_the_function_says_so(hang: Hang) -> None:
    """`report` says once why it is left; after a right answer, again."""
    servers = idle(hang)
    text = f'r1 answers its golden sample wrong: {SHOWN}; it is not replaced: hang = "report"'
    told = [text] if hang == "report" else []
    for number in (1, 2):
        for _ in range(3):
            commands = servers.sampled("r1", SampleVerdict.WRONG, in_silence=False)
            assert only(commands, Quiesce) == []
        assert [one for one in notes(servers.play, A) if SHOWN in one] == told * number
        servers.sampled("r1", SampleVerdict.RIGHT, in_silence=False)
    assert servers.play.replica("r1").trouble == ""


def test_a_wrong_server_is_not_taken_back_because_it_moves() -> None:
    """What it has begun may end; then it ends, once the new one is ready."""
    servers = Servers("a")
    play = servers.play
    servers.change("r1", moved=2)
    commands = servers.sampled("r1", SampleVerdict.WRONG, in_silence=False)
    assert launched(commands) == [("r2", "d1")]
    servers.change("r1", moved=3)
    play.ready("r2")
    commands = servers.change("r1", moved=4)
    assert (only(commands, Resume), only(commands, Release)) == ([], [])
    commands = servers.change("r1", open=0)
    assert only(commands, Release) == []

    commands = servers.seconds(int(QUIET_S))

    assert only(commands, Release) == [
        Release("r1", f"answers its golden sample wrong: {SHOWN}"),
    ]


def test_a_sidecar_keeps_what_is_learnt() -> None:
    """It is told at most once a minute, and only what it does not know."""
    servers = Servers("a")
    told = servers.play.replica("r1").learnt
    assert told == Learnt(60, 1.0, 1.0)
    seconds = int(LEARNT_S)
    commands: list[Command] = []
    for number in range(seconds + 1):
        commands += servers.second() + servers.change("r1", moved=2 + number)

    (kept,) = only(commands, KeepLearnt)
    assert (kept.id, kept.learnt.longest_s) == ("r1", 1.0)
    assert kept.learnt == servers.play.replica("r1").learnt
    assert 60 < kept.learnt.known <= servers.play.pool("a").silences.learnt().known

    servers.change("r1", open=0)
    servers.seconds(seconds)
    assert only(servers.seconds(2 * seconds), KeepLearnt) == []


def test_an_adopted_server_has_the_limits_and_the_age_that_it_had() -> None:
    """The next manager judges it as the last one would have, from its first silence on."""
    play = Play(server(A), is_open=False)
    play.on(events.Found("old1", A, ("d0",)))
    play.on(events.Greeted("old1", {}, True))
    learnt = Learnt(500, 1.0, 7.0)
    play.on(events.Loaded("old1", 8, True, 50.0, {}, ready_for_s=700.0, learnt=learnt))
    still = events.Observed("old1", Reading(open=1, moved=1, counter=1.0, cpu=0.0))
    commands: list[Command] = []

    for _ in range(32):
        commands += play.run(1.0, a=1) + play.on(still)

    assert only(commands, AskSample) == [AskSample("old1")]
    assert play.pool("a").silences.learnt() == learnt


def test_an_adopted_server_of_an_earlier_release_is_learnt_anew() -> None:
    """Its sidecar has kept nothing."""
    play = Play(server(A), is_open=False)
    play.on(events.Found("old1", A, ("d0",)))
    play.on(events.Greeted("old1", {}, True))

    play.on(events.Loaded("old1", 8, True, 50.0, {}))

    assert play.pool("a").silences.learnt() == Learnt(0, 0.0, 0.0)
