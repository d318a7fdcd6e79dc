"""Tests of /metrics over all workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict
from prometheus_client.parser import text_string_to_metric_families

from admin.workers.messages import Reckon, Reckoned, decode_down
from admin.workers.metrics import LedgerPoll, MergedMetrics, family_of
from admin.workers.shared_counters import CounterReader, CounterWriter
from gateway.metrics.counters import OPENMETRICS, CounterStore, Exemplar, SampleExemplar
from gateway.metrics.ledger import Ledger
from gateway.metrics.requests import OTHERS, Metrics
from registry.catalog import Change

REMOVED = Change("remove", "default", "f", None, None)


class Rig:
    """A supervisor's page, and workers whose metrics count in tables of it."""

    def __init__(self) -> None:
        self.deployed = {"f", "g"}
        self.poll = LedgerPoll()
        self.page = MergedMetrics(self._metrics(), self.poll, self.is_deployed)
        self.sent: list[bytes] = []
        self.tables: dict[str, CounterReader] = {}
        self.cells: list[CounterWriter] = []

    def _metrics(self, store: CounterStore | None = None) -> Metrics:
        return Metrics(self.poll.balance, dict, lambda: 7, self.is_deployed, store)

    def is_deployed(self, _namespace: str, name: str) -> bool:
        """What the catalog says."""
        return name in self.deployed

    def worker(self, name: str) -> Metrics:
        """A worker joins."""
        counters = CounterReader()
        cells = CounterWriter(os.dup(counters.descriptor))
        counters.close_descriptor()
        Ledger(cells)
        metrics = self._metrics(cells)
        for function in ("f", "g", "beyond"):
            metrics.count_reply("default", function, "ok", "", 0.02)
        self.tables[name] = counters
        self.cells.append(cells)
        self.page.add_worker(name, counters, self.sent.append)
        return metrics

    def samples(self) -> dict[tuple[str, ...], float]:
        """Every sample by its name and label values, sorted by label."""
        self.page.snapshot()
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.page.render().decode())
            for sample in family.samples
        }


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Without workers yet. Each has answered f, g and one that is not deployed once."""
    rig = Rig()
    yield rig
    for cells in rig.cells:
        cells.close()
    for counters in rig.tables.values():
        counters.close()


REQUESTS = ("fngate_requests_total", "f", "default", "ok", "")
COUNT = ("fngate_request_seconds_count", "f", "default")


def test_all_workers_are_added_up(rig: Rig) -> None:
    """Counters, and histograms with their buckets summed up to each bound."""
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


def test_what_the_supervisor_knows_itself_is_there_once(rig: Rig) -> None:
    """Gauges, and cold starts whoever waited for them."""
    rig.worker("a")
    rig.worker("b")
    own = rig.page._own
    for _ in range(2):
        own.count_cold_start("default", "f", "r1", {"load": 2000.0})

    found = rig.samples()
    assert found["fngate_tasks",] == 7
    assert found["fngate_cold_start_seconds_count", "f", "default", "load"] == 1


def test_a_worker_that_ended_stays_counted(rig: Rig) -> None:
    """Its last number is in the sum, and its successor's are added."""
    rig.worker("a").count_reply("default", "f", "ok", "", 0.1)
    rig.page.remove_worker("a")
    assert rig.samples()[REQUESTS] == 2
    rig.worker("c")

    assert rig.samples()[REQUESTS] == 3


def test_what_was_counted_for_a_removed_function_goes(rig: Rig) -> None:
    """Also what a dead worker had counted, whether it died before or after."""
    rig.worker("a")
    rig.worker("b")
    rig.page.remove_worker("a")
    rig.deployed.discard("f")
    rig.page.on_change(REMOVED)
    rig.page.remove_worker("b")

    found = rig.samples()
    assert not any("f" in key for key in found)
    assert found["fngate_requests_total", "g", "default", "ok", ""] == 2
    assert found["fngate_requests_total", OTHERS, "default", "ok", ""] == 2


