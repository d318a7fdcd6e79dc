"""Listening sockets, as the kernel lists them."""

from __future__ import annotations

import os
import socket

import pytest

from runtime_image.server import listeners
from runtime_image.server.listeners import Listener, describe, leads_to, parse, sockets_of
from runtime_image.server.process_tree import Process

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid ...\n"
LINE = "   0: {} 00000000:0000 {} 00000000:00000000 00:00000000 00000000  0 0 {} 1 0 100 0 0 10 0\n"


def test_listening_sockets_are_parsed() -> None:
    """Both families; connections are no listeners, and a cut line is skipped."""
    v6 = "00000000000000000000000001000000:0050"
    text = (
        HEAD
        + LINE.format("0100007F:1F40", "0A", 11)
        + LINE.format("0100007F:1F41", "01", 12)
        + LINE.format(v6, "0A", 13)
        + "  3: 0100007F\n"
    )

    assert list(parse(text)) == [Listener("127.0.0.1", 8000, 11), Listener("::1", 80, 13)]


def test_an_own_listener_is_found() -> None:
    """By the inode among the open files of its process."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        (found,) = (one for one in listeners.listeners() if one.port == port)

        own = sockets_of([Process(os.getpid(), 0), Process(2**22 + 1, 0)])

        assert found.inode == os.fstat(sock.fileno()).st_ino
        path = own[found.inode]
        assert leads_to(path, found.inode)
    assert not leads_to(path, found.inode)


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("172.17.0.2", False),
    ],
)
def test_who_is_reached_from_outside(host: str, *, is_local: bool) -> None:
    """Only addresses of the loopback interface are not."""
    assert Listener(host, 80, 1).is_local is is_local


def test_addresses_are_named_up_to_a_limit() -> None:
    """Each once, IPv6 in brackets."""
    few = [Listener("::1", 80, 1), Listener("0.0.0.0", 80, 2), Listener("0.0.0.0", 80, 3)]
    many = [Listener("0.0.0.0", 1000 + port, port) for port in range(7)]

    assert describe(few) == "0.0.0.0:80, [::1]:80"
    assert describe(many).endswith("0.0.0.0:1004 and 2 more")
    assert describe([]) == ""


def test_own_sockets_are_left_out() -> None:
    """As those of a sidecar that dials in."""
    with socket.create_server(("127.0.0.1", 0)) as own:
        port = own.getsockname()[1]
        assert port in {one.port for one in listeners.listeners()}
        assert port not in {one.port for one in listeners.others()}
