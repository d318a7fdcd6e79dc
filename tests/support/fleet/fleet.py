"""Several hosts on this machine, for one test or for a module of tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.support.fleet.host import TOOLS, Host, Plan
from tests.support.own_engine import expect_tools
from tests.support.sshd import needs_sshd


class Fleet:
    """Hosts by name: gpu2, gpu3, ... `known_hosts`: a file with the keys of all."""

    def __init__(self, hosts: list[Host]) -> None:
        self.hosts = hosts
        self.known_hosts = hosts[0].root / "known_hosts"
        self.known_hosts.write_text("".join(f"{one.ip} {one.host_key}\n" for one in hosts))

    def __getitem__(self, name: str) -> Host:
        return {one.name: one for one in self.hosts}[name]

    @property
    def first(self) -> Host:
        """Return the first host."""
        return self.hosts[0]

    def left(self) -> list[str]:
        """Return all containers of the running hosts."""
        return [
            f"{one.name}: {listed['Names']} {listed['State']}"
            for one in self.hosts
            if one.is_running
            for listed in one.containers()
        ]


@contextmanager
def open_fleet(*plans: Plan, images: tuple[str, ...] = ()) -> Iterator[Fleet]:
    """Run a host for each plan, all with `images` of the shared engine."""
    needs_sshd()
    expect_tools(*TOOLS)
    hosts: list[Host] = []
    try:
        for number, plan in enumerate(plans, 2):
            hosts.append(Host(f"gpu{number}", plan))
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda host: _start(host, images), hosts))
        yield Fleet(hosts)
    finally:
        for host in hosts:
            host.remove()


@asynccontextmanager
async def fleet(hosts: int = 1, *plans: Plan, images: tuple[str, ...] = ()) -> AsyncIterator[Fleet]:
    """Run `hosts` plain hosts, or one for each plan, beside the event loop."""
    opened = open_fleet(*(plans or [Plan()] * hosts), images=images)
    running = await asyncio.to_thread(opened.__enter__)
    try:
        yield running
    finally:
        await asyncio.to_thread(opened.__exit__, None, None, None)


def _start(host: Host, images: tuple[str, ...]) -> None:
    host.start()
    host.load(*images)


def write_login(folder: Path, host: Host) -> Path:
    """Write ~/.ssh files for programs that read them: the key's config and known_hosts."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "known_hosts").write_text(f"{host.ip} {host.host_key}\n")
    lines = [f"Host {host.ip}", f"  User {host.plan.user}", f"  IdentityFile {host.identity}"]
    (folder / "config").write_text("\n".join([*lines, ""]))
    return folder
