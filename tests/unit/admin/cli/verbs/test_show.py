from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from admin.cli.verbs.show import render
from admin.documents.functions import FunctionDetail
from registry.model.functions import EXCHANGE_MAX_S
from tests.support.admin_api import AdminApi, Canned
from tests.support.admin_documents import made
from tests.support.interfaces import named

NOW_S = 1000.0
LIMITS = "timeout_s 60.0, wait_s 55.0, queue 2000, body_mib 64, retry auto"


def show_text(function: dict[str, Any], now_s: float) -> str:
    return render(made(FunctionDetail, function), [], now_s)


FUNCTION: dict[str, Any] = {
    "name": "digits",
    "revision": "digits@3",
    "state": "cold",
    "reason": "no requests",
    "ready": 0,
    "wanted": 0,
    "held": 0,
    "in_flight": 0,
    "min": 0,
    "max": 2,
    "idle_s": 60.0,
    "ready_in_ms": 50,
    "labels": {"team": "a"},
    "limits": {"timeout_s": 60},
    "signature": {
        "kind": "tensors",
        "inputs": [{"name": "image", "dtype": "FP32", "shape": [-1, 8, 8]}],
        "outputs": [{"name": "label", "dtype": "INT64", "shape": [-1]}],
    },
    "revisions": [
        {
            "number": 3,
            "traffic": True,
            "engine": "onnx",
            "size": 2048,
            "profile": {"load_ms": 9, "memory_mib": 41, "batchable": True, "batch_max": 8},
            "batching": "up to 6 rows",
            "batch_max": 6,
        },
        {"number": 2, "traffic": False, "engine": "onnx", "size": 0, "profile": None},
        {"number": 1, "traffic": False, "engine": "onnx", "size": 0, "profile": None},
    ],
    "previous": 2,
    "cold_starts": [
        {
            "device_kind": "cpu",
            "standby": True,
            "samples": 12,
            "total": {"p50_ms": 40.1, "p90_ms": 61.0},
            "phases": {"bind": {"p50_ms": 2.0, "p90_ms": 3.0}},
        },
        {
            "device_kind": "cuda",
            "standby": False,
            "samples": 1,
            "total": {"p50_ms": 4000, "p90_ms": 4000},
            "phases": {},
        },
    ],
    "example": "curl ...",
    "spread": True,
    "file_hosts": 1,
}


def test_a_function_is_shown_whole() -> None:
    """show has state, scaling, tensors, revisions and an example."""
    assert show_text(FUNCTION, NOW_S).split("\n") == [
        "digits@3  cold: no requests",
        "",
        "  replicas  0 ready of 0 wanted",
        "  scaling   0 to 2 replicas",
        "  idle      60.0 s, as of its deploy or fnctl scale",
        "  ready in  ~50 ms",
        "  requests  0 held, 0 in flight",
        "  labels    team=a",
        f"  limits    {LIMITS}",
        "",
        "     TENSOR  DTYPE  SHAPE",
        "in   image   FP32   [any, 8, 8]",
        "out  label   INT64  [any]",
        "",
        "COLD STARTS          PHASE  P50    P90",
        "cpu, standby (12)    total  40 ms  61 ms",
        "                     bind   2 ms   3 ms",
        "cuda, new start (1)  total  4.0 s  4.0 s",
        "",
        "REVISION  TRAFFIC  ENGINE  SIZE     LOAD  MEMORY  BATCHING",
        "3         now      onnx    2.0 KiB  9 ms  41 MiB  up to 6 rows",
        "2         before   onnx    0 B      -     -       -",
        "1         -        onnx    0 B      -     -       -",
        "",
        "example",
        "  curl ...",
    ]


def test_a_function_without_tensors_says_what_it_takes() -> None:
    """A function that takes JSON has no table of tensors."""
    assert "takes json" in show_text({**FUNCTION, "signature": {"kind": "json"}}, NOW_S)


PYTHON: dict[str, Any] = {
    **FUNCTION,
    "server": {"command": ["python"]},
    "exchange": {"concurrency": 1},
    "predict": "predict(text: str,\n k: int = 1)",
    "signature": {"kind": "json", "inputs": [], "outputs": []},
    "schema": {"inputs": named("text", text={"type": "string"}, k={"type": "integer"})},
    "no_schema": "",
}


def test_a_python_function_is_shown_with_its_inputs() -> None:
    """Its signature, what each input takes, and the limits that it uses; or why that is unknown."""
    shown = show_text(PYTHON, NOW_S)

    assert f"limits    {LIMITS}, concurrency 1, " in shown
    assert "takes predict(text: str, k: int = 1)\n\nINPUT  TAKES" in shown
    assert "\ntext   a text, or a file  yes\nk      an integer         no\n" in shown
    without = show_text({**PYTHON, "schema": None, "no_schema": "too\nlong"}, NOW_S)
    assert "takes predict(text: str, k: int = 1): no schema, too long" in without
    tensors = show_text({**PYTHON, "signature": FUNCTION["signature"]}, NOW_S)
    assert "in   image   FP32   [any, 8, 8]" in tensors


