from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from admin.cli.bundle_files import Collected
from admin.cli.render import (
    curl,
    example,
    measured_park,
    prepared,
    python_curl,
    render_connected,
    render_errors,
    render_summary,
    render_why,
    waterfall,
)
from admin.documents.deploys import OperationResult, PythonCalls
from admin.documents.functions import FailureRow, Why
from admin.text import plain
from registry.bundles.paths import make_bundle
from registry.model.bundles import BundleFile
from registry.model.history import ColdStart
from registry.model.profiles import Profile
from tests.support.admin_documents import all_made, made
from tests.support.interfaces import PICTURE, named


def summed_up(result: dict[str, Any]) -> str:
    return render_summary(made(OperationResult, result))


def why_text(answer: dict[str, Any], now_s: float) -> str:
    return render_why(made(Why, answer), [], now_s)


FILES = Collected(
    "digits", False, Path("functions/digits"), make_bundle([BundleFile("m.onnx", 2048, "ab" * 32)])
)
PROFILE: dict[str, Any] = {"load_ms": 9.1, "memory_mib": 41.2, "batchable": True, "batch_max": 32}


def test_a_new_revision_is_summed_up() -> None:
    """The summary of a deploy has the sample's answer and the measurements."""
    result = {
        "revision": "digits@1",
        "created": True,
        "files": 1,
        "size": 2048,
        "sample": {"outputs": {"y": [1]}},
        "profile": PROFILE,
        "batching": "up to 32 rows",
        "switch": "calls go to digits@1",
    }

    assert summed_up(result).split("\n") == [
        "digits@1 deployed (1 file, 2.0 KiB)",
        "  sample    y [1]",
        "  load      9.1 ms",
        "  memory    41 MiB",
        "  batching  up to 32 rows",
        "  switch    calls go to digits@1",
    ]


@pytest.mark.parametrize("more", [{}, {"server": {"command": ["serve"]}}])
def test_what_several_gpus_mean_for_others_is_summed_up(more: dict[str, Any]) -> None:
    """For servers and for functions in Python alike."""
    text = "it takes all 4 GPUs of a host"
    result = {"revision": "llama@1", "profile": PROFILE, "neighbours": text, **more}

    assert any(line.split() == f"neighbours {text}".split() for line in _lines(result))
    assert not any("neighbours" in line for line in _lines({**result, "neighbours": ""}))


def _lines(result: dict[str, Any]) -> list[str]:
    return summed_up(result).split("\n")


def test_a_known_revision_is_named() -> None:
    """A deploy without changes says so and names the revision."""
    result = {"revision": "digits@3", "created": False, "profile": PROFILE}

    assert summed_up(result) == "same bundle and settings as digits@3: nothing changed"
    told = summed_up({**result, "changed": ["labels", "limits.queue"]})
    assert told == "same bundle as digits@3, which stays; changed: labels, limits.queue"


def test_a_bare_result_is_enough() -> None:
    """Fields missing from the result are not shown."""
    assert summed_up({"revision": "digits@1"}) == "digits@1 deployed\n"


@pytest.mark.parametrize(
    ("sample", "command"),
    [
        ({}, "fnctl show digits"),
        ({"x": "@a b.png"}, "fnctl invoke digits -i 'x=@functions/digits/a b.png'"),
        ({"x": [1, 2], "y": "t"}, "fnctl invoke digits -i 'x=[1, 2]' -i 'y=\"t\"'"),
        ({"x": [1] * 100}, "fnctl show digits"),
    ],
)
def test_the_next_command_calls_with_the_sample(sample: dict[str, Any], command: str) -> None:
    """The suggested command calls the function with its own sample if that fits a line."""
    assert example(replace(FILES, sample=sample)) == command


@pytest.mark.parametrize(
    ("sample", "command"),
    [
        ({}, ""),
        (
            {"x": "@a b.png"},
            "curl http://here:1/fn/digits -H 'Content-Type: image/png'"
            " --data-binary '@functions/digits/a b.png'",
        ),
        (
            {"x": [1, 2]},
            "curl http://here:1/fn/digits -H 'Content-Type: application/json'"
            ' -d \'{"inputs": {"x": [1, 2]}}\'',
        ),
        ({"x": [1] * 100}, ""),
    ],
)
def test_curl_calls_with_the_sample(sample: dict[str, Any], command: str) -> None:
    """The suggested curl command sends the sample's file with its content type, or its values, if
    that fits a line."""
    assert curl(replace(FILES, sample=sample), "http://here:1/") == command


TIMES = {"load_ms": 240.0, "first_ms": 6.0, "cpu_ms": {"1": 8.1, "8": 20.0}}
QUICK = {"load_ms": 2.0, "first_ms": 8.0, "cpu_ms": {"1": 10.0, "8": 25.0}}
PREPARED = {"original": TIMES, "quick": QUICK}


