"""Messages about parks."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from runtime_image.contract.parks import (
    LIMIT_MAX_MS,
    LifeCommand,
    LifeState,
    ParkHooks,
    hooks_from,
    life_from,
    life_of,
    limit_ms,
    limit_s,
    state_from,
)
from runtime_image.contract.samples import REASON_MAX, SampleRequest
from runtime_image.contract.server import ServerSpec, from_json, to_json

HOOKS = ParkHooks(
    SampleRequest("/s", "POST", {"A": "b"}, "{}"), SampleRequest("/w", "POST"), SampleRequest("/c")
)


@pytest.mark.parametrize("problem", ["", "it hangs"])
@pytest.mark.parametrize("command", LifeCommand)
def test_a_life_says_which_command_it_answers(command: LifeCommand, problem: str) -> None:
    """Both ways, and in JSON."""
    life = life_of(command, problem, 1500.0004)
    assert life_from(json.loads(json.dumps(life))) == (command, problem, 1.5, 0.0)
    measured = life_of(command, problem, 1500.0, 16_000.0)
    assert life_from(json.loads(json.dumps(measured))) == (command, problem, 1.5, 16_000.0)


@pytest.mark.parametrize(("mib", "told"), [(-3.0, 0.0), (1e12, 1e9)])
def test_host_memory_is_bounded(mib: float, told: float) -> None:
    """It may be less than before the sleep."""
    assert life_of(LifeCommand.UNPARK, "", 1.0, mib)["host_mib"] == told


def test_a_long_problem_is_cut() -> None:
    """The receiver refuses a longer one."""
    assert len(life_of(LifeCommand.PARK, "x" * 1000, 0.0)["problem"]) == REASON_MAX


GOOD: dict[str, Any] = {"life": "parked", "problem": "", "took_ms": 1.5}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"life": "asleep"}, "life: expected parked or verifying or ready, got 'asleep'"),
        ({"life": "parking"}, "life: expected parked or verifying or ready, got 'parking'"),
        ({"problem": "no"}, "life: expected parking or unparking or verifying, got 'parked'"),
        ({"life": ["parked"]}, "life: expected parked"),
        ({"life": None}, "life: expected parked"),
        ({"problem": "x" * (REASON_MAX + 1)}, "problem: expected text of at most 500 characters"),
        ({"problem": None}, "problem: expected text"),
        ({"took_ms": -1}, "took_ms: expected 0 to"),
        ({"took_ms": 1e12}, "took_ms: expected 0 to"),
        ({"took_ms": float("nan")}, "expected a finite number"),
        ({"host_mib": -1}, "host_mib: expected 0 to"),
        ({"host_mib": 1e10}, "host_mib: expected 0 to"),
        ({"host_mib": "1"}, "expected a finite number"),
        ({"took_ms": True}, "expected a finite number"),
        ({"took_ms": None}, "expected a finite number"),
        ({"took_ms": 10**400}, "expected a finite number"),
    ],
)
def test_another_life_is_refused(changes: dict[str, Any], expected: str) -> None:
    """A sidecar may be a stranger."""
    with pytest.raises(ValueError, match=expected):
        life_from({**GOOD, **changes})


def test_a_hello_says_the_life() -> None:
    """A replica that cannot be parked says none."""
    assert [state_from(one) for one in (None, *LifeState)] == [None, *LifeState]


@pytest.mark.parametrize("value", ["", "asleep", 1, ["ready"], {}])
def test_another_state_is_refused(value: Any) -> None:
    """A manager would not know what it is charged."""
    with pytest.raises(ValueError, match="life: expected ready or parking"):
        state_from(value)


@pytest.mark.parametrize(("seconds", "ms"), [(20.0, 20_000), (0.0, 1), (1e-9, 1), (1e9, 3_600_000)])
def test_a_limit_is_bounded(seconds: float, ms: int) -> None:
    """Its frame has milliseconds."""
    assert limit_ms(seconds) == ms
    assert limit_s(ms) == ms / 1e3


@pytest.mark.parametrize("ms", [0, LIMIT_MAX_MS + 1])
def test_no_limit_is_refused(ms: int) -> None:
    """A call without an end would hold the sidecar's only thread for parks."""
    with pytest.raises(ValueError, match=f"expected a limit from 1 to {LIMIT_MAX_MS} ms, got {ms}"):
        limit_s(ms)


@pytest.mark.parametrize("hooks", [HOOKS, replace(HOOKS, check=None, is_private=False), None])
def test_hooks_come_with_the_spec(hooks: ParkHooks | None) -> None:
    """As JSON, as BIND has it."""
    spec = ServerSpec("a@1", ("x",), park=hooks)
    assert from_json(json.loads(json.dumps(to_json(spec)))) == spec


@pytest.mark.parametrize("missing", ["sleep", "wake", "check", "is_private"])
def test_hooks_need_all_members(missing: str) -> None:
    """A BIND without them is malformed."""
    data = asdict(HOOKS)
    del data[missing]
    with pytest.raises(KeyError):
        hooks_from(data)
