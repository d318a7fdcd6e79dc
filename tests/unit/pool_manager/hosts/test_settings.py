"""Owners of containers and files on other hosts."""

from __future__ import annotations

from pool_manager.hosts.settings import HostSettings


def settings(server: str) -> HostSettings:
    return HostSettings(server, {}, range(1))


def test_each_server_and_host_has_its_own_owner() -> None:
    """The owner is the same at each start, and differs for other servers and hosts."""
    owners = [settings(server).owner(host) for server in "ab" for host in ("gpu2", "gpu3")]

    assert len(set(owners)) == 4
    assert owners[0] == settings("a").owner("gpu2")
    assert {len(one) for one in owners} == {12}


def test_a_name_cannot_pass_for_another_server() -> None:
    """Server and host are not merely joined."""
    assert settings("a").owner("bc") != settings("ab").owner("c")
