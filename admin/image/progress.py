"""What the engine says while it builds, read as it comes. Pure."""

from __future__ import annotations

import re
from collections import deque
from typing import Any, Final

from admin.cli.text import one_line
from admin.image.failures import DISK_FULL, TAIL_LINES, ImageError, disk_full, image_error

STEP_WIDTH: Final = 64
SHOWN: Final = ("FROM", "RUN", "COPY")
"""Instructions that take time; the others are done in a moment."""
_STEP: Final = re.compile(r"Step (\d+)/(\d+) : (.*)", re.DOTALL)
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_NOISE: Final = re.compile(r" ---> |Removing intermediate container |Successfully (built|tagged) ")

MISSING: Final = ("no matching distribution", "have conflicting dependencies")
"""How pip says that it found no file, or none of the version that is pinned."""


class Progress:
    """Fed with the engine's messages, says which lines are worth showing.

    `image` is the id of what was built, "" until then.
    """

    def __init__(self) -> None:
        self.image = ""
        self.step = ""
        """The instruction that runs, or ran last."""
        self.may_break_off = False
        """Whether what runs can be ended from outside: a copy goes on to its end."""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    def feed(self, message: dict[str, Any]) -> str:
        """The line to show for one message, "" for none. Raises ImageError where it is the end."""
        if "error" in message or "errorDetail" in message:
            detail = message.get("errorDetail") or {}
            raise self.failure(str(detail.get("message") or message.get("error") or "no reason"))
        aux = message.get("aux")
        if isinstance(aux, dict) and "ID" in aux:
            self.image = str(aux["ID"])
        return self._said(str(message.get("stream") or ""))

    def failure(self, reason: str) -> ImageError:
        """The error for a build that ended with `reason`, by what was said last."""
        tail = list(self._tail)
        said = "\n".join([reason, *tail]).lower()
        if DISK_FULL in said:
            return disk_full(one_line(reason)[-300:], "docker system prune")
        if any(text in said for text in MISSING):
            todo = "leave --wheelhouse away, so that this machine's pip downloads what is needed"
            return image_error("the wheelhouse is not complete:", tail=tail, todo=todo)
        what = f"{self.step or 'the build'} failed: {_code(reason)}"
        return image_error(f"{what}; its last lines:" if tail else what, tail=tail)

    def _said(self, text: str) -> str:
        if found := _STEP.match(text):
            self._tail.clear()
            number, total, instruction = found.groups()
            self.step = f"step {number}/{total} {_short(instruction)}"
            self.may_break_off = not instruction.startswith("COPY")
            return self.step if instruction.startswith(SHOWN) else ""
        if not _NOISE.match(text):
            lines = _COLOUR.sub("", text).splitlines()
            self._tail.extend(line.rstrip()[:500] for line in lines if line.strip())
        return ""


def _short(instruction: str) -> str:
    text = one_line(instruction)
    return text if len(text) <= STEP_WIDTH else f"{text[: STEP_WIDTH - 1]}…"


def _code(reason: str) -> str:
    """The end of "The command '/bin/sh -c ...' returned a non-zero code: 1"."""
    return one_line(reason.rpartition("' returned a ")[2])[-300:]
