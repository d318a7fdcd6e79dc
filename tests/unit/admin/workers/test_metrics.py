"""Tests of `/metrics` over all gateway processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict
from prometheus_client.parser import text_string_to_metric_families

from admin.metrics import Source
from admin.workers import metrics as metrics_module
from admin.workers.messages import LedgerNow, ReadLedger, Woken
from admin.workers.metrics import ColdStarts, LabelLimit, MergedMetrics, Numbers, family_of
from admin.workers.shared_counters import CounterReader, CounterWriter, Sample, open_writer
from gateway.metrics.counters import OPENMETRICS, Exemplar, SampleExemplar
from gateway.metrics.ledger import UNKNOWN_POOL, Balance, Ledger
from gateway.metrics.requests import OTHERS, Metrics
from registry.catalog import Change

REMOVED = Change("remove", "default", "f", None, None)


def woken(function: str, replica: str, **phases: float) -> Woken:
    """Return the report of a cold start."""
    return Woken("default", function, replica, phases)


LOADED = woken("f", "r1", load=2000.0)


class Rig:
    """The supervisor's merged metrics, and workers that count in shared memory."""

    def __init__(self) -> None:
        self.deployed = {"f", "g"}
        self.answers: dict[str, LedgerNow] = {}
        self.page = MergedMetrics(self._answered, dict, lambda: 7, self.is_deployed, lambda: 0.0)
        self.tables: dict[str, CounterReader] = {}
        self.cells: list[CounterWriter] = []

    async def _answered(self, _question: ReadLedger) -> dict[str, LedgerNow]:
        return self.answers

    def is_deployed(self, _namespace: str, name: str) -> bool:
        """Return whether the catalog has the function."""
        return name in self.deployed

    def worker(self, name: str) -> Metrics:
        """Add a worker that has answered f, g and a function that is not deployed, once each."""
        counters = CounterReader()
        cells = open_writer(os.dup(counters.descriptor))
        counters.close_descriptor()
        Ledger(cells)
        metrics = Metrics(self.is_deployed, cells)
        for function in ("f", "g", "beyond"):
            metrics.count_reply("default", function, "ok", "", 0.02)
        self.tables[name] = counters
        self.cells.append(cells)
        self.page.add(name, counters)
        return metrics

    def samples(self) -> dict[tuple[str, ...], float]:
        """Return every sample by its name and label values, sorted by label."""
        self.page.snapshot()
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.page.render().decode())
            for sample in family.samples
        }


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A rig without workers."""
    rig = Rig()
    yield rig
    for cells in rig.cells:
        cells.close()
    for counters in rig.tables.values():
        counters.close()


REQUESTS = ("fngate_requests_total", "f", "default", "ok", "")
COUNT = ("fngate_request_seconds_count", "f", "default")


def test_all_workers_are_added_up(rig: Rig) -> None:
    """Counters and histogram buckets are summed over workers; buckets are cumulative."""
    first, _ = rig.worker("a"), rig.worker("b")
    first.count_reply("default", "f", "ok", "", 0.3)

    found = rig.samples()
    assert found[REQUESTS] == 3
    assert found[COUNT] == 3
    assert found["fngate_request_seconds_sum", "f", "default"] == pytest.approx(0.34)
    assert found["fngate_request_seconds_bucket", "f", "0.01", "default"] == 0
    assert found["fngate_request_seconds_bucket", "f", "0.025", "default"] == 2
    assert found["fngate_request_seconds_bucket", "f", "+Inf", "default"] == 3
    assert found["fngate_requests_total", OTHERS, "default", "ok", ""] == 2


def test_the_supervisors_own_metrics_appear_once(rig: Rig) -> None:
    """The supervisor's gauges and cold starts appear once, not per worker."""
    rig.worker("a")
    rig.worker("b")
    for _ in range(2):
        rig.page.count_cold_starts([LOADED])

    found = rig.samples()
    assert found["fngate_tasks",] == 7
    assert found["fngate_cold_start_seconds_count", "f", "default", "load"] == 1


def test_a_worker_that_ended_stays_counted(rig: Rig) -> None:
    """The counts of a worker that ended stay in the sums, together with its successor's."""
    rig.worker("a").count_reply("default", "f", "ok", "", 0.1)
    rig.page.remove("a")
    assert rig.samples()[REQUESTS] == 2
    rig.worker("c")

    assert rig.samples()[REQUESTS] == 3


def test_open_exchanges_of_a_worker_end_with_it(rig: Rig) -> None:
    """Open exchanges are added up over workers, and those of a worker that ended are gone."""
    for name in ("a", "b"):
        rig.worker(name).exchange_numbers("default", "f").opened()
    assert rig.samples()["fngate_exchanges_open", "f", "default"] == 2

    rig.page.remove("a")
    assert rig.samples()["fngate_exchanges_open", "f", "default"] == 1


