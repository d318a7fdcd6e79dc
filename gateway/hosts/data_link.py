"""The data link to a replica on another host: one channel for small frames, one for large bodies.

The channels belong to two connections, so that a small call does not wait behind a body of
megabytes. The dispatcher sees one link: ids are unique over both channels, and the replica answers
each request on the channel on which it came. The link is up while one of the channels is; a lost
channel is opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from gateway.hosts.greeting import Connection, GreetedStream
from registry.exchange import ReplicaEndpoint
from registry.tasks import Tasks
from runtime_image.contract.link import HEADER, Kind
from runtime_image.link.frames import Frame, LinkError, Piece

log = structlog.get_logger()

REOPEN_MIN_S: Final = 0.2
REOPEN_MAX_S: Final = 5.0
"""Seconds before a lost channel is opened again: doubled with each failure."""
_FINAL: Final = frozenset({Kind.RESPONSE, Kind.FAILED, Kind.CANCELLED, Kind.NOT_STARTED})
"""Kinds that end a request."""


class LinkEvents(NamedTuple):
    """Receivers of the events of one link.

    `on_frame(frame)` gets the first HELLO, with which the link is up, and every frame after it but
    GOAWAY. `on_goaway(last_id, ids)`: `ids` are the requests of the channel that it came on. These
    two may raise LinkError. `on_channel_lost(ids, is_broken)`: a channel with the requests `ids`
    has ended, the other one is up. `on_link_lost(reason, is_broken)`: the link has ended.
    `is_broken`: not all that the replica sent has arrived.
    """

    on_frame: Callable[[Frame], None]
    on_goaway: Callable[[int, Collection[int]], None]
    on_channel_lost: Callable[[Collection[int], bool], None]
    on_link_lost: Callable[[str, bool], None]


class Route(NamedTuple):
    """Way to a replica: the connections to its host."""

    calls: Connection
    """For small frames."""
    bodies: Connection
    """For large bodies, and for exchanges with servers."""


class RemoteDataLink:
    """Both channels of one replica. Event loop thread only.

    A frame with a separate piece for its body is large (`runtime_image.link.frames.LARGE`). While
    only one channel is up, it carries all frames.
    """

    def __init__(
        self,
        endpoint: ReplicaEndpoint,
        hello: list[Piece],
        route: Callable[[], Route],
        tasks: Tasks,
        events: LinkEvents,
        body_max: int,
    ) -> None:
        """Create the link without a channel. `hello` is sent first on each channel. `route()` is
        read for each channel and raises OSError if the host is unknown."""
        self._endpoint = endpoint
        self._hello = hello
        self._route = route
        self._tasks = tasks
        self._events = events
        self._body_max = body_max
        self._small: GreetedStream | None = None
        self._large: GreetedStream | None = None
        self._channels: dict[int, GreetedStream] = {}
        """Channel of each request in flight, by id."""
        self._opening: set[GreetedStream] = set()
        """Channels whose HELLO is not answered yet."""
        self._is_up = self._is_over = False
        self._reason = ""

    async def open(self) -> None:
        """Open the channel for small frames and send HELLO; the other one follows once the link is
        up. Raises OSError."""
        await self._open(is_large=False)

    def send(self, pieces: list[Piece]) -> None:
        """Queue a packed frame on its channel; dropped silently if the link is lost."""
        _, id, kind, _, _, _ = HEADER.unpack_from(pieces[0])
        if kind == Kind.REQUEST and len(pieces) > 1:
            stream = self._large or self._small
        else:
            stream = self._channels.get(id) or self._small or self._large
        if stream is None:
            return
        if kind == Kind.REQUEST:
            self._channels[id] = stream
        stream.send(pieces)

    def abort(self, reason: str) -> None:
        """Close all channels at once; `on_link_lost` is then called with this reason."""
        self._reason = self._reason or reason
        for stream in (self._small, self._large, *self._opening):
            if stream is not None:
                stream.abort(reason)

    # Channels

    async def _open(self, *, is_large: bool) -> None:
        """Open one channel and send HELLO. Raises OSError."""
        stream = GreetedStream(
            self._endpoint.greeting,
            self._on_frame,
            self._on_ended,
            f"data {self._endpoint.id}{' bodies' if is_large else ''}",
            self._body_max,
        )
        stream.is_large = is_large
        self._opening.add(stream)
        try:
            route = self._route()
            await stream.open(route.bodies if is_large else route.calls, self._endpoint.path)
        except BaseException:
            self._opening.discard(stream)
            raise
        if self._reason or self._is_over:
            stream.abort(self._reason)
        stream.send(self._hello)

    async def _reopen(self, delay_s: float, *, is_large: bool) -> None:
        """Open a channel, `delay_s` from now, while the link is up."""
        while True:
            await asyncio.sleep(delay_s)
            if self._reason or self._is_over:
                return
            with suppress(OSError):
                await self._open(is_large=is_large)
                return
            delay_s = min(max(2 * delay_s, REOPEN_MIN_S), REOPEN_MAX_S)

    def _on_frame(self, stream: GreetedStream, frame: Frame) -> None:
        kind = frame.kind
        if kind is Kind.GOAWAY and self._is_up:
            # Before HELLO, too: a replica that begins to drain sends it on each channel, also on
            # one that is being opened. The calls on the other channel go on.
            self._events.on_goaway(frame.aux, self._ids(stream))
            return
        if stream in self._opening:
            self._on_hello(stream, frame)
            return
        if kind in _FINAL and self._channels.pop(frame.id, None) is not stream:
            raise LinkError(f"{kind.name} {frame.id} on a channel without that request")
        self._events.on_frame(frame)

    def _on_hello(self, stream: GreetedStream, frame: Frame) -> None:
        link = self._endpoint.link
        if frame.kind is not Kind.HELLO or frame.aux != link:
            raise LinkError(f"expected HELLO of link version {link}, got {frame.kind.name}")
        self._opening.discard(stream)
        if stream.is_large:
            self._large = stream
        else:
            self._small = stream
        if not self._is_up:
            self._is_up = True
            self._events.on_frame(frame)
            self._spawn_reopen(0.0, is_large=True)

    def _on_ended(self, stream: GreetedStream, reason: str) -> None:
        """Handle the end of a channel.

        1. No other one is up: the link has ended.
        2. This side has ended it, because of a violation of the protocol: the other one ends, too.
        3. Its requests are given back, and it is opened again.
        """
        self._opening.discard(stream)
        if stream is self._large:
            self._large = None
        elif stream is self._small:
            self._small = None
        if self._small is None and self._large is None:  # 1
            if not self._is_over:
                self._is_over = True
                self.abort(reason)
                self._events.on_link_lost(self._reason, stream.is_broken)
        elif stream.is_aborted:  # 2
            self.abort(reason)
        else:  # 3
            self._on_channel_lost(stream, reason)

    def _on_channel_lost(self, stream: GreetedStream, reason: str) -> None:
        log.info("a channel ended", replica=self._endpoint.id, reason=reason)
        ids = self._ids(stream)
        for id in ids:
            del self._channels[id]
        self._spawn_reopen(REOPEN_MIN_S, is_large=stream.is_large)
        self._events.on_channel_lost(ids, stream.is_broken)

    def _spawn_reopen(self, delay_s: float, *, is_large: bool) -> None:
        name = f"channel {self._endpoint.id}"
        self._tasks.spawn(name, self._reopen(delay_s, is_large=is_large))

    def _ids(self, stream: GreetedStream) -> set[int]:
        return {id for id, used in self._channels.items() if used is stream}
