"""A check and its result, and the report of all results as text and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.gpu.box import Box

Verdict = Literal["holds", "fails", "not tried"]


class NotTried(Exception):
    """A prerequisite is missing on this machine; the message names it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise. `settings`: those of the server it runs on, which has `cards` GPUs."""

    name: str
    promise: str
    run: Callable[[Box], str]
    settings: Mapping[str, str] = field(default_factory=dict)
    cards: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdict on one promise. `figure`: the measurement, or the reason."""

    name: str
    promise: str
    verdict: Verdict
    figure: str
    seconds: float

    def line(self) -> str:
        """Return one line for a terminal."""
        return f"{self.verdict:<9} {self.name:<14} {self.figure} ({self.seconds:.1f} s)"


def markdown(about: Mapping[str, str], outcomes: Sequence[Outcome], command: str) -> str:
    """Return the results file: the machine, then one row per promise."""
    counts = {
        verdict: sum(outcome.verdict == verdict for outcome in outcomes)
        for verdict in ("holds", "fails", "not tried")
    }
    lines = [
        f"# {about['date']}: {about['gpu']}",
        "",
        f"`{command}`: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()),
        "",
        *(f"- {key}: {value}" for key, value in about.items() if key not in ("date", "gpu")),
        "",
        "| promise | verdict | figure | s |",
        "|---|---|---|---|",
    ]
    for item in outcomes:
        figure = item.figure.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {item.promise} | {item.verdict} | {figure} | {item.seconds:.1f} |")
    return "\n".join(lines) + "\n"