def test_counts_of_a_removed_function_disappear(rig: Rig) -> None:
    """The counts of a removed function disappear, those of dead workers included."""
    rig.worker("a")
    rig.worker("b")
    rig.page.remove("a")
    rig.deployed.discard("f")
    rig.page.on_change(REMOVED)
    rig.page.remove("b")

    found = rig.samples()
    assert not any("f" in key for key in found)
    assert found["fngate_requests_total", "g", "default", "ok", ""] == 2
    assert found["fngate_requests_total", OTHERS, "default", "ok", ""] == 2


def test_a_worker_that_ends_between_look_and_render_counts_once(rig: Rig) -> None:
    """A page is rendered from its snapshot: a worker that ends in between counts once."""
    rig.worker("a")
    rig.page.snapshot()
    rig.page.remove("a")
    page = rig.page.render().decode()

    assert (
        'fngate_requests_total{function="f",namespace="default",outcome="ok",reason=""} 1.0' in page
    )


def test_changes_but_removals_take_nothing_away(rig: Rig) -> None:
    """Only removals drop counts; a new deploy of the function keeps them."""
    rig.worker("a")
    rig.page.remove("a")
    rig.page.on_change(Change("put", "default", "f", None, None, (1, 2)))

    assert rig.samples()[REQUESTS] == 1


@pytest.mark.parametrize(
    ("name", "family"),
    [("a_total", "a"), ("a_b_bucket", "a_b"), ("a_sum", "a"), ("a_count", "a"), ("a_b", "a_b")],
)
def test_samples_belong_to_a_family(name: str, family: str) -> None:
    """A sample's family is its name without the suffix."""
    assert family_of(name) == family


async def test_the_ledger_is_as_the_workers_answer(rig: Rig) -> None:
    """The ledger and its exemplars are those of the workers' answers, not of their later
    counters."""
    rig.worker("a")
    ended = {"completed": 2.0}
    labels = ("namespace", "default", "function", "f", "le", "0.025")
    exemplar = Exemplar(("request_id", "x"), 0.02, 100.0)
    marked = [SampleExemplar("fngate_request_seconds_bucket", labels, exemplar)]
    balance = Balance(4.0, ended, {"default/f@1": 1}, {"default/f@1": 1})
    rig.answers["a"] = LedgerNow(balance, marked)
    await rig.page.refresh()

    found = rig.samples()
    assert found["fngate_accepted_total",] == 4
    assert found["fngate_ended_total", "completed"] == 2
    assert found["fngate_held", "default/f@1"] == 1
    text = rig.page.render(OPENMETRICS).decode()
    assert text.count("# {") == 1
    assert 'function="f",le="0.025",namespace="default"} 1.0 # {request_id="x"} 0.02 100.0' in text


def test_a_strict_reader_takes_the_page(rig: Rig) -> None:
    """A strict OpenMetrics parser accepts the page, with the samples of each histogram together."""
    rig.worker("a")
    others = [woken("f", "r1", load=1.0, bind=2.0), woken("g", "r2", load=1.0)]
    rig.page.count_cold_starts(others)
    rig.page.snapshot()
    families = {one.name: one for one in strict(rig.page.render(OPENMETRICS).decode())}

    samples = families["fngate_request_seconds"].samples
    assert [one.name.rpartition("_")[2] for one in samples][-2:] == ["count", "sum"]
    assert {one.labels["function"] for one in samples} == {"f", "g", OTHERS}


def test_a_histogram_that_is_being_made_is_left_out(rig: Rig) -> None:
    """A histogram that a worker is still creating, without its last bucket, is left out."""
    rig.worker("a")
    labels = ("namespace", "function", "le")
    for cells in rig.cells:
        cells.allocate("fngate_request_seconds_bucket", labels, ("default", "new", "0.001"))

    assert not any("new" in key for key in rig.samples())


def test_no_sample_is_there_twice(rig: Rig) -> None:
    """No sample appears twice, since Prometheus would keep an arbitrary one."""
    rig.worker("a").count_dropped_events(2)
    rig.worker("b").count_dropped_events(1)
    rig.page.count_cold_starts([LOADED])
    rig.page.snapshot()
    rows = [line for line in rig.page.render().decode().splitlines() if line[0] != "#"]
    names = [row.rpartition(" ")[0] for row in rows]

    assert len(names) == len(set(names))
    assert rig.samples()["fngate_access_events_left_out_total",] == 3


