"""What each input is judged by: refusals, answers, lines and memory. Never time."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tests.fuzz.subject import Subject

_OURS = str(Path(__file__).parents[1])
"""Frames of the tests do not count."""


class Wrong(Exception):
    """A reader did with an input what it must not; the text says what, and `place` where."""

    def __init__(self, text: str, place: str) -> None:
        super().__init__(text)
        self.place = place


class Taken(NamedTuple):
    """What a call took: lines of Python, and bytes allocated at its highest moment."""

    lines: int
    memory: int


def outcome_of(subject: Subject, data: bytes) -> Any:
    """Return what a reader makes of an input, its answer or refusal, once that is checked.

    Raises Wrong for another error than a refusal, and for a wrong answer.
    """
    found = _call(subject, data)
    if subject.check is not None:
        try:
            subject.check(data, found)
        except Exception as error:
            raise _wrong(error) from error
    return found


def _call(subject: Subject, data: bytes) -> Any:
    try:
        return subject.call(data)
    except subject.refusals as error:
        return error
    except Exception as error:
        raise _wrong(error) from error


def _wrong(error: Exception) -> Wrong:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}"
    if trace is not None:
        place += f":{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
    return Wrong(f"{type(error).__name__}: {str(error)[:200]}", f"{type(error).__name__} {place}")


def judge(subject: Subject, data: bytes) -> Taken:
    """Return what a call took. Raises Wrong as `outcome_of`, and for more than the bounds."""
    outcome_of(subject, data)
    taken = measured(lambda: _call(subject, data))
    if taken.lines > subject.lines.of(data):
        text = f"expected at most {subject.lines.of(data)} lines, took {taken.lines}"
        raise Wrong(f"{text} for {len(data)} bytes", "lines")
    if taken.memory > subject.memory.of(data):
        text = f"expected at most {subject.memory.of(data)} bytes of memory, took {taken.memory}"
        raise Wrong(f"{text} for {len(data)} bytes", "memory")
    return taken


def held_after(calls: Iterable[Callable[[], object]]) -> int:
    """Return the bytes that calls have left behind, as in caches, once their answers are gone."""
    was_on = tracemalloc.is_tracing()
    if not was_on:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for call in calls:
            call()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        if not was_on:
            tracemalloc.stop()


def measured(call: Callable[[], object]) -> Taken:
    """Return what a call takes. It runs once for its lines and once for its memory."""
    lines = 0

    def count(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    def enter(frame: FrameType, _event: str, _arg: object) -> Any:
        return None if frame.f_code.co_filename.startswith(_OURS) else count

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    gc.collect(0)
    was_on = tracemalloc.is_tracing()
    if not was_on:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        held, _ = tracemalloc.get_traced_memory()
        kept = call()
        _, peak = tracemalloc.get_traced_memory()
        del kept
    finally:
        if not was_on:
            tracemalloc.stop()
    return Taken(lines, peak - held)
