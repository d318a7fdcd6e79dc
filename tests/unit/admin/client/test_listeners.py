"""Tests of who listens at an address of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from ipaddress import IPv6Address
from pathlib import Path

import pytest

from admin.cli.options import open_client
from admin.client.client import Unreachable
from admin.client.listeners import Address, check_peer, read_sockets
from admin.client.routes import FUNCTIONS

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout"
LINE = (
    "   {}: {} {} {} 00000000:00000000 00:00000000 00000000 {:5}        0 167886 1 0 100 0 0 10 0"
)
ANY, LOOP, OTHER = "00000000:1F90", "0100007F:1F90", "0200007F:1F90"
ANY6 = f"{'0' * 32}:1F90"
MAPPED = "0000000000000000FFFF00000100007F:1F90"
NONE, CLIENT = "00000000:0000", "0100007F:9C40"
NOBODY = 65534
LISTEN_AS = """\
import os, socket, sys
os.setgid(65534); os.setuid(65534)
sock = socket.create_server(("127.0.0.1", 0))
print(sock.getsockname()[1], flush=True)
peer = sock.accept()[0]
peer.settimeout(60)
print(len(peer.recv(1000)), flush=True)
"""


def address(last: int, port: int) -> Address:
    """Return the address 127.0.0.`last`."""
    return IPv6Address(f"::ffff:127.0.0.{last}"), port


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([(LOOP, NONE, "0A", 7)], ""),
        ([(ANY, NONE, "0A", 0)], ""),
        ([(ANY6, NONE, "0A", 7)], ""),
        ([(MAPPED, NONE, "0A", 7)], ""),
        ([(LOOP, NONE, "0A", 7), (LOOP, CLIENT, "01", 7)], ""),
        ([(LOOP, NONE, "0A", 7), (LOOP, CLIENT, "01", 0)], ""),
        ([(LOOP, NONE, "0A", 8)], "user 8 listens there"),
        ([(ANY, NONE, "0A", 8)], "user 8 listens there"),
        ([(ANY6, NONE, "0A", 8)], "user 8 listens there"),
        ([(LOOP, NONE, "0A", 7), (ANY, NONE, "0A", 8)], "user 8 listens there"),
        ([(LOOP, NONE, "0A", 7), (LOOP, CLIENT, "01", 8)], "user 8 listens there"),
        ([], "nobody of this machine is seen to listen there"),
        ([(OTHER, NONE, "0A", 7)], "nobody of this machine is seen to listen there"),
        ([(LOOP, "0100007F:9C41", "01", 8), (LOOP, NONE, "0A", 7)], ""),
        ([(CLIENT, LOOP, "01", 8), (LOOP, NONE, "0A", 7)], ""),
        ([("0100007F:1F91", NONE, "0A", 8), (LOOP, NONE, "0A", 7)], ""),
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="the rows are in this byte order")
def test_who_gets_the_token(rows: list[tuple[str, str, str, int]], why: str) -> None:
    """All who listen, and who has accepted the connection, must be allowed users."""
    lines = [HEAD, *(LINE.format(number, *row) for number, row in enumerate(rows)), "nonsense"]

    found = check_peer(read_sockets(lines, 8080), address(1, 8080), address(1, 40000), {0, 7})

    assert found == why


@pytest.mark.skipif(os.getuid() != 0, reason="only root can listen as another user")
def test_another_user_gets_no_token(tmp_path: Path) -> None:
    """A program of another user on the server's port gets not one byte of a request with the token
    of the file; a key that is given goes where the caller says."""
    (tmp_path / "admin.token").write_text("t0ken\n")
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN_AS], stdout=subprocess.PIPE, text=True
    ) as listener:
        assert listener.stdout is not None
        url = f"http://127.0.0.1:{listener.stdout.readline().strip()}"
        with pytest.raises(Unreachable, match=r"token was not sent to .*: user 65534 listens"):
            open_client(url, None, tmp_path).items(FUNCTIONS)
        assert listener.stdout.readline() == "0\n"


def test_a_listener_of_this_user_gets_the_token(tmp_path: Path) -> None:
    """As always: the check reads the kernel's tables before anything is sent."""
    (tmp_path / "admin.token").write_text("t0ken\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = open_client(f"http://127.0.0.1:{server.getsockname()[1]}", None, tmp_path, 0.1)
        with pytest.raises(Unreachable, match="timed out"):
            client.items(FUNCTIONS)
        peer = server.accept()[0]
        with peer:
            assert b"Bearer t0ken" in peer.recv(1000)