class Worker:
    """A worker's counters, and its answer to the next question."""

    def __init__(self, name: str, accepted: int, completed: int) -> None:
        self.name = name
        self.counters = CounterReader(records_max=64)
        self.cells = open_writer(os.dup(self.counters.descriptor))
        self.counters.close_descriptor()
        self.ledger = Ledger(self.cells)
        # Records that are not the ledger's are ignored.
        self.cells.allocate("fngate_requests_total", (), ())
        for _ in range(accepted):
            self.ledger.accept()
        for _ in range(completed):
            self.ledger.end("completed")

    def answer(self, held: int, in_flight: int, *marked: SampleExemplar) -> LedgerNow:
        """Return the ledger with these gauges."""
        now = self.ledger.balance({"p": held}, {"p": in_flight})
        return LedgerNow(now, list(marked))


class Two:
    """Worker a with 5 accepted and 2 completed, worker b with 3 and 3, and their page. `said` are
    the answers of those that answer in time."""

    def __init__(self) -> None:
        self.a, self.b = Worker("a", 5, 2), Worker("b", 3, 3)
        self.said: dict[str, LedgerNow] = {}
        self.page = MergedMetrics(self._ask, dict, lambda: 0, lambda *_: True, lambda: 0.0)
        for one in (self.a, self.b):
            self.page.add(one.name, one.counters)

    async def _ask(self, _question: ReadLedger) -> dict[str, LedgerNow]:
        return self.said


@pytest.fixture
def two() -> Iterator[Two]:
    """Two workers."""
    made = Two()
    yield made
    for one in (made.a, made.b):
        one.cells.close()
        one.counters.close()


async def test_all_answer_for_themselves(two: Two) -> None:
    """The balance is the sum of the answers; later requests do not count."""
    two.said = {"a": two.a.answer(2, 1), "b": two.b.answer(0, 0)}
    await two.page.refresh()
    two.a.ledger.accept()
    balance = two.page.balance()

    assert (balance.accepted, balance.ended["completed"]) == (8, 5)
    assert (balance.held, balance.in_flight) == ({"p": 2}, {"p": 1})
    assert balance.missing == 0


async def test_a_request_that_a_worker_has_lost_is_missing(two: Two) -> None:
    """A request that a worker neither ended nor holds is reported as missing."""
    two.said = {"a": two.a.answer(1, 1), "b": two.b.answer(0, 0)}
    await two.page.refresh()

    assert two.page.balance().missing == 1


async def test_open_requests_of_a_dead_worker_are_aborted(two: Two) -> None:
    """Open requests of a dead worker are aborted, also if it had answered; its counts stay."""
    two.said = {"a": two.a.answer(2, 1), "b": two.b.answer(0, 0)}
    await two.page.refresh()
    two.page.remove("a")
    first = two.page.balance()
    two.page.remove("b")
    two.said = {}
    await two.page.refresh()
    last = two.page.balance()

    for balance in (first, last):
        assert (balance.accepted, balance.missing) == (8, 0)
        assert (balance.ended["completed"], balance.ended["aborted"]) == (5, 3)


async def test_a_silent_worker_is_counted_by_its_counters(two: Two) -> None:
    """A worker that does not answer in time is counted by its shared counters."""
    two.said = {"b": two.b.answer(0, 0)}
    await two.page.refresh()
    balance = two.page.balance()

    assert (balance.accepted, balance.missing) == (8, 0)
    assert balance.in_flight == {"p": 0, UNKNOWN_POOL: 3}


async def test_the_latest_exemplar_of_a_bucket_is_shown(two: Two) -> None:
    """Of the exemplars for a bucket the latest is shown, whichever process has it."""
    labels = ("function", "f", "le", "1.0")
    old, new = (
        Exemplar(("request_id", name), 0.5, at_s) for name, at_s in (("x", 1.0), ("y", 2.0))
    )
    two.said = {
        "a": two.a.answer(2, 1, SampleExemplar("n_bucket", labels, new)),
        "b": two.b.answer(0, 0, SampleExemplar("n_bucket", labels, old)),
    }
    await two.page.refresh()

    two.page.snapshot()
    assert two.page._seen[2] == {Sample("n_bucket", labels): new}


LEFT_OUT = Sample("fngate_access_events_left_out_total", ())


def requests(function: str) -> Sample:
    labels = ("namespace", "default", "function", function, "outcome", "ok")
    return Sample("fngate_requests_total", labels)


def numbers(**counts: float) -> Numbers:
    return {requests(name): count for name, count in counts.items()}


@pytest.fixture
def deployed() -> set[str]:
    return {"a", "b", "c"}


@pytest.fixture
def folding(deployed: set[str]) -> LabelLimit:
    return LabelLimit(lambda _namespace, name: name in deployed, functions_max=1)


def test_functions_beyond_the_limit_are_added_up(folding: LabelLimit) -> None:
    """Functions over the limit are summed as others, together with what workers count as others;
    samples without a function are unchanged."""
    given = {LEFT_OUT: 9.0, **numbers(a=1.0, b=2.0, c=3.0), requests(OTHERS): 4.0}

    assert folding.apply(given) == {LEFT_OUT: 9.0, requests("a"): 1.0, requests(OTHERS): 9.0}


