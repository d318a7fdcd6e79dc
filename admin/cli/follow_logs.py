"""A deploy as its user sees it: missing files go up, then the operation is watched to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer

from admin.cli.bundle_files import Collected, open_file
from admin.cli.errors import INTERRUPTED
from admin.cli.options import Session
from admin.client.client import ApiError, Client, Progress, Unreachable
from admin.text import duration, get

POLL_S: Final = 20
"""Seconds the server may hold one question for news."""
ABSENCES_MAX: Final = 60
ABSENCE_S: Final = 0.5
"""A server that restarts goes on with its operations: it is asked again this often."""

Step = Callable[[str, float], None]
"""Called with a phase that is over and its milliseconds."""


def upload(client: Client, collected: Collected, bar: Callable[[int], Any]) -> tuple[int, int]:
    """Send what the server has not; how many files and bytes that was.

    `bar` makes a context manager, for so many bytes, that gives a Progress.
    """
    files = {file.sha256: file for file in collected.bundle.files}
    missing = [file for sha256, file in files.items() if not client.has_blob(sha256, file.size)]
    total = sum(file.size for file in missing)
    with bar(total) as progress:
        for file in missing:
            with open_file(collected.root, file.path) as source:
                client.put_blob(file.sha256, source, file.size, progress)
    return len(missing), total


def follow(
    client: Client,
    operation: dict[str, Any],
    step: Step,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """The operation once it has ended; `step` hears of every phase it passed.

    Raises ApiError, or Unreachable where the server stays away.
    """
    since_s = clock()
    while True:
        phase = str(operation.get("phase", ""))
        ended = operation.get("state") != "running"
        news = operation if ended else _news(client, str(operation["id"]), phase, pause)
        if ended or news.get("phase") != phase:
            now_s = clock()
            step(phase, (now_s - since_s) * 1e3)
            since_s = now_s
        if ended:
            return operation
        operation = news


def finish(session: Session, operation: dict[str, Any]) -> dict[str, Any]:
    """The operation once it is done; Ctrl-C cancels it.

    Raises ApiError with the reason where it failed, and ends the command where it was cancelled.
    """
    try:
        ended = follow(session.client, operation, steps(session.remark))
    except KeyboardInterrupt:
        session.remark("cancelling …")
        ended = session.client.cancel(str(operation["id"]))
    if ended.get("state") == "failed":
        kind = get(ended, "kind") or "operation"
        problem = ended.get("error") or {"title": f"The {kind} failed", "detail": "no reason given"}
        raise ApiError(int(problem.get("status", 0)), problem)
    if ended.get("state") != "done":
        session.answer(ended, lambda: f"{ended.get('state')}: nothing changed")
        raise typer.Exit(INTERRUPTED)
    return ended


def steps(write: Callable[[str], None]) -> Step:
    """A Step that writes one line per phase."""
    return lambda phase, ms: write(f"  {phase:<8} {duration(ms)}")


@contextmanager
def bar(total: int, quiet: bool = False) -> Iterator[Progress]:
    """A progress bar over `total` bytes on stderr, where that is a terminal and not `quiet`."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        "  upload  ",
        rich.BarColumn(),
        rich.DownloadColumn(binary_units=True),
        rich.TransferSpeedColumn(),
    )
    hidden = quiet or not total or not console.is_terminal
    with rich.Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("upload", total=total)
        yield lambda count: progress.advance(task, count)


def _news(client: Client, id: str, phase: str, pause: Callable[[float], None]) -> dict[str, Any]:
    for _ in range(ABSENCES_MAX):
        try:
            return client.operation(id, POLL_S, phase)
        except Unreachable:
            pause(ABSENCE_S)
    return client.operation(id, POLL_S, phase)
