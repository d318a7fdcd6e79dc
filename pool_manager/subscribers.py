"""Notification of any number of subscribers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Subscribers(Generic[P]):
    """The receivers of one kind of notification, in the order in which they subscribed."""

    def __init__(self) -> None:
        self._receivers: dict[object, Callable[P, None]] = {}

    def subscribe(self, receiver: Callable[P, None]) -> Callable[[], None]:
        """Call `receiver` with each notification until the returned function is called.

        The returned function may be called more than once.
        """
        token = object()
        self._receivers[token] = receiver

        def unsubscribe() -> None:
            self._receivers.pop(token, None)

        return unsubscribe

    def notify(self, *arguments: P.args, **options: P.kwargs) -> None:
        """Call every receiver. An exception of a receiver is raised, and later receivers are not
        called."""
        for receiver in list(self._receivers.values()):
            receiver(*arguments, **options)

    def __len__(self) -> int:
        return len(self._receivers)
