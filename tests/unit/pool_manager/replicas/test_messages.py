"""Validation of what replicas report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.core.health.liveness import Reading
from pool_manager.replicas import messages
from registry.exchange import PoolEndpoints, encode
from runtime_image.contract.health import Learnt, Ready
from runtime_image.contract.link import Kind
from runtime_image.link.frames import Frame, LinkError

LOADED: dict[str, Any] = {"limit": 4, "memory_mib": 40.5, "phases": {"load": 2.0}}
INF, NAN = float("inf"), float("nan")


def test_an_honest_statement_is_taken_as_it_is() -> None:
    """Limit, memory, phases and a trial's report."""
    report = {"memory_mib": 3.0, "load_ms": 1, "latency_ms": {"1": 0.5}, "why_not": "é"}

    said = messages.parse_loaded("0a", {**LOADED, "marks_started": False, "report": report})

    known = events.Loaded("0a", 4, False, 40.5, {"load": 2.0}, report, is_unparkable=True)
    assert said == known


def test_only_what_says_its_life_can_be_parked() -> None:
    """A sidecar that knows nothing of parks would end its link at the command."""
    said = [messages.parse_loaded("0a", {**LOADED, **one}) for one in ({}, {"life": "ready"})]

    assert [one.is_unparkable for one in said] == [True, False]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"limit": -1}, "limit -1"),
        ({"limit": 10**9}, "limit 1000000000"),
        ({"memory_mib": NAN}, "memory_mib nan"),
        ({"memory_mib": INF}, "memory_mib inf"),
        ({"memory_mib": 1e300}, "memory_mib 1e+300"),
        ({"memory_mib": 10**400}, "memory_mib 1000"),
        ({"memory_mib": -1}, "memory_mib -1"),
        ({"memory_mib": True}, "memory_mib True"),
        ({"report": {"memory_mib": NAN}}, "report memory_mib nan"),
        ({"report": {"load_ms": "x"}}, "report load_ms 'x'"),
        ({"report": {"latency_ms": {"1": -1.0}}}, "report latency_ms"),
        ({"report": {"latency_ms": []}}, "report latency_ms"),
        ({"report": {"why_not": "\ud800"}}, "report contains invalid text"),
    ],
)
def test_numbers_that_are_none_are_refused(changes: dict[str, Any], reason: str) -> None:
    """Invalid numbers are refused, since they would affect the placement of all functions."""
    with pytest.raises(LinkError, match="malformed LOADED: ") as error:
        messages.parse_loaded("0a", {**LOADED, **changes})

    assert reason in str(error.value)


PROBED: dict[str, Any] = {"path": "/up", "status": 404, "answer": "no", "seconds": 1}


def test_what_a_probe_met_is_one_short_line() -> None:
    """Whatever a server has answered: it is shown in terminals and to callers."""
    said = messages.parse_probed("0a", {**PROBED, "answer": "a\x1b[2J\nb" + "x" * 500})

    assert said == events.Probed("0a", "/up", 404, "a?[2J?b" + "x" * 93, 1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": -1},
        {"status": 1000},
        {"status": True},
        {"status": None},
        {"seconds": NAN},
        {"seconds": -1},
        {"seconds": "1"},
    ],
)
def test_a_probe_with_numbers_that_are_none_is_refused(changes: dict[str, Any]) -> None:
    """They would end a trial, or never let it end."""
    with pytest.raises(LinkError, match="malformed PROBED: "):
        messages.parse_probed("0a", {**PROBED, **changes})


def test_phases_that_are_no_times_are_left_out() -> None:
    """Phases that are not valid durations are dropped."""
    given = {
        "load": NAN,
        "bind": -1,
        "start": INF,
        "import": 10**400,
        "read": True,
        "place": 1.23456,
    }

    assert messages.parse_numbers(given) == {"place": 1.235}
    assert messages.parse_numbers([]) == {}


def test_a_reason_can_be_sent_and_stored() -> None:
    """Lone surrogates are replaced, since they would break every message that contains them."""
    failed = messages.parse_load_failed(
        "0a", json.loads('{"reason": "no \\ud800", "stage": ["load"]}')
    )

    assert (failed.reason, failed.stage) == ("no ?", "['load']")
    assert encode(PoolEndpoints([], "failing", failed.reason))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["a", "fngate replica: no device"], "no device"),
        (["fngate replica: no device", "b"], ""),
        ([], ""),
    ],
)
def test_last_words_are_the_last_line(lines: list[str], words: str) -> None:
    """A replica's reason is taken only from the last line, and only with the prefix."""
    assert messages.last_words(lines) == words


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_no_object_ends_the_link(body: bytes) -> None:
    """A body that is not a JSON object ends the link, whatever its nesting."""
    with pytest.raises(LinkError, match="malformed LOADED"):
        messages.parse_frame(Frame(Kind.LOADED, 0, 0, 0, b"", body))


