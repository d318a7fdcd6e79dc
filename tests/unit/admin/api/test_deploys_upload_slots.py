"""Tests of the slots that uploads take."""

from __future__ import annotations

import asyncio

import pytest

from admin.api.deploys import PROGRESS_BYTES, PROGRESS_S, STALLED_S, UploadSlots
from registry.errors import BodyTimeout, StoreUnavailable


class Loop(asyncio.SelectorEventLoop):
    """A loop whose time is a test's to pass."""

    passed_s = 0.0

    def time(self) -> float:
        return super().time() + self.passed_s


async def upload(slots: UploadSlots, taken: list[int], number: int, end: asyncio.Event) -> str:
    """Take a slot until `end`; how it ended."""
    try:
        async with slots.take() as slot:
            taken.append(number)
            await end.wait()
            slot.whole()
    except (BodyTimeout, StoreUnavailable) as error:
        return str(error)
    return "whole"


def run(steps: object) -> None:
    """In a loop of that kind."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(steps)  # type: ignore[arg-type] # a coroutine


async def turns() -> None:
    """Let all tasks go on."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_stalled_uploads_lock_nobody_out() -> None:
    """With every slot taken a newcomer has to wait for no more than two seconds."""

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        slots, taken, end = UploadSlots(2), list[int](), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(upload(slots, taken, 1, end))
            await turns()
            loop.passed_s += 0.5
            second = group.create_task(upload(slots, taken, 2, end))
            await turns()
            third = group.create_task(upload(slots, taken, 3, end))
            await turns()
            assert "2 uploads are running already" in third.result()
            loop.passed_s += STALLED_S
            fourth = group.create_task(upload(slots, taken, 4, end))
            await turns()
            assert "others wait" in first.result()
            assert not second.done()
            end.set()
        assert (second.result(), fourth.result(), taken) == ("whole", "whole", [1, 2, 4])

    run(steps())


def test_an_upload_without_progress_is_given_up() -> None:
    """A byte now and then is none."""

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        slots = UploadSlots(1)

        async def drip() -> None:
            async with slots.take() as slot:
                for _ in range(3):
                    slot.received(PROGRESS_BYTES)
                    loop.passed_s += PROGRESS_S - 1
                    await turns()
                slot.received(1)
                loop.passed_s += 2
                await asyncio.Event().wait()

        with pytest.raises(BodyTimeout, match="fewer than"):
            await drip()
        async with slots.take():
            """The slot is free again."""

    run(steps())
