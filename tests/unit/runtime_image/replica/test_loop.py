"""The replica's event loop: readiness, timers, posts."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator

import pytest

from runtime_image.replica.loop import Loop


class Clock:
    """Manual clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop(clock: Clock) -> Iterator[Loop]:
    made = Loop(clock)
    yield made
    made.close()


def test_posted_callbacks_run_in_order(loop: Loop) -> None:
    """Posted callbacks run once and in order, including those posted meanwhile."""
    ran: list[str] = []
    loop.post(lambda: (ran.append("first"), loop.post(loop.stop)))  # type: ignore[arg-type,func-returns-value]  # two steps in one line
    loop.post(lambda: ran.append("second"))

    loop.run()

    assert ran == ["first", "second"]


def test_a_post_wakes_the_loop_from_another_thread(loop: Loop) -> None:
    """A post from another thread wakes a loop that waits without timeout."""
    thread = threading.Thread(target=loop.post, args=(loop.stop,))
    loop.post(thread.start)

    loop.run()

    thread.join()


def test_posts_never_block(loop: Loop) -> None:
    """More posts than the wake-up pipe can hold all run."""
    ran: list[int] = []
    for number in range(100_000):
        loop.post(lambda number=number: ran.append(number))  # type: ignore[misc]  # a bound default is not inferred
    loop.post(loop.stop)

    loop.run()

    assert ran == list(range(100_000))


def test_timers_run_when_due(loop: Loop, clock: Clock) -> None:
    """Due timers run by time, equal ones in the order they were set; later ones wait."""
    ran: list[str] = []
    loop.after(2, lambda: ran.append("late"))
    loop.after(1, lambda: ran.append("early"))
    loop.after(2, lambda: ran.append("late too"))
    loop.after(9, lambda: ran.append("much later"))
    loop.after(2, loop.stop)

    loop.post(lambda: setattr(clock, "now", 102.0))
    loop.run()

    assert ran == ["early", "late", "late too"]


def test_each_turn_has_one_end(loop: Loop) -> None:
    """`turn_end` runs once after all callbacks of a turn."""
    order: list[str] = []
    loop.turn_end = lambda: order.append("end")
    loop.post(lambda: order.append("one"))
    loop.post(lambda: order.append("two"))
    loop.post(loop.stop)

    loop.run()

    assert order == ["one", "two", "end"]


def test_a_readable_socket_runs_its_callback(loop: Loop) -> None:
    """A watched socket's callback runs when data is available, and no more once it is unwatched."""
    one, other = socket.socketpair()
    heard: list[bytes] = []

    def readable() -> None:
        heard.append(one.recv(10))
        loop.forget(one)
        other.send(b"unheard")
        loop.post(loop.stop)

    loop.watch(one, readable)
    other.send(b"hello")
    loop.run()
    one.close()
    other.close()

    assert heard == [b"hello"]


def test_a_writable_socket_wakes(loop: Loop) -> None:
    """Write interest wakes the loop when the socket accepts bytes, until the interest is
    removed."""
    one, other = socket.socketpair()
    heard: list[str] = []
    loop.watch(one, lambda: heard.append("readable"))

    loop.want_write(one, True)
    loop.turn_end = loop.stop
    loop.run()
    loop.want_write(one, False)
    loop.want_write(one, False)
    loop.forget(one)
    one.close()
    other.close()

    assert heard == []


def test_a_socket_is_waited_for_until_it_is_writable(loop: Loop) -> None:
    """The callback runs although nothing can be read, and no more once it is forgotten."""
    one, other = socket.socketpair()
    heard: list[str] = []

    def writable() -> None:
        heard.append("writable")
        loop.forget(one)
        loop.post(loop.stop)

    loop.when_writable(one, writable)
    loop.run()
    one.close()
    other.close()

    assert heard == ["writable"]


def test_a_socket_is_watched_for_either_event(loop: Loop) -> None:
    """Any change of the events is allowed, also from none to none."""
    ours, theirs = socket.socketpair()
    events = []
    with ours, theirs:
        loop.rewatch(ours, 0, 0, loop.stop)
        loop.rewatch(ours, 0, selectors.EVENT_WRITE, lambda: (events.append(1), loop.stop()))
        loop.run()
        loop.rewatch(ours, selectors.EVENT_WRITE, selectors.EVENT_READ, loop.stop)
        theirs.send(b"x")
        loop.run()
        loop.rewatch(ours, selectors.EVENT_READ, 0, loop.stop)
        loop.rewatch(ours, 0, 0, loop.stop)

    assert events == [1]


class Buffering:
    """A socket that keeps bytes back from the selector, as one over TLS does."""

    def __init__(self, sock: socket.socket, kept: int) -> None:
        self._sock = sock
        self.kept = kept

    def fileno(self) -> int:
        return self._sock.fileno()

    def pending(self) -> int:
        return self.kept


def test_bytes_that_no_selector_shows_are_read(loop: Loop) -> None:
    """A socket with pending bytes counts as readable, as long as it is watched for reading."""
    one, other = socket.socketpair()
    kept = Buffering(one, 3)
    reads: list[int] = []

    def read() -> None:
        reads.append(kept.kept)
        kept.kept -= 1
        if not kept.kept:
            loop.post(loop.stop)

    with one, other:
        loop.watch(kept, read)
        loop.run()
        loop.forget(kept)

    assert reads == [3, 2, 1]


def test_a_paused_socket_is_left_alone(loop: Loop) -> None:
    """Pending bytes of a socket that is watched for writing only, or no more, wake nobody."""
    one, other = socket.socketpair()
    kept = Buffering(one, 1)
    ready: list[str] = []

    with one, other:
        other.setblocking(False)
        loop.rewatch(kept, 0, selectors.EVENT_READ, lambda: ready.append("read"))
        loop.rewatch(kept, selectors.EVENT_READ, selectors.EVENT_WRITE, loop.stop)
        loop.run()
        loop.rewatch(kept, selectors.EVENT_WRITE, 0, loop.stop)

    assert ready == []
    assert loop._patience_s() is None