def test_a_function_shown_alone_stays_so(folding: LabelLimit) -> None:
    """A function with series of its own keeps them, whatever the order on later pages."""
    folding.apply(numbers(a=1.0))

    assert folding.apply(numbers(b=2.0, a=1.0)) == {requests("a"): 1.0, requests(OTHERS): 2.0}


def test_the_others_do_not_fall_when_one_of_them_goes(
    folding: LabelLimit, deployed: set[str]
) -> None:
    """The sum of the others never falls, since a falling counter looks like a restart: not even
    while a process still reports a removed function."""
    folding.apply(numbers(a=1.0, b=2.0, c=3.0))
    deployed.discard("b")
    folding.forget(("default", "b"))

    assert folding.apply(numbers(a=1.0, b=2.0, c=3.0))[requests(OTHERS)] == 5.0
    assert folding.apply(numbers(a=1.0, c=4.0))[requests(OTHERS)] == 6.0


def test_a_removed_function_makes_room_for_the_next(
    folding: LabelLimit, deployed: set[str]
) -> None:
    """A removed function frees its place, and its counts are dropped."""
    folding.apply(numbers(a=1.0))
    deployed.discard("a")
    folding.forget(("default", "a"))

    assert folding.apply(numbers(a=1.0, b=2.0)) == {requests("b"): 2.0}


def cold_starts(page: ColdStarts) -> dict[tuple[str, str], float]:
    """Return the counts by function and phase."""
    return {
        (sample.labels["function"], sample.labels["phase"]): sample.value
        for family in page.collect()
        for sample in family.samples
        if sample.name == "fngate_cold_start_seconds_count"
    }


def test_a_cold_start_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a replica counts once, whatever number of requests and gateways waited for it. The
    memory of counted ones is bounded: beyond REPLICAS_MAX the oldest is forgotten."""
    monkeypatch.setattr(metrics_module, "REPLICAS_MAX", 2)
    page = ColdStarts(LabelLimit(lambda *_: True), lambda: 0.0)
    for replica in ("r1", "r1", "r2", "r1"):
        page.count(woken("f", replica, load=2000.0))
    assert cold_starts(page) == {("f", "load"): 2}
    page.count(woken("f", "r3", load=2000.0))
    page.count(woken("f", "r1", load=2000.0))

    assert cold_starts(page) == {("f", "load"): 4}


def test_cold_starts_of_many_functions_are_bounded() -> None:
    """Beyond the page's limit, and for a function that was removed, they count together; a removed
    function makes room."""
    limit = LabelLimit(lambda _namespace, name: name != "gone", functions_max=1)
    page = ColdStarts(limit, lambda: 0.0)
    for number, name in enumerate(("f", "g", "gone")):
        page.count(woken(name, f"r{number}", load=2000.0))
    assert cold_starts(page) == {("f", "load"): 1, (OTHERS, "load"): 2}
    limit.forget(("default", "f"))
    page.remove(("default", "f"))
    page.count(woken("g", "r9", load=2000.0))

    assert cold_starts(page) == {("g", "load"): 1, (OTHERS, "load"): 2}


def test_a_wake_is_not_counted_as_a_cold_start() -> None:
    """Nor does it hide the cold start of its replica, which may be reported later."""
    page = ColdStarts(LabelLimit(lambda *_: True), lambda: 0.0)
    page.count(woken("f", "r1", place=1.0, wake=2.0, verify=3.0))
    assert cold_starts(page) == {}
    page.count(woken("f", "r1", place=1.0, load=2000.0))

    assert cold_starts(page) == {("f", "place"): 1, ("f", "load"): 1}


def test_a_cold_start_has_its_request_as_exemplar() -> None:
    """The exemplar has the wall-clock time of its report."""
    page = ColdStarts(LabelLimit(lambda *_: True), lambda: 100.0)
    page.count(Woken("default", "f", "r1", {"load": 2000.0}, ("request_id", "a")))
    marked = [
        sample.exemplar
        for family in page.collect()
        for sample in family.samples
        if sample.exemplar is not None
    ]

    assert [(one.labels, one.timestamp) for one in marked] == [({"request_id": "a"}, 100.0)]


def test_added_sources_are_on_the_page(rig: Rig) -> None:
    """An added source takes its snapshot with the page's, and is shown in a thread later."""
    now = [1]
    rig.page.add_source(Source(lambda: now[0], lambda n: [GaugeMetricFamily("taken", "text", n)]))
    now[0] = 2
    rig.page.snapshot()
    now[0] = 3

    assert "taken 2.0" in rig.page.render().decode()
