"""Ctrl-C while the engine builds: a step that has begun is ended first."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupt:
    """Within its block the first Ctrl-C is only noted, and `hurry` called; the second one raises.

    The engine finishes a copy whoever hung up meanwhile, and then keeps an image that nobody
    knows of. So the line is kept until a step is over. Only for the main thread.
    """

    def __init__(self, hurry: Callable[[], None]) -> None:
        """`hurry` ends what can be ended: a step that runs in a container."""
        self._hurry = hurry
        self._before: Any = None
        self.is_wanted = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._noted)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raises KeyboardInterrupt where one was wanted, whatever the block ended with."""
        signal.signal(signal.SIGINT, self._before)
        if self.is_wanted:
            raise KeyboardInterrupt from error

    def _noted(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
        self._hurry()
