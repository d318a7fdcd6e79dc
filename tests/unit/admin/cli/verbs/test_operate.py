from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

ROLLBACK_PATH = "/admin/v1/functions/digits/rollback"
OPERATION = "/admin/v1/operations/o1"
RUNNING = {"id": "o1", "kind": "rollback", "state": "running", "phase": "warm"}
DONE: dict[str, Any] = {
    **RUNNING,
    "state": "done",
    "phase": "switch",
    "result": {
        "revision": "digits@1",
        "from": "digits@2",
        "switch": "warm before traffic moved",
    },
}


def test_a_rollback_is_followed_to_its_end(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """rollback prints its phases, where calls go now, and the next command."""
    api.on("POST", ROLLBACK_PATH, Canned(RUNNING, 202))
    api.on("GET", OPERATION, Canned(DONE))

    result = fnctl("rollback", "digits")

    assert result.exit_code == 0
    assert result.stdout == (
        "calls go to digits@1, which takes over from digits@2\n"
        "  switch  warm before traffic moved\n"
    )
    assert "  warm " in result.stderr
    assert result.stderr.endswith("next: fnctl show digits  or  fnctl invoke digits\n")
    assert api.sent("POST")[0].json == {}


def test_a_rollback_may_name_a_revision_and_break(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """--to and --breaking are sent as given; --json prints the operation."""
    api.on("POST", ROLLBACK_PATH, Canned(DONE, 202))

    result = fnctl("rollback", "digits", "--to", "1", "--breaking", "--json")

    assert json.loads(result.stdout) == api.body("POST", ROLLBACK_PATH)
    assert (api.sent("POST")[0].json, result.stderr) == ({"to": 1, "breaking": True}, "")


def test_a_refused_rollback_says_why(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A refused rollback reports the reason, whether refused at once or by its operation."""
    problem = {"title": "Conflict", "detail": "nothing before digits@1", "status": 409}
    api.on("POST", ROLLBACK_PATH, Canned(problem, 409), Canned(RUNNING, 202))
    api.on("GET", OPERATION, Canned({**RUNNING, "state": "failed", "error": problem}))

    for _ in range(2):
        result = fnctl("rollback", "digits")
        assert result.exit_code == 1
        assert "error: Conflict: nothing before digits@1\n" in result.stderr


def test_a_revision_is_a_number(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A revision that is not a number is wrong usage."""
    for to in ("0", "digits@1"):
        assert fnctl("rollback", "digits", "--to", to).exit_code == 2
    assert api.requests == []


SCALE_PATH = "/admin/v1/functions/digits"
SCALE_ANSWER = {
    "name": "digits",
    "min": 1,
    "max": 4,
    "idle_s": 60.0,
    "spread": True,
    "file_hosts": 1,
    "warnings": [],
}


@pytest.fixture(autouse=True)
def scalable(api: AdminApi) -> None:
    """Serve a function with the ETag "t"."""
    api.on("GET", SCALE_PATH, Canned({"name": "digits"}, headers={"ETag": '"t"'}))
    api.on("PATCH", SCALE_PATH, Canned(SCALE_ANSWER))


def test_scale_changes_what_was_read(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """scale sends only the given settings, with the ETag it has read."""
    result = fnctl("scale", "digits", "--min", "1", "--max", "4", "--idle", "60")

    assert (result.exit_code, result.stderr) == (0, "next: fnctl show digits\n")
    assert result.stdout == "digits: min 1, max 4, idle 60 s\n"
    (sent,) = api.sent("PATCH")
    assert (sent.json, sent.headers["If-Match"]) == ({"min": 1, "max": 4, "idle_s": 60.0}, '"t"')
    assert json.loads(fnctl("scale", "digits", "--max", "2", "--json").stdout) == SCALE_ANSWER
    assert api.sent("PATCH")[1].json == {"max": 2}


def test_scale_says_what_other_tenants_may_do(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Only where it is not what follows from min; an earlier server does not say it."""
    api.on("PATCH", SCALE_PATH, Canned({**SCALE_ANSWER, "preemptible": True}))
    assert fnctl("scale", "digits", "--preemptible").stdout == (
        "digits: min 1, max 4, idle 60 s, preemptible\n"
    )
    api.on("PATCH", SCALE_PATH, Canned({**SCALE_ANSWER, "min": 0, "preemptible": False}))
    assert fnctl("scale", "digits", "--not-preemptible").stdout == (
        "digits: min 0, max 4, idle 60 s, not preemptible\n"
    )
    assert [one.json for one in api.sent("PATCH")] == [
        {"preemptible": True},
        {"preemptible": False},
    ]


def test_scale_warns_of_what_cannot_be_kept(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """On stderr, before the next command."""
    api.on("PATCH", SCALE_PATH, Canned({**SCALE_ANSWER, "warnings": ["min keeps all slots"]}))

    result = fnctl("scale", "digits", "--min", "1")

    assert result.stderr == "warning: min keeps all slots\nnext: fnctl show digits\n"


@pytest.mark.parametrize(
    "words",
    [[], ["--min", "-1"], ["--max", "0"], ["--idle", "soon"], ["--idle", "inf"], ["--idle", "nan"]],
)
def test_a_scale_without_changes_is_wrong_usage(
    api: AdminApi, fnctl: Callable[..., Result], words: list[str]
) -> None:
    """A scale without valid changes is wrong usage, without any request."""
    assert fnctl("scale", "digits", *words).exit_code == 2
    assert api.requests == []


def test_a_change_at_the_same_time_is_told(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A conflicting change is reported: nothing was changed and the command can be repeated."""
    problem = {"title": "Changed", "detail": "other tag", "code": "precondition_failed"}
    api.on("PATCH", SCALE_PATH, Canned(problem, 412))

    result = fnctl("scale", "digits", "--max", "2")

    assert result.exit_code == 1
    hint = "next: another client changed it at the same time: repeat the command\n"
    assert result.stderr.endswith(hint)


SLEEP_PATH = "/admin/v1/functions/digits/sleep"


@pytest.mark.parametrize(
    ("changes", "text", "next_step"),
    [
        ({}, "digits has no replica to stop\n", "fnctl ls"),
        (
            {"reasons": ["1 replica still loading"]},
            "digits has no replica to stop: 1 replica still loading\n",
            "fnctl ls",
        ),
        ({"asked": 1}, "digits: 1 replica asked to stop\n", "fnctl ls"),
        (
            {"asked": 2, "stay": 1, "min": 1, "reasons": ["min is 1"]},
            "digits: 2 replicas asked to stop\n  1 replica stays: min is 1\n",
            "fnctl scale digits --min 0",
        ),
        (
            {"stay": 2, "open": 3, "reasons": ["3 exchanges open"]},
            "digits: 0 replicas asked to stop\n  2 replicas stay: 3 exchanges open\n",
            "fnctl why digits  or  fnctl sleep digits --force",
        ),
        (
            {"asked": 1, "open": 3, "reasons": ["1 replica still loading"]},
            "digits: 1 replica asked to stop\n  what they have accepted is answered first\n"
            "  1 replica still loading\n",
            "fnctl ls",
        ),
    ],
)
def test_sleep_says_what_it_did(
    api: AdminApi,
    fnctl: Callable[..., Result],
    changes: dict[str, Any],
    text: str,
    next_step: str,
) -> None:
    """sleep reports how many replicas it asked to stop, how many stay and why, and how to change
    that."""
    nothing = {"name": "digits", "asked": 0, "stay": 0, "min": 0, "open": 0, "reasons": []}
    answer = {**nothing, **changes}
    api.on("POST", SLEEP_PATH, Canned(answer))

    result = fnctl("sleep", "digits")

    assert (result.exit_code, result.stdout) == (0, text)
    assert result.stderr == f"next: {next_step}\n"
    assert json.loads(fnctl("sleep", "digits", "--json").stdout) == answer
    assert api.requests[0].json == {}
    fnctl("sleep", "digits", "--force")
    assert json.loads(api.requests[-1].body) == {"force": True}


WARM_PATH = "/admin/v1/functions/digits/warm"
WARM_ANSWER: dict[str, Any] = {
    "name": "digits",
    "revision": "digits@3",
    "was_warm": False,
    "took_ms": 143.2,
    "idle_s": 300,
}


@pytest.mark.parametrize(
    ("was_warm", "text"),
    [(False, "digits@3 is warm after 143 ms\n"), (True, "digits@3 is warm already\n")],
)
def test_warm_says_how_long_it_took(
    api: AdminApi, fnctl: Callable[..., Result], was_warm: bool, text: str
) -> None:
    """warm reports the time it took, or that the function was warm; --json prints the API's
    answer."""
    answer = {**WARM_ANSWER, "was_warm": was_warm}
    api.on("POST", WARM_PATH, Canned(answer))

    result = fnctl("warm", "digits", "--wait", "5")

    assert (result.exit_code, result.stdout) == (0, text)
    assert result.stderr == "next: fnctl invoke digits  or  fnctl scale digits --min 1\n"
    assert api.sent("POST")[0].query == {"wait": "5"}
    assert json.loads(fnctl("warm", "digits", "--json").stdout) == answer


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("function_failing", "next: fnctl why digits  or  fnctl logs digits\n"),
        ("no_room", "next: fnctl why digits  or  fnctl ls\n"),
        ("unknown_function", "next: list the functions: fnctl ls\n"),
    ],
)
def test_a_failed_warm_says_why(
    api: AdminApi, fnctl: Callable[..., Result], code: str, hint: str
) -> None:
    """A failed warm reports the reason, the last log lines, and where to look next."""
    problem = {"title": "Not ready", "detail": "no such operator", "code": code, "status": 503}
    api.on("POST", WARM_PATH, Canned({**problem, "log_tail": ["line 1", "line 2"]}, 503))

    result = fnctl("warm", "digits")

    assert result.exit_code == 1
    assert result.stderr == (
        "error: Not ready: no such operator\n"
        "  last lines of its log:\n    line 1\n    line 2\n" + hint
    )


@pytest.mark.parametrize("wait", ["0", "3601", "soon"])
def test_a_wait_is_bounded(api: AdminApi, fnctl: Callable[..., Result], wait: str) -> None:
    """A wait out of bounds is wrong usage."""
    assert fnctl("warm", "digits", "--wait", wait).exit_code == 2
    assert api.requests == []


RM_PATH = "/admin/v1/functions/digits"


@pytest.fixture(autouse=True)
def removable(api: AdminApi) -> None:
    """Serve a function that can be removed."""
    api.on("GET", RM_PATH, Canned({"name": "digits"}))
    api.on("DELETE", RM_PATH, Canned({"removed": "digits"}))


def test_yes_removes_at_once(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--yes removes without a question."""
    result = fnctl("rm", "digits", "--yes")

    assert result.stdout == "digits is removed\n"
    assert json.loads(fnctl("rm", "digits", "--yes", "--json").stdout) == {"removed": "digits"}


@pytest.mark.parametrize(("input", "code", "calls"), [("y\n", 0, 1), ("n\n", 1, 0), ("", 2, 0)])
def test_a_person_is_asked(
    api: AdminApi, fnctl: Callable[..., Result], input: str, code: int, calls: int
) -> None:
    """Only "y" removes; any other answer, or the end of the input, changes nothing."""
    result = fnctl("rm", "digits", input=input)

    assert result.exit_code == code
    assert len(api.sent("DELETE", RM_PATH)) == calls
    assert ("expected --yes" in result.stderr) == (code == 2)


def test_an_unknown_function_is_refused_before_the_question(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """An unknown function is refused with similar names before any question."""
    problem = {
        "title": "Unknown function",
        "code": "unknown_function",
        "detail": "no function 'nope'; did you mean 'rope'?",
    }
    api.on("GET", "/admin/v1/functions/nope", Canned(problem, 404))

    result = fnctl("rm", "nope")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: Unknown function: no function 'nope'; did you mean")
    assert "Remove nope" not in result.stderr


def test_a_script_must_say_yes(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--json never asks; without --yes it is refused."""
    assert fnctl("rm", "digits", "--json").exit_code == 2
    assert api.requests == []


PREPARE_PATH = "/admin/v1/functions/digits/prepare"
BUILD: dict[str, Any] = {"state": "waiting", "reason": "", "attempts": 0}


def test_a_build_is_followed_to_its_end(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """prepare asks for the compiled model, prints its progress once per state, and its result."""
    building = {**BUILD, "state": "building", "attempts": 1, "elapsed_s": 3.0}
    done = {**BUILD, "state": "done", "compiler": "tensorrt", "device_type": "cuda"}
    api.on("POST", PREPARE_PATH, Canned({"name": "digits", "build": BUILD}, 202))
    shown = [Canned({"build": one}) for one in (building, building, done)]
    api.on("GET", "/admin/v1/functions/digits", *shown)

    result = fnctl("prepare", "digits", "--now")

    assert result.exit_code == 0
    assert api.sent("POST")[0].json == {"now": True}
    assert result.stdout == "digits: by tensorrt for cuda, built in -\n"
    assert result.stderr.count("waiting: ") == result.stderr.count("building: 3 s") == 1


def test_a_build_that_ends_without_a_model_fails(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """The exit code is 1 with the reason; --wait 0 follows nothing and is 0."""
    failed = {**BUILD, "state": "failed", "reason": "output y differs by 0.4"}
    api.on("POST", PREPARE_PATH, Canned({"build": BUILD}, 202))
    api.on("GET", "/admin/v1/functions/digits", Canned({"build": failed}))

    result = fnctl("prepare", "digits")
    at_once = fnctl("prepare", "digits", "--wait", "0", "--json")

    assert (result.exit_code, at_once.exit_code) == (1, 0)
    assert result.stdout == "digits: failed: output y differs by 0.4\n"
    assert json.loads(at_once.stdout)["build"]["state"] == "waiting"


@pytest.mark.parametrize(("option", "when"), [("--now", "a device is free"), ("--", "is idle")])
def test_a_model_that_is_not_compiled_is_measured_again(
    api: AdminApi, fnctl: Callable[..., Result], option: str, when: str
) -> None:
    """prepare says when, and that the function's decisions have the result."""
    api.on("POST", PREPARE_PATH, Canned({"name": "digits", "build": None, "builds": []}))

    result = fnctl("prepare", option, "digits")

    assert result.exit_code == 0
    assert when in result.stdout
    assert "fnctl why digits" in result.stderr + result.stdout


PARK_PATH = "/admin/v1/functions/digits/park"


@pytest.mark.parametrize(
    ("changes", "text", "code", "next_step"),
    [
        (
            {"asked": 1, "parked": 1},
            "digits: 1 replica parked after 3.1 s; a call wakes one in about 2.1 s\n",
            0,
            "fnctl unpark digits  or  fnctl why digits",
        ),
        (
            {"parked": 2},
            "digits: 2 replicas parked already; a call wakes one in about 2.1 s\n",
            0,
            "fnctl unpark digits  or  fnctl why digits",
        ),
        (
            {"asked": 1, "parked": 1, "stay": 1, "min": 1, "reasons": ["r2 is not parked: min"]},
            "digits: 1 replica parked after 3.1 s; a call wakes one in about 2.1 s\n"
            "  1 replica stays awake\n  r2 is not parked: min\n",
            0,
            "fnctl scale digits --min 0",
        ),
        (
            {"asked": 1, "reasons": ["r1 ended: its park is not proved"]},
            "digits: no replica is parked\n  r1 ended: its park is not proved\n",
            1,
            "fnctl why digits",
        ),
        (
            {},
            "digits: no replica is parked\n  there is none that could be\n",
            1,
            "fnctl why digits",
        ),
    ],
)
def test_park_says_what_sleeps(
    api: AdminApi,
    fnctl: Callable[..., Result],
    changes: dict[str, Any],
    text: str,
    code: int,
    next_step: str,
) -> None:
    """park reports how many replicas sleep, how many stay and why. The exit code is 1 if none
    sleeps in the end."""
    nothing = {"name": "digits", "asked": 0, "parked": 0, "stay": 0, "min": 0, "open": 0}
    answer = {**nothing, "took_ms": 3_100.0, "wake_ms": 2_100, "reasons": [], **changes}
    api.on("POST", PARK_PATH, Canned(answer))

    result = fnctl("park", "digits")

    assert (result.exit_code, result.stdout) == (code, text)
    assert result.stderr == f"next: {next_step}\n"
    shown = fnctl("park", "digits", "--json")
    assert (shown.exit_code, json.loads(shown.stdout)) == (code, answer)


@pytest.mark.parametrize("verb", ["park", "unpark"])
def test_a_function_that_is_not_parked_says_why(
    api: AdminApi, fnctl: Callable[..., Result], verb: str
) -> None:
    """It is a refusal, with the commands that tell more."""
    problem = {"title": "Conflict", "code": "conflict", "detail": "digits@3 has no table [park]"}
    api.on("POST", f"/admin/v1/functions/digits/{verb}", Canned(problem, 409))

    result = fnctl(verb, "digits", "--wait", "5")

    assert result.exit_code == 1
    assert "error: Conflict: digits@3 has no table [park]\n" in result.stderr
    assert result.stderr.endswith("next: fnctl show digits  or  fnctl why digits\n")
    assert fnctl(verb, "digits", "--wait", "0").exit_code == 2


def test_unpark_says_how_long_it_took(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """As warm does."""
    api.on("POST", "/admin/v1/functions/digits/unpark", Canned(WARM_ANSWER))

    result = fnctl("unpark", "digits")

    assert (result.exit_code, result.stdout) == (0, "digits@3 is warm after 143 ms\n")
    assert result.stderr == "next: fnctl invoke digits  or  fnctl park digits\n"
