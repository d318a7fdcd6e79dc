"""Cost of the dashboard in a browser: `python -m benchmarks.dashboard [--seconds 60] [--json FILE]`

A simulated server with 1,000 functions on 100 devices and 50 events a second, in headless Chromium.
Measures tasks of the page's main thread over 50 ms, and its heap after 1,000 and 3,000 events. The
page is left untouched for a minute, then scrolled, searched and sorted for half a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.measuring.setting import about
from registry.tasks import every
from tests.support.browser import View, viewing
from tests.support.dashboard.server import KEY, Dashboard, Player, serving_dashboard

LONG_MS: Final = 50.0
"""Limit above which a task is noticeable: the RAIL model's limit for a response to input."""
RATE: Final = 50.0
HEAP_AT: Final = (1000, 3000)
TURN_S: Final = 0.05
TASKS: Final = ("RunTask", "ThreadControllerImpl::RunTask")


class Task(NamedTuple):
    """One task of a thread: wall time and CPU time in milliseconds."""

    wall_ms: float
    cpu_ms: float


@dataclass
class Measured:
    """Results. Times in ms; `heap` in bytes, by number of received events."""

    functions: int
    devices: int
    events: int = 0
    seconds: float = 0.0
    snapshot_ms: float = 0.0
    """From the navigation to the first row."""
    quiet: dict[str, float] = field(default_factory=dict)
    """Tasks of the main thread without user input: `long` by wall time, `long_cpu` by CPU time,
    because other processes may have used the core meanwhile."""
    touched: dict[str, float] = field(default_factory=dict)
    """The same while the page is scrolled, searched and sorted."""
    heap: dict[int, int] = field(default_factory=dict)
    nodes: int = 0
    """Elements in the page at the end."""

    @property
    def growth(self) -> float | None:
        """Growth of the heap between the first and the last event count, as a share."""
        if len(self.heap) < len(HEAP_AT):
            return None
        return self.heap[HEAP_AT[-1]] / self.heap[HEAP_AT[0]] - 1


async def measure(seconds: float = 60.0, functions: int = 1000, devices: int = 100) -> Measured:
    """Measure for `seconds`, after everything was shown and used once: the first use compiles code,
    which would count as heap growth."""
    measured = Measured(functions, devices)
    loop = asyncio.get_running_loop()
    async with (
        serving_dashboard(functions, devices) as dashboard,
        viewing(f"{dashboard.url}/ui/#key={KEY}") as view,
    ):
        await view.page.locator(".function-row").first.wait_for()
        measured.snapshot_ms = round(await view.page.evaluate("() => performance.now()"))
        await touch(view, once)
        async with asyncio.TaskGroup() as group:
            playing = group.create_task(Player(dashboard, RATE).play())
            begin = loop.time()
            tasks: list[Task] = []
            for count in HEAP_AT:
                # Heap is measured outside the recording: a forced collection is a long task, too.
                async with tasks_of(view, tasks):
                    over_s = begin + seconds * count / HEAP_AT[-1]
                    await until(partial(is_due, dashboard, count, over_s, seconds))
                if dashboard.told >= count:
                    measured.heap[count] = await heap_of(view)
            measured.quiet = summed(tasks)
            async with tasks_of(view, touched := []):
                await touch(view, lambda: loop.time() - begin > seconds * 1.5)
            measured.touched = summed(touched)
            playing.cancel()
        measured.seconds = round(loop.time() - begin, 1)
        measured.events = dashboard.told
        measured.nodes = await view.count("*")
    return measured


def is_due(dashboard: Dashboard, count: int, over_s: float, seconds: float) -> bool:
    """Whether the time is over and `count` events have arrived; short runs ignore the count."""
    has_come = dashboard.told >= count or seconds < HEAP_AT[-1] / RATE
    return has_come and asyncio.get_running_loop().time() >= over_s