def test_a_worker_that_ends_between_look_and_render_counts_once(rig: Rig) -> None:
    """The page is written in a thread, from what was there at the look."""
    rig.worker("a")
    rig.page.snapshot()
    rig.page.remove_worker("a")
    page = rig.page.render().decode()

    assert (
        'fngate_requests_total{function="f",namespace="default",outcome="ok",reason=""} 1.0' in page
    )


def test_changes_but_removals_take_nothing_away(rig: Rig) -> None:
    """A function that was deployed again goes on."""
    rig.worker("a")
    rig.page.remove_worker("a")
    rig.page.on_change(Change("put", "default", "f", None, None, (1, 2)))

    assert rig.samples()[REQUESTS] == 1


@pytest.mark.parametrize(
    ("name", "family"),
    [("a_total", "a"), ("a_b_bucket", "a_b"), ("a_sum", "a"), ("a_count", "a"), ("a_b", "a_b")],
)
def test_samples_belong_to_a_family(name: str, family: str) -> None:
    """By what their names end in."""
    assert family_of(name) == family


async def test_the_ledger_is_as_the_workers_answer(rig: Rig) -> None:
    """Not as their counters are a moment later; what is held and where is theirs to know."""
    rig.worker("a")
    asking = asyncio.create_task(rig.page.refresh())
    await asyncio.sleep(0)
    [question] = [decode_down(data) for data in rig.sent]
    assert isinstance(question, Reckon)
    ended = {"completed": 2.0}
    labels = ("namespace", "default", "function", "f", "le", "0.025")
    exemplar = Exemplar(("request_id", "x"), 0.02, 100.0)
    marked = [SampleExemplar("fngate_request_seconds_bucket", labels, exemplar)]
    answer = Reckoned(question.number, 4.0, ended, {"default/f@1": 1}, {"default/f@1": 1}, marked)
    rig.page.on_reckoned("a", answer)
    await asking

    found = rig.samples()
    assert found["fngate_accepted_total",] == 4
    assert found["fngate_ended_total", "completed"] == 2
    assert found["fngate_held", "default/f@1"] == 1
    text = rig.page.render(OPENMETRICS).decode()
    assert text.count("# {") == 1
    assert 'function="f",le="0.025",namespace="default"} 1.0 # {request_id="x"} 0.02 100.0' in text


def test_a_strict_reader_takes_the_page(rig: Rig) -> None:
    """OpenMetrics wants all samples of one histogram together; there are those of two functions."""
    rig.worker("a")
    rig.page._own.count_cold_start("default", "f", "r1", {"load": 1.0, "bind": 2.0})
    rig.page._own.count_cold_start("default", "g", "r2", {"load": 1.0})
    rig.page.snapshot()
    families = {one.name: one for one in strict(rig.page.render(OPENMETRICS).decode())}

    samples = families["fngate_request_seconds"].samples
    assert [one.name.rpartition("_")[2] for one in samples][-2:] == ["count", "sum"]
    assert {one.labels["function"] for one in samples} == {"f", "g", OTHERS}


def test_a_histogram_that_is_being_made_is_left_out(rig: Rig) -> None:
    """A page is read while workers count: without its last bucket it is none."""
    rig.worker("a")
    labels = ("namespace", "function", "le")
    for cells in rig.cells:
        cells.allocate("fngate_request_seconds_bucket", labels, ("default", "new", "0.001"))

    assert not any("new" in key for key in rig.samples())


def test_no_sample_is_there_twice(rig: Rig) -> None:
    """Prometheus takes one of two, and nobody knows which."""
    rig.worker("a").count_dropped_events(2)
    rig.worker("b").count_dropped_events(1)
    rig.page._own.count_cold_start("default", "f", "r1", {"load": 1.0})
    rig.page.snapshot()
    rows = [line for line in rig.page.render().decode().splitlines() if line[0] != "#"]
    names = [row.rpartition(" ")[0] for row in rows]

    assert len(names) == len(set(names))
    assert rig.samples()["fngate_access_events_left_out_total",] == 3