def test_show_asks_for_the_function(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--json prints the API's answer; the text is followed by the next commands."""
    api.on("GET", "/admin/v1/functions/digits", Canned(FUNCTION))
    api.on("GET", "/admin/v1/functions/digits/errors", Canned({"items": []}))

    told = json.loads(fnctl("show", "digits", "--json").stdout)
    assert told == {**api.body("GET", "/admin/v1/functions/digits"), "errors": []}
    assert "or  fnctl why digits" in fnctl("show", "digits").stderr


def test_the_gain_of_what_was_prepared_is_shown() -> None:
    """The gain of the prepared model is that of the current revision."""
    times = {"load_ms": 100.0, "first_ms": 5.0, "cpu_ms": {"1": 1.0}}
    quick = {"load_ms": 5.0, "first_ms": 5.0, "cpu_ms": {"1": 1.0}}
    profile = {"load_ms": 9, "prepared": {"original": times, "quick": quick, "fast": None}}
    profile |= {"memory_mib": 41, "batchable": False}
    revisions = [{**FUNCTION["revisions"][0], "profile": profile}, FUNCTION["revisions"][1]]

    shown = show_text({**FUNCTION, "revisions": revisions}, NOW_S)

    assert "  prepared  first answer after 10 ms instead of 105 ms" in shown.split("\n")


def test_a_server_is_shown_with_its_command() -> None:
    """A server function has its command, probe, rules and limits; those of models are left out."""
    server = {
        "command": ["uvicorn", "a b", "${PORT}"],
        "env": ["HOME", "TOKEN"],
        "ready": "",
        "network": "egress",
        "start_s": 600.0,
        "paths": {"wake": [], "free": ["/static/*"], "deny": ["/x", "POST /y"]},
    }
    one = {
        **FUNCTION,
        "in_flight": 3,
        "signature": {"kind": "http", "inputs": [], "outputs": []},
        "server": server,
        "limits": {"timeout_s": 60.0, "wait_s": 55.0, "body_mib": 64},
        "exchange": {"concurrency": 4},
        "revisions": [{**FUNCTION["revisions"][0], "profile": {"load_ms": 2500, "memory_mib": 1}}],
    }

    lines = [" ".join(line.split()) for line in show_text(one, NOW_S).splitlines()]

    for line in (
        "requests 0 held, 3 open",
        "limits wait_s 55.0, queue 2000, retry auto, concurrency 4, first_byte_s 300.0,"
        f" stall_s 0.0, max_s {EXCHANGE_MAX_S}, drain_s {EXCHANGE_MAX_S}, websockets count",
        "command uvicorn 'a b' ${PORT}",
        "variables HOME, TOKEN",
        "ready /, any status below 500",
        "network egress",
        "start at most 600.0 s, 2.5 s in the trial",
        "free /static/*",
        "deny /x, POST /y",
        "takes HTTP requests",
    ):
        assert line in lines
    assert not [line for line in lines if line.startswith(("wake", "answers"))]


def test_several_gpus_are_shown_with_what_they_mean_for_others() -> None:
    """Of a function on one device nothing is said."""
    text = "it takes 4 of the 8 GPUs of a host"
    wide = {**FUNCTION, "device": {"count": 4}, "neighbours": text}
    lines = [" ".join(line.split()) for line in show_text(wide, NOW_S).splitlines()]

    assert {"GPUs 4 for each replica", f"neighbours {text}"} <= set(lines)
    assert "GPUs" not in show_text({**FUNCTION, "device": {"count": 1}, "neighbours": ""}, NOW_S)


MEASURED = {"load_ms": 9, "memory_mib": 41}
GOLDEN = {
    "sample": {
        "request": {"method": "POST", "path": "/v1/completions"},
        "usual_ms": 12.0,
        "rule": "text",
    }
}


@pytest.mark.parametrize(
    ("revision", "more", "line"),
    [
        (
            {"profile": {**MEASURED, "golden": GOLDEN}, "why_not_golden": ""},
            {},
            "golden POST /v1/completions in 12 ms, compared by text",
        ),
        (
            {"profile": {**MEASURED, "golden": GOLDEN}, "why_not_golden": ""},
            {"golden": "wrong"},
            "golden POST /v1/completions in 12 ms, compared by text; last answered wrong",
        ),
        (
            {"why_not_golden": "no sample has golden = true"},
            {},
            "golden none: no sample has golden = true",
        ),
        ({"why_not_golden": "no sample has golden = true"}, {"predict": "a page"}, ""),
        ({}, {}, ""),
    ],
    ids=["learnt", "wrong", "none", "python", "earlier release"],
)
def test_the_golden_sample_of_a_server_is_shown(
    revision: dict[str, Any], more: dict[str, Any], line: str
) -> None:
    """Which it is, what it showed last, or why there is none."""
    revisions = [{"number": 3, "traffic": True, **revision}, {"number": 2}]
    one = {**FUNCTION, "server": {"command": ["serve"]}, "revisions": revisions, **more}

    lines = [" ".join(line.split()) for line in show_text(one, NOW_S).splitlines()]

    assert [one for one in lines if one.startswith("golden")] == ([line] if line else [])


@pytest.mark.parametrize(
    ("park", "hint", "line"),
    [
        ({"engine": "vllm", "park_s": 86_400.0}, "", "park vllm, at most 86400 s"),
        ({"engine": "", "park_s": 90.0}, "", "park POST /s, at most 90 s"),
        (None, '[park] engine = "vllm" lets it sleep', 'park [park] engine = "vllm" lets it sleep'),
        (None, "", ""),
    ],
)
def test_how_a_server_sleeps_is_shown(park: dict[str, Any] | None, hint: str, line: str) -> None:
    """Or the table that would fit."""
    settings = park and {**park, "sleep": {"method": "POST", "path": "/s"}}
    revisions = [{"number": 3, "traffic": True, "park_hint": hint}]
    one = {**FUNCTION, "server": {"command": ["serve"], "park": settings}, "revisions": revisions}

    lines = [" ".join(line.split()) for line in show_text(one, NOW_S).splitlines()]

    assert [one for one in lines if one.startswith("park")] == ([line] if line else [])


@pytest.mark.parametrize(
    ("row", "more"),
    [
        ({"off": "it hangs", "wake_ms": None, "parked": []}, "; not parked: it hangs"),
        ({"off": "", "wake_ms": 2_100, "parked": []}, "; wakes in about 2.1 s"),
        ({"off": "", "wake_ms": 2_100, "parked": [{}]}, "; wakes in about 2.1 s; 1 parked"),
    ],
)
def test_whether_a_server_is_parked_is_shown(row: dict[str, Any], more: str) -> None:
    """How long a wake takes, what sleeps now, or why nothing is parked."""
    settings = {"engine": "vllm", "park_s": 90.0, "sleep": {"method": "POST", "path": "/s"}}
    one = {**FUNCTION, "server": {"command": ["serve"], "park": settings}, "park": row}

    lines = [" ".join(line.split()) for line in show_text(one, NOW_S).splitlines()]

    assert f"park vllm, at most 90 s{more}" in lines


def test_an_image_is_shown_with_what_it_may_do() -> None:
    """A function of an image has its reference and id, its port, and what it gets of the host."""
    mount = {"name": "data", "source": "/srv/data", "target": "/data", "is_read_only": True}
    server = {
        "image": {"reference": "hello:1", "id": f"sha256:{'ab' * 32}", "digest": ""},
        "command": ["--fast"],
        "port": 8000,
        "user": "33:33",
        "capabilities": ["CHOWN", "SETUID"],
        "mounts": [mount, {**mount, "target": "/out", "is_read_only": False}],
        "secrets": {"HF_TOKEN": "hf"},
        "fields": ["x_y", "x_z"],
    }

    lines = [
        " ".join(line.split())
        for line in show_text({**FUNCTION, "server": server}, NOW_S).split("\n")
    ]

    for line in (
        "image hello:1 abababababab",
        "port 8000",
        "user 33:33",
        "capabilities CHOWN, SETUID",
        "mounts /srv/data at /data, /srv/data at /out (rw)",
        "command --fast",
        "secrets HF_TOKEN = hf",
        "fields x_y, x_z",
    ):
        assert line in lines


def test_times_of_a_servers_answers_are_those_of_the_last_minute() -> None:
    """The first byte is shown apart from the whole exchange, also while no exchange has ended."""
    first = {"first_byte_p50_ms": 3.0, "first_byte_p95_ms": 20.0}
    both = {**first, "p50_ms": 10_000.0, "p95_ms": 12_000.0}
    for known, said in (
        (first, "answers first byte P50 3 ms, P95 20 ms (last minute)"),
        (both, "20 ms; whole exchange P50 10.0 s, P95 12.0 s (last minute)"),
    ):
        shown = show_text({**FUNCTION, "server": {"command": ["x"]}, **known}, NOW_S)
        assert said in " ".join(shown.split())
    assert "answers" not in show_text({**FUNCTION, **both}, NOW_S)


def test_versions_in_the_protocol_are_shown() -> None:
    """A name and versions at /v2 are shown where a function has them."""
    first, *others = FUNCTION["revisions"]
    versions = [{**first, "oip_version": "12"}, *others]
    shown = show_text({**FUNCTION, "oip_name": "Digits", "revisions": versions}, NOW_S).split("\n")
    assert "  at /v2    Digits" in shown
    at = next(at for at, line in enumerate(shown) if line.startswith("REVISION  VERSION  TRAFFIC"))
    row, older = shown[at + 1 : at + 3]
    assert row.split()[:3] == ["3", "12", "now"]
    assert older.split()[:3] == ["2", "-", "before"]
