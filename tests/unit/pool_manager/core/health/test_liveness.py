"""The table that judges a ready server, its clocks, and the limits that it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core.health.liveness import (
    IDLE_READINGS,
    KNOWN_MIN,
    LATE_S,
    LIMIT_MIN_S,
    NEW_FACTOR,
    NEW_S,
    ROWS,
    SILENCES_MAX,
    UNLEARNT_S,
    Cause,
    Facts,
    Judgement,
    Reading,
    Silences,
    Verdict,
    Watch,
    decide,
)
from runtime_image.contract.health import READ_S, Learnt, Ready
from runtime_image.contract.samples import SampleVerdict

LONG = Facts(silent_s=30.0, limit_s=30.0)
"""Silent for its limit; nothing else is known."""
VERY_LONG = LONG._replace(silent_s=900.0)
REFUSED = Facts(ready=Ready.REFUSED, bad_probes=3)
FAILING = Facts(ready=Ready.FAILING, bad_probes=3)
SILENT = Facts(ready=Ready.SILENT, bad_probes=3, is_idle=True)
UNANSWERED = LONG._replace(sample=SampleVerdict.NO_ANSWER)
COUNTED = LONG._replace(has_counter=True)

TABLE = [
    (0, "a debugger", REFUSED._replace(is_traced=True), Verdict.RESTARTED, None),
    (1, "a late reading", LONG._replace(is_late=True), Verdict.RESTARTED, None),
    (2, "refused", REFUSED, Verdict.REPLACE, Cause.REFUSED),
    (2, "refused, streams go on", REFUSED._replace(has_moved=True), Verdict.REPLACE, Cause.REFUSED),
    (2, "refused, nobody waits", REFUSED._replace(is_open=False), Verdict.REPLACE, Cause.REFUSED),
    (10, "refused twice", REFUSED._replace(bad_probes=2), Verdict.WAITING, None),
    (3, "moved", LONG._replace(has_moved=True, sample=SampleVerdict.WRONG), Verdict.MOVED, None),
    (3, "moved while failing", FAILING._replace(has_moved=True), Verdict.MOVED, None),
    (4, "the gateway does not read", LONG._replace(is_unread=True), Verdict.RESTARTED, None),
    (5, "counted", COUNTED._replace(has_counted=True), Verdict.MOVED, None),
    (6, "failing", FAILING, Verdict.REPLACE, Cause.FAILING),
    (6, "failing, nobody waits", FAILING._replace(is_open=False), Verdict.REPLACE, Cause.FAILING),
    (10, "failing twice", FAILING._replace(bad_probes=2), Verdict.WAITING, None),
    (7, "no answer, idle", SILENT, Verdict.REPLACE, Cause.UNREADY),
    (10, "no answer, busy", SILENT._replace(is_idle=False), Verdict.WAITING, None),
    (9, "nothing open", LONG._replace(is_open=False), Verdict.RESTARTED, None),
    (10, "below the limit", LONG._replace(silent_s=29.9, is_idle=True), Verdict.WAITING, None),
    (11, "sample is asked", LONG._replace(is_asked=True, is_due=True), Verdict.WAITING, None),
    (12, "sample is due", COUNTED._replace(is_idle=True, is_due=True), Verdict.ASK, None),
    (10, "due, below the limit", Facts(is_due=True), Verdict.WAITING, None),
    (
        8,
        "wrong, idle",
        Facts(is_open=False, sample=SampleVerdict.WRONG),
        Verdict.REPLACE,
        Cause.WRONG,
    ),
    (13, "right sample", COUNTED._replace(sample=SampleVerdict.RIGHT), Verdict.HELD_UP, None),
    (8, "wrong sample", LONG._replace(sample=SampleVerdict.WRONG), Verdict.REPLACE, Cause.WRONG),
    (14, "no witness", LONG._replace(is_idle=True, is_learnt=True), Verdict.REPORT, None),
    (14, "no witness for ever", VERY_LONG._replace(is_learnt=True), Verdict.REPORT, None),
    (15, "no answer, idle", UNANSWERED._replace(is_idle=True), Verdict.REPLACE, Cause.IDLE),
    (15, "counter stands, idle", COUNTED._replace(is_idle=True), Verdict.REPLACE, Cause.IDLE),
    (
        16,
        "counter stands, busy",
        VERY_LONG._replace(has_counter=True),
        Verdict.REPLACE,
        Cause.STUCK,
    ),
    (
        17,
        "within a step",
        VERY_LONG._replace(has_counter=True, silent_s=899.0),
        Verdict.REPORT,
        None,
    ),
    (
        17,
        "within three limits",
        COUNTED._replace(silent_s=80.0, step_s=60.0, is_learnt=True),
        Verdict.REPORT,
        None,
    ),
    (
        18,
        "busy, not learnt",
        VERY_LONG._replace(sample=SampleVerdict.NO_ANSWER),
        Verdict.REPORT,
        None,
    ),
    (
        19,
        "busy, learnt",
        VERY_LONG._replace(sample=SampleVerdict.NO_ANSWER, is_learnt=True, longest_s=600.0),
        Verdict.REPLACE,
        Cause.STUCK,
    ),
    (
        20,
        "busy, less than the longest and a half",
        VERY_LONG._replace(sample=SampleVerdict.NO_ANSWER, is_learnt=True, longest_s=601.0),
        Verdict.REPORT,
        None,
    ),
    (
        20,
        "busy, a server of short silences within its longest step",
        UNANSWERED._replace(silent_s=899.0, is_learnt=True, longest_s=1.0),
        Verdict.REPORT,
        None,
    ),
    (
        19,
        "busy, a server of short silences after its longest step",
        UNANSWERED._replace(silent_s=900.0, is_learnt=True, longest_s=1.0),
        Verdict.REPLACE,
        Cause.STUCK,
    ),
    (
        20,
        "busy, short steps, but not 300 s",
        UNANSWERED._replace(silent_s=UNLEARNT_S - 1, step_s=1.0, is_learnt=True, longest_s=1.0),
        Verdict.REPORT,
        None,
    ),
]


@pytest.mark.parametrize(
    ("row", "facts", "verdict", "cause"),
    [pytest.param(row, *rest, id=f"{row + 1}: {name}") for row, name, *rest in TABLE],
)
def test_each_row_of_the_table(
    row: int, facts: Facts, verdict: Verdict, cause: Cause | None
) -> None:
    """The first row that applies decides."""
    found = decide(facts)

    assert (ROWS.index(found), found.verdict, found.cause) == (row, verdict, cause)


def test_every_row_has_a_case() -> None:
    """No row of the table is untested."""
    assert {row for row, *_ in TABLE} == set(range(len(ROWS)))


# Limits


def test_the_limit_is_learnt() -> None:
    """300 s until 50 silences are known, then twice the longest of the last 500, at least 30 s."""
    silences = Silences()
    for _ in range(KNOWN_MIN - 1):
        silences.add(40.0)
    assert (silences.is_learnt, silences.limit_s(NEW_S)) == (False, UNLEARNT_S)

    silences.add(40.0)
    assert (silences.is_learnt, silences.limit_s(NEW_S)) == (True, 80.0)

    for _ in range(SILENCES_MAX):
        silences.add(1.0)
    assert (silences.limit_s(NEW_S), silences.longest_s) == (LIMIT_MIN_S, 40.0)


def known(*seconds: float) -> Silences:
    silences = Silences()
    for one in seconds:
        silences.add(one)
    return silences


def test_limits_are_restored() -> None:
    """Three numbers are enough for the limits of another manager."""
    before = known(*[2.0] * 60, 40.0, *[1.0] * 439, 90.0)
    after = Silences()

    after.restore(before.learnt())

    assert before.learnt() == after.learnt() == Learnt(SILENCES_MAX, 90.0, 90.0)
    assert after.limit_s(NEW_S) == before.limit_s(NEW_S) == 180.0


@pytest.mark.parametrize("learnt", [Learnt(0, 0.0, 0.0), Learnt(KNOWN_MIN - 1, 40.0, 40.0)])
def test_too_few_silences_are_too_few_after_a_restart(learnt: Learnt) -> None:
    """The manager goes on counting."""
    silences = Silences()
    silences.restore(learnt)
    assert (silences.is_learnt, silences.limit_s(NEW_S)) == (False, UNLEARNT_S)

    for _ in range(KNOWN_MIN - learnt.known):
        silences.add(1.0)

    assert silences.is_learnt


def test_what_several_servers_bring_never_shortens_a_limit() -> None:
    """Sidecars of one revision were told at different times; a restored silence is the oldest."""
    silences = known(20.0)
    silences.restore(Learnt(SILENCES_MAX, 30.0, 400.0))
    silences.restore(Learnt(SILENCES_MAX, 60.0, 300.0))
    silences.restore(Learnt(60, 5.0, 5.0))
    assert (silences.limit_s(NEW_S), silences.longest_s) == (120.0, 400.0)

    for _ in range(SILENCES_MAX):
        silences.add(1.0)

    assert (silences.limit_s(NEW_S), silences.longest_s) == (LIMIT_MIN_S, 400.0)


def test_a_large_number_of_silences_is_bounded() -> None:
    """What a sidecar says is no reason for more memory."""
    silences = Silences()

    silences.restore(Learnt(10**9, 1.0, 1.0))

    assert silences.learnt().known == SILENCES_MAX


def test_a_new_server_has_more_time() -> None:
    """In the first ten minutes after a start the limit is four times as long."""
    assert Silences().limit_s(NEW_S - 1) == NEW_FACTOR * UNLEARNT_S


# Clocks


class Server:
    """A server that is read once a second, with limits that are learnt: 30 s."""

    def __init__(self) -> None:
        self.now = 5000.0
        self.silences = Silences()
        for _ in range(SILENCES_MAX):
            self.silences.add(1.0)
        self.watch = Watch(self.now - NEW_S)
        self.reading = Reading(open=1, moved=1, counter=1.0, cpu=0.0)
        self.answer: SampleVerdict | None = SampleVerdict.NONE
        """What its golden sample shows when it is asked; None for an answer that is late."""
        self.asked_s: list[float] = []
        """Lengths of silences at which it was asked."""
        self.read()

    def read(
        self,
        after_s: float = READ_S,
        gpu: float | None = 0.0,
    ) -> Judgement:
        self.now += after_s
        judged = self.watch.read(self.reading, self.now, self.silences, gpu=gpu)
        if judged.verdict is Verdict.ASK:
            self.asked_s.append(self.now - self.watch.moved_s)
            if self.answer is not None:
                self.watch.sampled(self.answer, "so it is")
                return self.read(0.0, gpu)
        return judged

    def change(self, **changes: object) -> Judgement:
        self.reading = replace(self.reading, **changes)  # type: ignore[arg-type]
        return self.read()

    def silent(self, seconds: int) -> list[Verdict]:
        return [self.read().verdict for _ in range(seconds)]


def test_a_hung_idle_server_is_replaced_at_its_limit() -> None:
    """The counter stands still and nothing computes: 30 s."""
    server = Server()

    assert set(server.silent(29)) == {Verdict.WAITING}
    judged = server.read()

    assert (judged.verdict, judged.cause) == (Verdict.REPLACE, Cause.IDLE)
    assert judged.text == ("nothing has moved for 30 s (limit 30 s), and its processes are idle")
    assert server.watch.silent_s(server.now) == 30.0


@pytest.mark.parametrize(
    "changes",
    [{"moved": 2}, {"counter": 2.0}, {"unread": True}, {"is_traced": True}, {"open": 0}],
    ids=["moved", "counted", "unread", "traced", "nothing open"],
)
def test_the_clock_starts_anew(changes: dict[str, object]) -> None:
    """Each sign of life, and each reading that proves nothing, ends the silence."""
    server = Server()
    server.silent(29)

    server.change(**changes)
    server.reading = replace(server.reading, unread=False, is_traced=False, open=1)

    assert set(server.silent(29)) == {Verdict.WAITING}


def test_a_late_reading_starts_the_clock_anew() -> None:
    """A host that slept has not watched."""
    server = Server()
    server.silent(20)

    assert server.read(READ_S + LATE_S).verdict is Verdict.WAITING
    assert server.read(READ_S + LATE_S + 0.1).verdict is Verdict.RESTARTED
    assert server.silent(30)[-1] is Verdict.REPLACE


def test_only_silences_with_open_exchanges_are_learnt() -> None:
    """What moves after a time without exchanges says nothing about silences."""
    server = Server()
    server.silences = Silences()

    server.change(open=0)
    server.change(open=1, moved=2)
    assert server.silences.longest_s == 0.0
    server.silent(6)
    server.change(moved=3)

    assert server.silences.longest_s == 7.0


def test_the_hardware_is_idle_after_ten_readings() -> None:
    """One busy or unknown reading, of CPU or GPU, begins the count anew."""
    for busy in ({"cpu": 0.05}, {"cpu": None}):
        server = Server()
        server.silent(25)
        server.change(**busy)
        server.reading = replace(server.reading, cpu=0.0)
        # Meanwhile the sample is asked, and read at once: one reading more.
        assert server.silent(IDLE_READINGS - 1)[-2:] == [Verdict.REPORT, Verdict.REPLACE]
    for gpu in (0.5, None):
        server = Server()
        server.silent(28)
        server.read(gpu=gpu)
        assert server.silent(IDLE_READINGS - 1)[-2:] == [Verdict.REPORT, Verdict.REPLACE]


def test_a_right_sample_doubles_the_limit_of_this_silence() -> None:
    """30, 60, 120 s; the next silence has 30 s again."""
    server = Server()
    server.answer = SampleVerdict.RIGHT
    server.silent(29)
    assert server.read().verdict is Verdict.HELD_UP
    assert set(server.silent(29)) == {Verdict.WAITING}
    assert server.read().verdict is Verdict.HELD_UP
    assert set(server.silent(59)) == {Verdict.WAITING}
    assert server.asked_s == [30.0, 60.0]

    server.answer = SampleVerdict.NONE
    server.change(moved=2)
    server.silences = Server().silences  # without the one that has just ended

    assert server.silent(30)[-1] is Verdict.REPLACE


@pytest.mark.parametrize(
    ("verdict", "found", "cause"),
    [
        (SampleVerdict.NONE, Verdict.REPORT, None),
        (SampleVerdict.RIGHT, Verdict.HELD_UP, None),
        (SampleVerdict.WRONG, Verdict.REPLACE, Cause.WRONG),
        (SampleVerdict.NO_ANSWER, Verdict.REPLACE, Cause.IDLE),
    ],
)
def test_the_sample_decides_where_no_counter_does(
    verdict: SampleVerdict, found: Verdict, cause: Cause | None
) -> None:
    """It is asked once, at the limit; what is shown says so."""
    server = Server()
    server.reading = replace(server.reading, counter=None)
    server.answer = verdict
    server.read()
    assert set(server.silent(28)) == {Verdict.WAITING}

    judged = server.read()

    assert (judged.verdict, judged.cause) == (found, cause)
    assert judged.text.endswith("so it is") is (verdict in (SampleVerdict.NONE, verdict.WRONG))
    assert ("is not answered (so it is)" in judged.text) is (verdict is SampleVerdict.NO_ANSWER)
    assert server.asked_s == [30.0]


def test_the_answer_of_a_sample_is_waited_for() -> None:
    """Meanwhile nothing is decided and nothing asked again; then the next reading decides."""
    server = Server()
    server.answer = None
    assert server.silent(30)[-1] is Verdict.ASK
    assert set(server.silent(90)) == {Verdict.WAITING}

    server.watch.sampled(SampleVerdict.NO_ANSWER, "no answer")

    assert server.read().verdict is Verdict.ASK
    server.watch.sampled(SampleVerdict.NO_ANSWER, "no answer")
    assert server.read().cause is Cause.IDLE
    assert server.asked_s == [30.0, 121.0]


def test_an_answer_of_another_silence_says_nothing() -> None:
    """The next silence waits for it, and has the sample asked anew."""
    server = Server()
    server.answer = None
    server.silent(30)
    server.change(moved=2)
    server.silences = Server().silences
    assert set(server.silent(31)) == {Verdict.WAITING}

    server.watch.sampled(SampleVerdict.WRONG, "wrong")

    assert server.read().verdict is Verdict.ASK


def test_no_answer_of_a_busy_server_says_nothing_once_it_is_idle() -> None:
    """It may have compiled when it was asked. It is asked again at twice the silence."""
    server = Server()
    server.answer = SampleVerdict.NO_ANSWER
    server.reading = replace(server.reading, counter=None, cpu=1.0)
    server.silent(40)
    server.reading = replace(server.reading, cpu=0.0)

    assert set(server.silent(19)) == {Verdict.REPORT}
    assert server.read().cause is Cause.IDLE
    assert server.asked_s == [30.0, 60.0]


def probe(server: Server, ready: Ready, **changes: object) -> Judgement:
    probes = server.reading.probes + 1
    return server.change(ready=ready, probes=probes, said="it says", **changes)


def test_three_refused_probes_in_a_row() -> None:
    """A right answer begins the count anew; readings between probes count nothing."""
    server = Server()
    for ready in (Ready.REFUSED, Ready.REFUSED, Ready.RIGHT, Ready.REFUSED, Ready.REFUSED):
        assert probe(server, ready).verdict is Verdict.WAITING
        assert server.watch.is_right is (ready is Ready.RIGHT)
    assert server.read().verdict is Verdict.WAITING

    judged = probe(server, Ready.REFUSED)

    assert judged == (Verdict.REPLACE, Cause.REFUSED, "it refuses connections (it says)")


def test_probes_may_go_wrong_in_different_ways() -> None:
    """The last one names the cause."""
    server = Server()
    probe(server, Ready.SILENT)
    probe(server, Ready.FAILING)

    assert probe(server, Ready.FAILING).cause is Cause.FAILING


def test_errors_of_a_probe_mean_little_while_exchanges_move() -> None:
    """Each move begins the count anew: some servers answer 503 while they are busy."""
    server = Server()
    for number in range(2, 8):
        assert probe(server, Ready.FAILING, moved=number).verdict is Verdict.MOVED
    assert probe(server, Ready.FAILING).verdict is Verdict.WAITING

    assert probe(server, Ready.FAILING).cause is Cause.FAILING


def test_refusals_count_while_streams_go_on() -> None:
    """A server that has closed its listener may still serve what is open."""
    server = Server()
    probe(server, Ready.REFUSED, moved=2)
    probe(server, Ready.REFUSED, moved=3)

    assert probe(server, Ready.REFUSED, moved=4).cause is Cause.REFUSED


def test_probes_before_a_pause_do_not_count() -> None:
    """A late reading, or a debugger, begins the count anew."""
    for changes in ({}, {"is_traced": True}):
        server = Server()
        probe(server, Ready.REFUSED)
        probe(server, Ready.REFUSED)
        server.now += 0.0 if changes else 60.0
        server.change(**changes)
        server.reading = replace(server.reading, is_traced=False)

        assert probe(server, Ready.REFUSED).verdict is not Verdict.REPLACE
