"""Property tests of turns that keys share."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from admin.deploy.turns import Turns

PARTIES = "abcd"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.sampled_from(PARTIES)),
        st.tuples(st.just("end"), st.integers(0, 100)),
        st.tuples(st.just("cancel"), st.integers(0, 100)),
    ),
    max_size=60,
)


async def follow(places: int, steps: list[tuple[str, str | int]]) -> None:
    """Take, end and cancel turns; check after each step who has one."""
    turns = Turns("run", places)
    running: dict[asyncio.Task[None], str] = {}
    ends: dict[asyncio.Task[None], asyncio.Event] = {}
    waiting: dict[asyncio.Task[None], str] = {}

    async def work(party: str, end: asyncio.Event) -> None:
        own = asyncio.current_task()
        assert own is not None
        async with turns.turn(party):
            running[own] = waiting.pop(own)
            try:
                await end.wait()
            finally:
                del running[own]

    for what, which in steps:
        if isinstance(which, str):
            end = asyncio.Event()
            task = asyncio.create_task(work(which, end))
            ends[task], waiting[task] = end, which
        else:
            there = list(running if what == "end" else chain(running, waiting))
            if there:
                task = there[which % len(there)]
                ends[task].set() if what == "end" else task.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        for task in [one for one in waiting if one.done()]:
            del waiting[task]
        counts = {party: list(running.values()).count(party) for party in PARTIES}
        free = places - len(running)
        assert free >= 0
        assert len(turns) == len(running)
        # Nobody waits who could have a turn.
        assert not any(counts[party] < free for party in waiting.values())
    for end in ends.values():
        end.set()
    for task in ends:
        with suppress(asyncio.CancelledError):
            await task
    assert (len(turns), running) == (0, {})


@given(st.integers(1, 6), STEPS)
def test_no_turn_is_lost_or_given_twice(places: int, steps: list[tuple[str, str | int]]) -> None:
    """However turns are asked for, ended and cancelled: never more than there are, none is kept
    from a party that may have it, and all come back."""
    asyncio.run(follow(places, steps))
