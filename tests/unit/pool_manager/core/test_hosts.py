"""The table of a host's states, and the texts of its record."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pool_manager.core import hosts
from pool_manager.core.hosts import (
    HOST_TRANSITIONS,
    HostRecord,
    HostState,
    HostStep,
    ImpossibleHostStep,
    advance_host,
)


@pytest.mark.parametrize(("state", "step"), [*itertools.product(HostState, HostStep)])
def test_every_pair_is_in_the_table_or_raises(state: HostState, step: HostStep) -> None:
    """A step that the table does not have is a defect of the caller."""
    if step in HOST_TRANSITIONS[state]:
        assert advance_host(state, step) is HOST_TRANSITIONS[state][step]
    else:
        with pytest.raises(ImpossibleHostStep, match=f"{state} -> {step}"):
            advance_host(state, step)


def test_the_design_has_the_table() -> None:
    """The table in design.md is that of the program."""
    text = (Path(hosts.__file__).parent / "design.md").read_text()
    rows = [line[1:-1].split("|") for line in text.splitlines() if line.startswith("|")]
    head, *states = [[cell.strip() for cell in row] for row in rows if len(row) > 2]
    shown = {row[0]: dict(zip(head[1:], row[1:], strict=False)) for row in states[1:]}

    assert shown.keys() == set(HostState)
    for state, steps in HOST_TRANSITIONS.items():
        assert {step: to for step, to in shown[state].items() if to} == steps


def test_a_host_can_always_come_back() -> None:
    """From every state a host can become UP again."""
    for state in HostState:
        found, todo = {state}, [state]
        while todo:
            new = set(HOST_TRANSITIONS[todo.pop()].values()) - found
            found |= new
            todo += new
        assert HostState.UP in found


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (HostState.JOINING, "gpu2 has not joined yet: no route"),
        (HostState.UNREACHABLE, "gpu2 is unreachable: no route"),
        (HostState.GONE, "gpu2 is gone: no route"),
        (HostState.DRAINING, "gpu2 is drained"),
        (HostState.UP, ""),
    ],
)
def test_an_obstacle_names_the_host(state: HostState, text: str) -> None:
    """The reason why nothing can be placed on a host names it."""
    assert HostRecord("gpu2", state, 0.0, "no route").obstacle == text


def test_an_engine_that_is_away_is_an_obstacle() -> None:
    """The reason of the local host is that of its engine alone."""
    far = HostRecord("gpu2", HostState.UP, 0.0, engine_down="no answer")
    near = HostRecord("local", HostState.UP, 0.0, engine_down="no answer")

    assert (far.obstacle, near.obstacle) == ("gpu2: no answer", "no answer")
    assert HostRecord("gpu2", HostState.JOINING, 0.0).obstacle == "gpu2 has not joined yet"


def test_which_hosts_are_reachable_or_away() -> None:
    """Hosts that are up or drain can be commanded; those that time makes GONE are away."""
    reachable = {one for one in HostState if HostRecord("a", one, 0.0).is_reachable}
    away = {one for one in HostState if HostRecord("a", one, 0.0).is_away}

    assert reachable == {HostState.UP, HostState.DRAINING}
    assert away == {HostState.JOINING, HostState.UNREACHABLE}
