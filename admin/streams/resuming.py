"""An event stream that goes on when the server goes away and comes back."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from admin.streams.parsing import Event
from admin.transport import ApiError, Unreachable

PATIENCE_S: Final = 60.0
"""How long a server may be away."""
PAUSE_S: Final = 0.5
"""Between two tries to reach it."""

Connect = Callable[[str], AbstractContextManager[Iterator[Event]]]
"""Opens the stream after the event with this id, "" for its beginning."""


class Absence:
    """How long the server has been away. `away` is told why nothing comes, once for each absence,
    `back` that it answers again; `clock` gives seconds."""

    def __init__(
        self,
        away: Callable[[str], None],
        back: Callable[[], None],
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._away = away
        self._back = back
        self._patience_s = patience_s
        self._clock = clock
        self._was_there = False
        self._since_s: float | None = None

    def over(self) -> None:
        """The server answers."""
        self._was_there = True
        if self._since_s is not None:
            self._since_s = None
            self._back()

    def suffer(self, error: Exception) -> None:
        """It does not. Raises `error` where it never did, or has not for too long."""
        if not self._was_there:
            raise error
        if self._since_s is None:
            self._since_s = self._clock()
            self._away(str(error))
        elif self._clock() - self._since_s >= self._patience_s:
            raise error


def resumed(
    connect: Connect, absence: Absence, pause: Callable[[float], None] = time.sleep
) -> Iterator[Event]:
    """Every event, over as many connections as it takes: a stream that ends is asked for again.

    Raises ApiError where the server refuses, as it does where nothing more will come, and
    Unreachable where it stays away.
    """
    last_id = ""
    while True:
        try:
            with connect(last_id) as events:
                absence.over()
                for event in events:
                    last_id = event.id
                    yield event
        except Unreachable as error:
            absence.suffer(error)
        except ApiError as error:
            if error.status < http.client.INTERNAL_SERVER_ERROR:
                raise
            absence.suffer(error)
        pause(PAUSE_S)
