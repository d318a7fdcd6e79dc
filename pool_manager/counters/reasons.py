"""Why replicas fail, in few words: a label of metrics. Pure."""

from __future__ import annotations

from typing import Final

from pool_manager.core.events import Lost
from pool_manager.core.replicas import OVERDUE

REASONS: Final = ("load", "memory", "hang", "killed", "exited", "link", "engine", "other")
"""The model was refused; memory ran out; it took too long or answered no more; a signal; an exit
of its own; only its link was lost; the engine or a device went away; anything else."""
_SAID: Final = (
    ("memory", ("ran out of memory", "bad_alloc", "MemoryError", "Unable to allocate")),
    ("hang", (OVERDUE, "hangs", "did not answer")),
    ("killed", ("was killed by",)),
    ("exited", ("exited",)),
    ("link", ("control link lost",)),
)
"""How drivers, the control link and the machine say it; the first that fits."""


def reason_of(lost: Lost) -> str:
    """One of REASONS."""
    said = reason_said(lost.reason)
    if lost.stage and said != "memory":
        return "load"
    return "engine" if said == "other" and not lost.is_its_fault else said


def reason_said(text: str) -> str:
    """One of REASONS, by the text alone."""
    for reason, words in _SAID:
        if any(word in text for word in words):
            return reason
    return "other"
