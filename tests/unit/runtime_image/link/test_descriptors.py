"""Messages with descriptors."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from runtime_image.link.descriptors import ONE, TWO, Message, receive_message

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends of a channel."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    receiver.setblocking(False)
    with sender, receiver:
        yield sender, receiver


def received(ends: Ends, count: int, space: int, data: bytes = b"abc") -> Message:
    """Return a message that came with `count` descriptors."""
    sender, receiver = ends
    descriptors = [os.memfd_create("test") for _ in range(count)]
    try:
        socket.send_fds(sender, [data], descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    message = receive_message(receiver, 3, space)
    assert message is not None
    return message


@pytest.mark.parametrize(
    ("count", "space", "got", "lacks"),
    [(0, ONE, 0, False), (1, ONE, 1, False), (2, ONE, 1, True), (2, TWO, 2, False)],
)
def test_descriptors_up_to_the_room_for_them(
    ends: Ends, count: int, space: int, got: int, lacks: bool
) -> None:
    """The kernel closes the others, and says so; refusing the message closes the rest."""
    message = received(ends, count, space)
    assert (message.data, message.is_long) == (b"abc", False)
    assert (len(message.descriptors), message.lacks_descriptors) == (got, lacks)
    assert not any(os.get_inheritable(each) for each in message.descriptors)

    error = message.refuse("something else")

    more = " or more" if lacks else ""
    assert str(error) == f"expected something else, got 3 bytes with {got}{more} descriptors"
    for descriptor in message.descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_message_that_is_too_long(ends: Ends) -> None:
    """What did not fit is lost, and that is known."""
    message = received(ends, 0, ONE, b"abcd")
    assert (message.data, message.is_long) == (b"abc", True)


@pytest.mark.parametrize("ends_by", ["closing", "an empty message", "a reset"])
def test_the_end_of_a_channel(ends: Ends, ends_by: str) -> None:
    """Before it there is no message."""
    sender, receiver = ends
    assert receive_message(receiver, 3, ONE) is None
    if ends_by == "an empty message":
        sender.send(b"")
    elif ends_by == "closing":
        sender.close()
    else:
        receiver.send(b"unread")
        sender.close()
    with pytest.raises(EOFError):
        receive_message(receiver, 3, ONE)
