"""Operations as fnctl runs them: uploads files, prints phases, cancels on Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer

from admin import documents as d
from admin.cli.bundle_files import Collected, open_file
from admin.cli.errors import INTERRUPTED
from admin.cli.options import Session
from admin.client import routes
from admin.client.client import ApiError, Client, Progress, Unreachable
from admin.text import duration

if TYPE_CHECKING:
    from admin.client.document import Document

POLL_S: Final = 20
"""Max seconds that the server holds a poll for a change."""
LINGER_S: Final = 10
"""The same for the first poll of a phase; a remark follows if the phase then goes on."""
RETRIES_MAX: Final = 60
RETRY_S: Final = 0.5
"""Retries and the seconds between them while the server is unreachable: a restarted server resumes
its operations."""

Step = Callable[[str, float], None]
"""Receives a finished phase and its milliseconds."""
CANCELLED: Final[dict[str, object]] = {
    "code": "cancelled",
    "title": "Cancelled",
    "detail": "another command or a page has cancelled it; nothing changed",
}
"""Problem of an operation that was cancelled elsewhere than here."""
LONG: Final = {"drain": "  open exchanges of the old revision end first (--now cuts them) …"}
"""Remarks at the beginning of phases that may take minutes."""


def upload(client: Client, collected: Collected, bar: Callable[[int], Any]) -> tuple[int, int]:
    """Upload the files that the server lacks; return their number and bytes.

    `bar` returns a context manager for a total number of bytes, which yields a Progress.
    """
    files = {file.sha256: file for file in collected.bundle.files}
    with client.kept_connection():
        missing = [file for sha256, file in files.items() if not client.has_blob(sha256, file.size)]
        total = sum(file.size for file in missing)
        with bar(total) as progress:
            for file in missing:
                with open_file(collected.root, file.path) as source:
                    client.put_blob(file.sha256, source, file.size, progress)
    return len(missing), total


def follow(
    client: Client,
    operation: Document[d.deploys.OperationRow],
    step: Step,
    *,
    note: Callable[[str, bool], None] = lambda *_: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Document[d.deploys.OperationRow]:
    """Return the operation once it has ended; `step` is called after each phase. `note` is called
    with False before every later phase, and with True once in a phase longer than LINGER_S. A phase
    is named by its first word: `note` is called with False again when the others change.

    Raises ApiError, or Unreachable if the server stays unreachable.
    """
    if operation.value.state != "running":
        return operation
    since_s = clock()
    poll_s = LINGER_S
    while True:
        phase = operation.value.phase
        ended = operation.value.state != "running"
        latest = operation if ended else _changed(client, operation.value, poll_s, pause)
        coming = latest.value.phase
        if ended or coming.partition(" ")[0] != phase.partition(" ")[0]:
            now_s = clock()
            step(phase.partition(" ")[0], (now_s - since_s) * 1e3)
            since_s = now_s
        if ended:
            return operation
        if coming != phase:
            note(coming, False)
            poll_s = LINGER_S
        elif latest.value.state == "running" and poll_s == LINGER_S:
            note(phase, True)
            poll_s = POLL_S
        operation = latest


def finish(
    session: Session, operation: Document[d.deploys.OperationRow], *, is_watched: bool = False
) -> Document[d.deploys.OperationRow]:
    """Return the operation once it is done. Ctrl-C cancels one that this command has started; one
    that it only watches (`is_watched`) goes on.

    Raises ApiError with the reason of a failure, or if another command has cancelled it,
    typer.Exit after Ctrl-C, Unreachable with a note that names the way back to it.
    """
    id, kind = operation.value.id, operation.value.kind
    verb = f"fnctl operation cancel {id}"
    way_out = f"{verb} cancels it" if is_watched else "Ctrl-C cancels it"

    def note(phase: str, is_long: bool) -> None:
        if (phase in LONG or " " in phase) and not is_long:
            session.remark(LONG.get(phase, f"  {phase}"))
        elif phase not in LONG and " " not in phase and is_long:
            session.remark(f"  {phase:<8} takes long: fnctl top shows why, {way_out} …")

    if is_watched:
        note(operation.value.phase, False)
    step = steps(session.remark, is_joined=is_watched)
    try:
        return _done(follow(session.client, operation, step, note=note))
    except Unreachable as error:
        error.add_note(f"the {kind} goes on with the server: fnctl operation watch {id}")
        raise
    except KeyboardInterrupt:
        if not is_watched:
            return _cancelled(session, id)
        session.remark(f"the {kind} goes on; to cancel it: {verb}")
        raise typer.Exit(INTERRUPTED) from None


def _done(ended: Document[d.deploys.OperationRow]) -> Document[d.deploys.OperationRow]:
    """Return an operation that is done. Raises ApiError with what another one ended with."""
    row = ended.value
    if row.state == "done":
        return ended
    if row.state == "cancelled":
        raise ApiError(0, CANCELLED)
    unknown: dict[str, object] = {"title": f"The {row.kind} failed", "detail": "no reason given"}
    raise ApiError(row.error.status or 0, ended.sent["error"] or unknown)


def _cancelled(session: Session, id: str) -> Document[d.deploys.OperationRow]:
    """Cancel the operation; return it if it was done before. Raises typer.Exit once it is
    cancelled, ApiError if it has failed."""
    session.remark("cancelling …")
    ended = session.client.call(routes.CANCEL, id)
    if ended.value.state in ("done", "failed"):
        return _done(ended)
    session.show(ended, lambda row: f"{row.state}: nothing changed")
    raise typer.Exit(INTERRUPTED)


def steps(write: Callable[[str], None], *, is_joined: bool = False) -> Step:
    """Return a Step that writes one line per phase. `is_joined`: the first phase has begun before,
    at a time that is not known."""
    hints = iter(["  after this command began"] if is_joined else [])
    return lambda phase, ms: write(f"  {phase:<8} {duration(ms)}{next(hints, '')}")


@contextmanager
def bar(total: int, quiet: bool = False) -> Iterator[Progress]:
    """Show a progress bar over `total` bytes on stderr, if that is a terminal and not `quiet`."""
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


def _changed(
    client: Client, row: d.deploys.OperationRow, poll_s: int, pause: Callable[[float], None]
) -> Document[d.deploys.OperationRow]:
    """Return the operation after its phase changed, or after `poll_s`."""
    for _ in range(RETRIES_MAX):
        try:
            return client.call(routes.OPERATION, row.id, wait_s=poll_s, phase=row.phase)
        except Unreachable:
            pause(RETRY_S)
    return client.call(routes.OPERATION, row.id, wait_s=poll_s, phase=row.phase)
