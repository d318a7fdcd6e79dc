"""News read in a thread, for one who has a terminal to look after meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Final

from admin.cli.live.news import Broken, Connect, News, follow

KEPT_MAX: Final = 1000
"""News that wait to be taken. With more the reading stops, and the server ends a connection that
is not read: nothing is lost, it is told again."""


class Feed:
    """The news of `connect` from now on. Close it, whatever happens.

    The thread may be left in a read when this process ends: it holds nothing but its connection.
    """

    def __init__(self, connect: Connect) -> None:
        self._kept: queue.Queue[News | Exception] = queue.Queue(KEPT_MAX)
        self._ended = threading.Event()
        self._news = follow(connect, self._ended.wait)
        self._thread = threading.Thread(target=self._read, name="events", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float = 0.0) -> Iterator[News]:
        """What has come; the first of it is waited for up to `timeout_s`.

        Raises what ended the news: ApiError or Unreachable.
        """
        for count in range(KEPT_MAX):
            try:
                news = self._kept.get(timeout_s > 0 and not count, timeout_s)
            except queue.Empty:
                return
            if isinstance(news, Exception):
                raise news
            yield news

    def close(self) -> None:
        """End the reading with the next event."""
        self._ended.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the reading."""
        self._thread.join(timeout_s)

    def _read(self) -> None:
        try:
            for news in self._news:
                if self._ended.is_set() or not self._keep(news):
                    return
        except Exception as error:  # noqa: BLE001 - raised again where the news are taken
            self._keep(error)

    def _keep(self, news: News | Exception) -> bool:
        """Whether there was room for it before the end."""
        while not self._ended.is_set():
            try:
                self._kept.put(news, timeout=1.0)
            except queue.Full:
                continue
            return True
        return False


__all__ = ["Broken", "Feed", "News"]
