"""The replica's life as a Mermaid diagram, drawn from its table.

    python -m tests.support.diagram           prints it
    python -m tests.support.diagram --write   puts it into ARCHITECTURE.md

Syntax: mermaid.js.org, "State diagrams".
"""

from __future__ import annotations

import sys
from pathlib import Path

from pool_manager.core.state import TRANSITIONS, State

BEGIN = "<!-- replica-diagram -->"
END = "<!-- /replica-diagram -->"
ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"


def diagram() -> str:
    """A fenced `stateDiagram-v2` block: one line per row of the table, in its order."""
    rows = [f"    [*] --> {State.STARTING}"]
    for state, steps in TRANSITIONS.items():
        rows += [f"    {state} --> {after}: {step}" for step, after in steps.items()]
        if not steps:
            rows.append(f"    {state} --> [*]")
    return "\n".join(["```mermaid", "stateDiagram-v2", *rows, "```"])


def replaced(text: str) -> str:
    """`text` with the diagram between its markers. Raises ValueError unless each is there once,
    in order."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in before + after:
        raise ValueError(f"expected {BEGIN} and then {END}, once each")
    return f"{before}{BEGIN}\n{diagram()}\n{END}{after}"


def write(path: Path = ARCHITECTURE) -> None:
    """Bring the diagram in the file at `path` up to date."""
    path.write_text(replaced(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        write()
    else:
        sys.stdout.write(diagram() + "\n")
