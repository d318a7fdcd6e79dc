"""The table of a replica's life."""

from __future__ import annotations

import itertools

import pytest

from pool_manager.core.state import (
    TRANSITIONS,
    Device,
    ImpossibleStep,
    Replica,
    State,
    Step,
    advance,
)


def reachable(start: State) -> set[State]:
    found = {start}
    todo = [start]
    while todo:
        for state in TRANSITIONS[todo.pop()].values():
            if state not in found:
                found.add(state)
                todo.append(state)
    return found


@pytest.mark.parametrize(("state", "step"), list(itertools.product(State, Step)))
def test_every_pair_is_in_the_table_or_raises(state: State, step: Step) -> None:
    """`advance` follows the table; a missing pair raises with state and step."""
    if step in TRANSITIONS[state]:
        assert TRANSITIONS[state][step] is advance(state, step)
        return

    with pytest.raises(ImpossibleStep, match=f"{state} -> {step}"):
        advance(state, step)


@pytest.mark.parametrize("state", State)
def test_no_state_is_a_dead_end(state: State) -> None:
    """Every state can be reached from a start, and from every state a replica can stop."""
    assert state in reachable(State.STARTING)
    assert State.STOPPED in reachable(state)


def test_every_failure_goes_to_releasing() -> None:
    """A replica lost in any live state keeps its device until its end is proved."""
    living = set(State) - {State.RELEASING, State.STOPPED}

    assert {State.RELEASING} == {advance(state, Step.LOST) for state in living}


def test_only_releasing_stops() -> None:
    """STOPPED is reached only from RELEASING."""
    before = {state for state in State if State.STOPPED in TRANSITIONS[state].values()}

    assert {State.RELEASING} == before


@pytest.mark.parametrize("if_idle", [False, True])
@pytest.mark.parametrize("state", State)
def test_what_gateways_may_send_to(state: State, if_idle: bool) -> None:
    """A replica serves if it is READY or may refuse its drain; before that it is coming."""
    replica = Replica("r1", "default/a@1", ("d0",), "serve", 0.0, state, if_idle=if_idle)

    assert replica.can_serve is (state == "ready" or (state == "draining" and if_idle))
    coming = {"starting", "standby", "loading", "unparking", "verifying"}
    assert replica.is_coming is (state in coming)


@pytest.mark.parametrize("state", State)
def test_what_goes_will_be_gone_soon(state: State) -> None:
    """Draining and releasing replicas are leaving; one whose release failed is not."""
    replica = Replica("r1", "default/a@1", ("d0",), "serve", 0.0, state)
    assert replica.is_leaving is (state in {"draining", "parking", "proving", "releasing"})

    replica.deadline_s = 100.0

    assert replica.is_leaving is (state in {"draining", "parking", "proving"})


def test_a_device_without_a_bank_is_its_own() -> None:
    """A device without a named bank has its own."""
    assert Device("gpu", "cuda").bank == "gpu"
    assert Device("d0", "cpu", 1_000, "ram").bank == "ram"