@pytest.mark.parametrize(
    ("profile", "shown"),
    [
        ({}, ""),
        ({"prepared": None, "why_not_prepared": "too small"}, "no: too small"),
        (
            {"prepared": {**PREPARED, "fast": None}},
            "first answer after 10 ms instead of 246 ms",
        ),
        (
            {"prepared": {**PREPARED, "fast": TIMES}},
            "first answer after 10 ms instead of 246 ms; then a session built beside it takes"
            " 20% less CPU time",
        ),
    ],
)
def test_the_gain_of_preparation_is_a_line(profile: dict[str, Any], shown: str) -> None:
    """One line says how much faster a prepared model starts, or why it was not prepared."""
    assert prepared(made(Profile, profile)) == shown


def test_the_newest_are_shown_oldest_first() -> None:
    """The latest errors are listed oldest first, one line each with its count."""
    items = [
        {"at_s": 100.0, "code": "poison", "detail": "two\nlines", "count": 3},
        {"at_s": 50.0, "code": "queue_full", "detail": "full"},
        {"at_s": 1.0, "code": "old", "detail": "left out"},
    ]

    assert render_errors(all_made(FailureRow, items), 110.0, 2).split("\n") == [
        "errors",
        "  1 min ago     queue_full: full",
        "  10 s ago      poison (3 times): two lines",
    ]


def test_no_errors_are_no_section() -> None:
    """Without errors there is no section for them."""
    assert render_errors([], 1.0, 5) == ""


NOW_S = 1_000_000.0
COLD: dict[str, Any] = {
    "at_s": NOW_S - 120,
    "total_ms": 140,
    "phases": {"load": 10.0, "start": 30.0, "import": 60.0, "evict": 0.0, "other": 0.1},
    "device_kind": "cpu",
    "number": 3,
    "outcome": "ready",
}


def test_a_cold_start_is_a_waterfall() -> None:
    """Each phase of a cold start begins where the one before ended, in the order of a replica's
    life."""
    assert waterfall(made(ColdStart, COLD), NOW_S).split("\n") == [
        "  2 min ago  140 ms  on cpu  revision 3  ready",
        "    start   ████████████                               30 ms",
        "    import             ████████████████████████        60 ms",
        "    load                                       ████    10 ms",
        "    other                                          ▏   0.1 ms",
    ]


def test_a_cold_start_without_phases_is_a_line() -> None:
    """A start that failed before its first phase is shown as a single line."""
    failed = {"at_s": NOW_S, "outcome": "failed"}

    assert "\n" not in waterfall(made(ColdStart, failed), NOW_S)


def test_the_last_decisions_are_shown_in_order() -> None:
    """The newest ten decisions are shown in order of time, whatever their order in the answer."""
    decisions = [{"at_s": NOW_S - age, "text": f"d{age}"} for age in range(15)]

    shown = why_text({"state": "warm", "reason": "busy", "decisions": decisions}, NOW_S).split("\n")

    assert shown[0] == "warm: busy"
    assert shown[2:4] == ["decisions", "  9 s ago       d9"]
    assert shown[-1] == "  just now      d0"


def test_the_last_cold_starts_are_shown() -> None:
    """Only the last three cold starts are shown."""
    shown = why_text({"state": "cold", "reason": "", "cold_starts": [COLD] * 5}, NOW_S)

    assert shown.count("revision 3") == 3


def test_the_blocking_reason_is_shown_once() -> None:
    """The blocking reason stands below the state, unless the state has it already."""
    warm = {"state": "warm", "reason": "calls", "blocked": "no device is free"}

    assert why_text(warm, NOW_S) == "warm: calls\nblocked: no device is free"
    assert why_text({**warm, "reason": "no device is free"}, NOW_S) == "warm: no device is free"
    assert why_text({**warm, "blocked": ""}, NOW_S) == "warm: calls"


CONNECTED = {
    "key": "d5691",
    "note": "the lab",
    "kind": "websocket",
    "since_s": 90.0,
    "path": "/api/kernels",
    "counts": True,
}


def test_why_names_who_keeps_the_devices() -> None:
    """With what frees one."""
    waiting = {"state": "waking", "reason": "no free device", "blocked": "no free device"}

    shown = why_text({**waiting, "kept_by": ["a", "b"]}, NOW_S)

    remedy = "fnctl scale a --min 0, or more memory or devices"
    assert shown == f"waking: no free device\nkept by a, b: {remedy}"