@asynccontextmanager
async def tasks_of(view: View, into: list[Task]) -> AsyncIterator[None]:
    """Record the main thread's tasks while the block runs."""
    browser = view.page.context.browser
    assert browser is not None
    await browser.start_tracing(page=view.page, categories=["toplevel", "__metadata"])
    yield
    into += tasks_in(json.loads(await browser.stop_tracing())["traceEvents"])


def tasks_in(events: list[dict[str, Any]]) -> list[Task]:
    """Return the tasks of the renderers' main threads in a trace. Besides the page's renderer, a
    browser has an idle one."""
    mains = {
        (one["pid"], one["tid"])
        for one in events
        if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"
    }
    return [
        Task(one["dur"] / 1e3, one.get("tdur", 0) / 1e3)
        for one in events
        if one["name"] in TASKS and one["ph"] == "X" and (one["pid"], one["tid"]) in mains
    ]


def summed(tasks: list[Task]) -> dict[str, float]:
    """Return the number of tasks; the number of long ones, the max and the sum by both clocks."""
    found: dict[str, float] = {"tasks": len(tasks)}
    for end, took in (
        ("", [one.wall_ms for one in tasks]),
        ("_cpu", [one.cpu_ms for one in tasks]),
    ):
        found[f"long{end}"] = sum(1 for one in took if one > LONG_MS)
        found[f"longest{end}_ms"] = round(max(took, default=0.0), 1)
        found[f"all{end}_ms"] = round(sum(took))
    return found


async def heap_of(view: View) -> int:
    """Return the heap bytes in use after a collection."""
    session = await view.page.context.new_cdp_session(view.page)
    await session.send("HeapProfiler.collectGarbage")
    used = await session.send("Runtime.getHeapUsage")
    await session.detach()
    return int(used["usedSize"])


def once() -> bool:
    """Return True, so that `touch` runs once."""
    return True


async def touch(view: View, is_over: Callable[[], bool]) -> None:
    """Use the page like a fast user, at least once."""
    page = view.page
    search = page.get_by_role("searchbox")
    while True:
        await page.mouse.move(500, 600)
        for way in (1200, 1200, 1200, -1200, -2400):
            await page.mouse.wheel(0, way)
        await search.fill("digits")
        await search.fill("")
        for name in ("Rate /s", "Held", "State"):
            await page.get_by_role("columnheader", name=name).get_by_role("button").click()
        if is_over():
            return


async def until(is_over: Callable[[], bool]) -> None:
    """Wait until `is_over` returns true."""
    turn = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        ticking = group.create_task(every(TURN_S, turn.set))
        while not is_over():
            turn.clear()
            await turn.wait()
        ticking.cancel()


def shown(measured: Measured) -> str:
    """Format the figures as a table."""
    growth = measured.growth
    rows = [
        ("functions, devices", f"{measured.functions}, {measured.devices}"),
        ("events", f"{measured.events} in {measured.seconds} s"),
        ("first row after", f"{measured.snapshot_ms:g} ms"),
    ]
    for name, tasks in (("untouched", measured.quiet), ("scrolled, searched", measured.touched)):
        for by, end in (("the clock", ""), ("its own CPU time", "_cpu")):
            text = f"{tasks[f'long{end}']} of {tasks['tasks']} tasks over {LONG_MS:g} ms, longest"
            text += f" {tasks[f'longest{end}_ms']} ms, all {tasks[f'all{end}_ms']} ms"
            rows.append((f"{name}, by {by}", text))
    for count, size in measured.heap.items():
        rows.append((f"heap after {count} events", f"{size / 2**20:.2f} MiB"))
    rows.append(("growth of the heap", "not measured" if growth is None else f"{growth:+.1%}"))
    rows.append(("elements in the page", f"{measured.nodes}"))
    lines = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join(["| what | measured |", "|---|---|", *lines])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    measured = asyncio.run(measure(given.seconds))
    print(shown(measured), flush=True)
    if given.json:
        report = {**about(), **asdict(measured), "growth": measured.growth}
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
