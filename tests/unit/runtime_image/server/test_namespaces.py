"""Namespaces: entered in a child of the test, or refused."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path

import pytest

from runtime_image.server import libc, namespaces
from runtime_image.server.namespaces import OWN, enter, in_child, isolate

REFUSED = in_child(partial(enter, OWN, 8000))
ISOLATED = pytest.mark.skipif(bool(REFUSED), reason=f"namespaces are refused: {REFUSED}")
UID = 12345


def test_an_error_in_a_child_is_returned() -> None:
    """Its text, or what kind of error it was."""

    def fail() -> None:
        raise OSError(1, "no luck")

    assert in_child(fail) == "[Errno 1] no luck"
    assert in_child(lambda: os._exit(3)) == "status 768"
    assert in_child(lambda: None) == ""


def test_egress_stays_in_the_hosts_network() -> None:
    """By choice, and the reason says so."""

    def act() -> None:
        before = Path("/proc/self/ns/net").readlink()
        found = isolate("egress", 8000)
        assert found[:2] == ("its network is egress",) * 2
        assert Path("/proc/self/ns/net").readlink() == before

    assert in_child(act) == ""


def test_refused_namespaces_leave_the_process_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child has tried; the reason is the first one."""
    monkeypatch.setattr(namespaces, "in_child", lambda _: "Operation not permitted")
    before = Path("/proc/self/ns/net").readlink()

    assert isolate("none", 8000) == ("namespaces are refused: Operation not permitted",) * 3
    assert Path("/proc/self/ns/net").readlink() == before


def test_refused_processes_leave_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc cannot be mounted, the server is alone in its network all the same."""
    answers = iter(["mount /proc: Operation not permitted", ""])
    entered = []
    monkeypatch.setattr(namespaces, "in_child", lambda _: next(answers))
    monkeypatch.setattr(namespaces, "enter", lambda *given: entered.append(given))

    found = isolate("none", 8000)

    assert found == ("", "namespaces are refused: mount /proc: Operation not permitted", "")
    assert entered == [(OWN, 8000)]


def check_network(port: int) -> None:
    """Fail unless this process can listen and connect, on both loopback addresses."""
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        with socket.create_server((host, port), family=family) as listener:
            socket.create_connection(listener.getsockname()[:2], 5).close()
    reserved = Path("/proc/sys/net/ipv4/ip_local_reserved_ports").read_text().strip()
    assert reserved == str(port), reserved
    names = [name for _, name in socket.if_nameindex()]
    assert "lo" in names, names
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        assert sock.connect_ex(("192.0.2.1", 80)) != 0


@ISOLATED
def test_a_network_of_its_own_has_loopback_only() -> None:
    """Any port is free in it, and reserved against use by connections."""

    def act() -> None:
        assert isolate("none", 8000).network == ""
        check_network(8000)

    assert in_child(act) == ""


@ISOLATED
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_needs_no_privilege() -> None:
    """One id is mapped, to itself."""

    def act() -> None:
        os.setgroups([])
        os.setgid(UID)
        os.setuid(UID)
        libc.prctl(libc.PR_SET_DUMPABLE, 1)  # lost by setuid; a process that starts so has it
        assert isolate("none", 8000).network == ""
        check_network(8000)
        assert os.getuid() == UID
        assert Path("/proc/self/uid_map").read_text().split() == [str(UID), str(UID), "1"]

    assert in_child(act) == ""


@ISOLATED
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_server_of_root_may_change_its_user() -> None:
    """Every id stands for itself."""

    def act() -> None:
        assert isolate("none", 8000).network == ""
        os.setgroups([33])
        os.setgid(33)
        os.setuid(33)
        assert os.getuid() == 33

    assert in_child(act) == ""