HEALTH = {
    "open": 2,
    "moved": 2**40,
    "given": 7,
    "unread": True,
    "counter": 3,
    "cpu": 0.5,
    "is_traced": False,
    "probes": 1,
    "ready": "failing",
    "said": "503",
}


def test_a_reading_is_taken_as_it_is() -> None:
    """Missing values are unknown."""
    reading = Reading(2, 2**40, 7, True, 3.0, 0.5, False, 1, Ready.FAILING, "503")
    assert messages.parse_health("r", HEALTH) == events.Observed("r", reading)

    unknown = messages.parse_health(
        "r", {**HEALTH, "counter": None, "cpu": None, "ready": ""}
    ).reading
    assert (unknown.counter, unknown.cpu, unknown.ready) == (None, None, None)
    assert messages.parse_health("r", {**HEALTH, "counter": float("nan")}).reading.counter is None


@pytest.mark.parametrize(
    "changes",
    [
        {"open": -1},
        {"open": True},
        {"moved": 1.5},
        {"moved": 2**64},
        {"given": None},
        {"cpu": float("nan")},
        {"cpu": "1"},
        {"probes": "1"},
        {"ready": "well"},
        {"ready": ["right"]},
    ],
)
def test_a_reading_that_is_none_ends_the_link(changes: dict[str, Any]) -> None:
    """Readings decide about replicas, so every number is checked."""
    with pytest.raises(LinkError, match="malformed HEALTH"):
        messages.parse_health("r", {**HEALTH, **changes})


LEARNT = {"known": 60, "usual_s": 1.5, "longest_s": 7}


def test_what_an_earlier_manager_had_learnt_is_taken_as_it_is() -> None:
    """A sidecar that was adopted repeats it; others have none."""
    said = messages.parse_loaded("r", {**LOADED, "ready_for_s": 9, "learnt": LEARNT})
    assert (said.ready_for_s, said.learnt) == (9.0, Learnt(60, 1.5, 7.0))

    assert messages.parse_loaded("r", LOADED).learnt is None


@pytest.mark.parametrize(
    "changes",
    [
        {"ready_for_s": -1},
        {"ready_for_s": None},
        {"learnt": {}},
        {"learnt": [60, 1.5, 7.0]},
        {"learnt": {**LEARNT, "known": -1}},
        {"learnt": {**LEARNT, "known": 1.5}},
        {"learnt": {**LEARNT, "usual_s": NAN}},
        {"learnt": {**LEARNT, "longest_s": "7"}},
    ],
)
def test_what_was_not_learnt_ends_the_link(changes: dict[str, Any]) -> None:
    """It decides about replicas, so every number is checked."""
    with pytest.raises(LinkError, match="malformed LOADED"):
        messages.parse_loaded("r", {**LOADED, **changes})


GPU: dict[str, Any] = {"uuid": "GPU-2fa81118-5a5f", "total_mib": 1000, "used_mib": 10.5}


def test_gpus_are_readings() -> None:
    """A replica says what it sees; what its driver does not report is missing."""
    read = messages.parse_gpus([GPU, {"uuid": "MIG-1", "later": [1]}])

    assert [(one.uuid, one.total_mib, one.used_mib) for one in read] == [
        ("GPU-2fa81118-5a5f", 1000.0, 10.5),
        ("MIG-1", None, None),
    ]
    assert messages.parse_gpus(None) == messages.parse_gpus([]) == ()
    assert messages.parse_loaded("r", {**LOADED, "gpus": [GPU]}).gpus == read[:1]


@pytest.mark.parametrize(
    "value",
    [
        {},
        "GPU-a",
        [[]],
        [{}],
        [{"uuid": 7}],
        [{"uuid": ""}],
        [{"uuid": "GPU-a\n"}],
        [{"uuid": "c/n/GPU-a"}],
        [{"uuid": "G" * 97}],
        [{"uuid": "\ud800"}],
        [{**GPU, "used_mib": NAN}],
        [{**GPU, "used_mib": -1}],
        [{**GPU, "total_mib": 10**400}],
        [{**GPU, "total_mib": "1"}],
        [{**GPU, "total_mib": True}],
        [GPU] * 65,
    ],
)
def test_gpus_that_are_none_are_refused(value: Any) -> None:
    """They decide whether a replica may load its model."""
    with pytest.raises(LinkError, match="GPU"):
        messages.parse_gpus(value)