def test_why_names_who_is_connected() -> None:
    """One line each, and what is not shown is counted; a note may have any characters."""
    others = [
        {**CONNECTED, "note": "", "kind": "events", "counts": False},
        {**CONNECTED, "note": "", "key": "", "kind": "request", "path": "/a\x1b[2Jb"},
    ]
    answer = {
        "state": "warm",
        "reason": "kept for the next call",
        "awake": "2 open exchanges keep it awake",
        "connected": [CONNECTED, *others],
        "connections": {"counting": 2, "free": 5},
    }

    assert plain(why_text(answer, 100.0)).split("\n")[2:] == [
        "connected: 2 open exchanges keep it awake",
        "  10 s ago  websocket     the lab  /api/kernels",
        "  10 s ago  events, free  d5691    /api/kernels",
        "  10 s ago  request       no key   /a\ufffd[2Jb",
        "  and 4 more",
    ]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("events", "an event stream"),
        ("websocket", "a WebSocket"),
        ("request", "a request"),
    ],
)
def test_why_says_which_exchange_keeps_a_function_in_use(kind: str, what: str) -> None:
    """The one that ended last, as long as none is open."""
    answer = {
        "state": "warm",
        "reason": "kept for the next call",
        "sleeps_at_s": 390.0,
        "last": {**CONNECTED, "kind": kind, "path": "/a\x1b[2Jb"},
    }

    until = datetime.fromtimestamp(390.0).astimezone().strftime("%H:%M:%S")
    assert plain(why_text(answer, 100.0)).split("\n")[1:] == [
        f"in use until {until}: {what} (/a\ufffd[2Jb) ended 10 s ago"
    ]
    for none in ({"sleeps_at_s": None}, {"last": None}):
        assert "in use until" not in why_text({**answer, **none}, 100.0)


def test_why_is_silent_about_nobody() -> None:
    """A model, and a server function without open exchanges."""
    for answer in ({}, {"awake": "", "connected": [], "connections": {"counting": 0, "free": 0}}):
        assert "connected" not in why_text({"state": "cold", "reason": "x", **answer}, 0.0)


def _connected(answer: dict[str, Any]) -> str:
    return render_connected(made(Why, answer), 100.0)


def test_websockets_that_were_closed_are_named() -> None:
    """Also while nobody is connected."""
    closed = {"key": "k1", "note": "the lab", "kind": "websocket", "since_s": 90.0, "path": "/ws"}

    shown = _connected({"connected": [], "closed": [closed]})

    assert shown.splitlines()[0] == "closed: no data passed, and the function went to sleep"
    assert "the lab" in shown
    assert "/ws" in shown
    assert _connected({"connected": [], "closed": []}) == ""
    used = {**closed, "counts": True, "path": "/busy"}
    shown = _connected({"closed": [closed, used]})
    assert [line.split()[-1] for line in shown.splitlines()] == ["sleep", "/ws", "use", "/busy"]


def test_commands_fit_the_parameters_of_a_python_function() -> None:
    """Its sample, whose files are those of the folder; else what its schema allows, on a line."""
    pic = replace(FILES, name="pic", root=Path("pic"), is_server=True)
    inputs = named("image", "k", image=PICTURE, k={"type": "integer"}, more={"type": "string"})
    calls = made(PythonCalls, {"form": "generator", "schema": {"inputs": inputs}})
    sampled = replace(pic, sample={"image": "@two.png", "k": [1]})
    long = made(PythonCalls, {"schema": {"inputs": named("x" * 400, **{"x" * 400: {}})}})

    assert example(pic, calls) == "fnctl invoke pic -i image=@x.png -i k=1"
    assert python_curl(pic, "http://a/", calls) == "curl -N http://a/fn/pic -F image=@x.png -F k=1"
    assert example(sampled, calls) == "fnctl invoke pic"
    line = "curl -N http://a/fn/pic -F image=@pic/two.png -F 'k=[1]'"
    assert python_curl(sampled, "http://a", calls) == line
    assert (example(pic, long), python_curl(pic, "http://a", long)) == ("fnctl show pic", "")


SHOWN = {
    "works": True,
    "reason": "",
    "sleep_s": 3.1,
    "wake_s": 2.2,
    "host_mib": 16_384.0,
    "residue_mib": 1126.4,
}


@pytest.mark.parametrize(
    ("park", "text"),
    [
        (
            SHOWN,
            "asleep in 3.1 s, wakes in 2.2 s, keeps 1.1 GiB of each GPU, takes 16.0 GiB of host"
            " memory",
        ),
        ({**SHOWN, "works": False, "reason": "it\nhangs"}, "not parked: it hangs"),
        (None, ""),
    ],
)
def test_what_a_park_has_shown_is_told(park: dict[str, Any] | None, text: str) -> None:
    """Or why there is none, where one was wanted: at a deploy, and at one that measures again."""
    assert measured_park(made(Profile, {"park": park})) == text
    result = {"revision": "llm@1", "profile": {"park": park}, "server": {"ready": "/up"}}
    again = {**result, "created": False, "batching": "no: a server"}
    line = f"  park  {text}" if text else ""
    for one in (result, again):
        shown = summed_up(one).split("\n")
        parks = [" ".join(row.split()) for row in shown if row.startswith("  park ")]
        assert parks == ([" ".join(line.split())] if line else [])
