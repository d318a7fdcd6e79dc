"""Tests of the access log's events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from gateway.dispatch.call import Call
from gateway.observing.access_log import AccessEvent, AccessLog
from gateway.replies import Receipt
from runtime_image.link.meta import RequestMeta
from tests.support.records import RECEIPT, RECORD, TRACE


class World:
    """Access log whose clock the test sets; its events are complete once it is closed."""

    def __init__(self) -> None:
        self.wall = 1000.0
        self.events: list[AccessEvent] = []
        self.dropped: list[int] = []
        self.log = AccessLog(
            lambda events, _dropped: self.events.extend(events), self._wall, self.dropped.append
        )

    def _wall(self) -> float:
        return self.wall

    def served(
        self, receipt: Receipt = RECEIPT, traceparent: str = "", now: float = 12.0, sends: int = 1
    ) -> None:
        """Log an answered request that began at 10.0 s."""
        meta = RequestMeta("", "", -1, traceparent)
        call = Call("default/digits@1", meta, b"body", 11.0, 66.0, 60.0, sends=sends)
        self.log.log_answer("id-1", "digits", call, receipt, (7, 9), (10.0, now))


@contextmanager
def logging() -> Iterator[World]:
    """Close the log's thread with the block."""
    world = World()
    yield world
    world.log.close()


def test_an_answered_request() -> None:
    """An event names the replica and its times, with a resolution of one microsecond."""
    with logging() as world:
        world.served(RECEIPT._replace(queue_ms=0.0126), sends=3)
    (event,) = world.events

    assert (event.request_id, event.function, event.revision) == ("id-1", "digits", "digits@1")
    assert (event.replica, event.outcome, event.status) == ("r1", "ok", 200)
    assert (event.bytes_in, event.bytes_out, event.sends) == (7, 9, 3)
    assert (event.ms, event.queue_ms) == (2000.0, 0.013)
    assert (event.decode_us, event.batch_us, event.compute_us) == (1000, 2000, 3000)
    assert (event.encode_us, event.rows) == (4000, 5)
    assert (event.is_cold, event.phases, event.trace_id) == (False, None, "")


@pytest.mark.parametrize("flags", ["00", "01"])
def test_the_trace_id_is_logged_sampled_or_not(flags: str) -> None:
    """The event has the trace's id whether or not the trace is sampled."""
    with logging() as world:
        world.served(traceparent=f"00-{TRACE.trace_id}-{TRACE.span_id}-{flags}")

    assert [event.trace_id for event in world.events] == [TRACE.trace_id]


def test_a_cold_start_has_only_known_phases() -> None:
    """Only known phase names are logged, because a replica may send any text."""
    phases = {"load": 2.0, "start": 1.2345678, "made\nup": 1.0}
    with logging() as world:
        world.served(RECEIPT._replace(phases=phases))
    (event,) = world.events

    assert event.is_cold
    assert list((event.phases or {}).items()) == [("start", 1.235), ("load", 2.0)]


def test_a_request_that_no_replica_answered() -> None:
    """Fields that only a replica can fill are absent or None."""
    refused = RECORD._replace(
        outcome="queue_full", status=429, ms=1.23456, replica="", receipt=None, trace_id="ab"
    )
    with logging() as world:
        world.log.log_end(refused, 12.0)
    (event,) = world.events

    assert (event.outcome, event.status, event.ms, event.trace_id) == (
        "queue_full",
        429,
        1.235,
        "ab",
    )
    assert (event.is_cold, event.rows, event.decode_us, event.phases) == (False, None, None, None)


@pytest.mark.parametrize("host", ["", "gpu2"])
def test_another_host_is_named(host: str) -> None:
    """Answers and ends name the host of their replica; a line has no such field for this one."""
    receipt = RECEIPT._replace(host=host)
    with logging() as world:
        world.served(receipt)
        world.log.log_end(RECORD._replace(outcome="failed", receipt=receipt), 12.0)

    shown = [msgspec.json.decode(msgspec.json.encode(event)).get("host") for event in world.events]
    assert shown == [host or None] * 2


def test_the_time_is_read_once_a_millisecond() -> None:
    """Requests that end within the same millisecond have the same timestamp."""
    with logging() as world:
        for now, wall in ((12.0, 1000.0), (12.0004, 1000.0004), (12.0011, 1000.0015)):
            world.wall = wall
            world.served(now=now)

    assert [event.timestamp for event in world.events] == [
        "1970-01-01T00:16:40.000Z",
        "1970-01-01T00:16:40.000Z",
        "1970-01-01T00:16:40.001Z",
    ]


def test_dropped_events_are_counted() -> None:
    """Dropped events are reported to the counter."""
    with logging() as world:
        world.log._events._on_dropped(3)

    assert world.dropped == [3]
