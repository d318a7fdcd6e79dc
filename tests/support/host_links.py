"""Independent model of hosts: what a fair observer knows of their links and of what may run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pool_manager.core import events
from pool_manager.core.hosts import HOST_LOST_S
from registry.model.hosts import LOCAL_HOST
from tests.support.book import Book


@dataclass
class HostLink:
    """The link to one host. `since_s`: since when it is as it is. `is_new`: the host has neither
    answered nor failed to."""

    since_s: float
    is_up: bool = False
    is_new: bool = True
    epoch: int = 0
    is_draining: bool = False
    is_removed: bool = False
    is_forced: bool = False
    is_engine_down: bool = False

    def is_gone(self, now: float) -> bool:
        """Whether nothing on the host takes calls any more."""
        return not self.is_up and now - self.since_s >= HOST_LOST_S


class Doubt(NamedTuple):
    """A replica of `host` may have had contact to its manager until `since_s`, but not after it."""

    host: str
    since_s: float


@dataclass
class HostLinks:
    """The links of all hosts. `doubtful` are replicas of other hosts that may run although they are
    not known to: when they were last known, they served or were to serve."""

    hosts: dict[str, HostLink] = field(
        default_factory=lambda: {LOCAL_HOST: HostLink(0.0, is_up=True)}
    )
    doubtful: dict[str, Doubt] = field(default_factory=dict)

    def is_up(self, host: str) -> bool:
        """Whether a host can be commanded."""
        return self.hosts[host].is_up

    def is_leaving(self, host: str) -> bool:
        """Whether a host is to become empty."""
        return self.hosts[host].is_draining or self.hosts[host].is_removed

    def is_well(self, host: str) -> bool:
        """Whether a host can be commanded and its engine answers."""
        return self.hosts[host].is_up and not self.hosts[host].is_engine_down

    def is_open(self, host: str) -> bool:
        """Whether replicas may be placed on a host."""
        return host in self.hosts and self.is_well(host) and not self.is_leaving(host)

    def open_hosts(self) -> list[str]:
        """Return the hosts where replicas may be placed."""
        return [one for one in self.hosts if self.is_open(one)]

    def is_lost(self, host: str, now: float) -> bool:
        """Whether a host will not take replicas for long: it is drained or gone."""
        link = self.hosts[host]
        return link.is_gone(now) or (link.is_up and self.is_leaving(host))

    def in_doubt(self, now: float) -> set[str]:
        """Return the replicas that may run although they are not known to."""
        return {id for id, one in self.doubtful.items() if not self.hosts[one.host].is_gone(now)}

    def forget(self, id: str) -> None:
        """The replica has ended, or is known to run."""
        self.doubtful.pop(id, None)

    def forget_hosts(self, book: Book) -> list[str]:
        """Forget removed hosts without replicas; return their names."""
        there = {one.host for one in book.entries.values()}
        empty = [name for name, one in self.hosts.items() if one.is_removed and name not in there]
        for name in empty:
            if name != LOCAL_HOST:
                del self.hosts[name]
        return empty

    def write_down(
        self, event: events.Event, book: Book, before: Mapping[str, str], now: float
    ) -> None:
        """Record what follows from an event."""
        match event:
            case events.Released(id) if before.get(id) == "releasing":
                self.forget(id)
            case events.NotReleased(id) if id in book.entries:
                doubt = self.doubtful.get(id)
                if doubt is not None and now - doubt.since_s >= HOST_LOST_S:
                    self.forget(id)
            case events.Lost(id) if id in book.entries:
                if book.entries[id].host != LOCAL_HOST and before[id] not in ENDING:
                    self.doubtful[id] = Doubt(book.entries[id].host, now)
            case events.Found(id, host=host):
                link = self.hosts.setdefault(host, HostLink(now, is_removed=True))
                if not link.is_up:
                    self.doubtful[id] = Doubt(host, now)
            case events.HostDefined(host, is_draining=is_draining):
                link = self.hosts.setdefault(host, HostLink(now))
                link.is_draining, link.is_removed, link.is_forced = is_draining, False, False
            case _ if (link := self.hosts.get(getattr(event, "host", ""))) is not None:
                self.write_link(link, event, book, before, now)

    def write_link(
        self,
        link: HostLink,
        event: events.Event,
        book: Book,
        before: Mapping[str, str],
        now: float,
    ) -> None:
        """Record what an event says of a known host."""
        match event:
            case events.HostRemoved(host, is_forced) if host != LOCAL_HOST:
                link.is_removed = True
                link.is_forced |= is_forced
            case events.EngineLost():
                link.is_engine_down = link.is_up
            case events.EngineBack():
                link.is_engine_down = False
            case events.HostUp():
                self.write_up(event, book, before, now)
            case events.HostUnreachable(host, _, epoch):
                self.write_down_link(host, epoch, book, before, now)

    def write_up(
        self, event: events.HostUp, book: Book, before: Mapping[str, str], now: float
    ) -> None:
        """Record a connection, unless it is an old one."""
        link = self.hosts[event.host]
        if event.epoch > link.epoch:
            link.epoch, link.is_engine_down = event.epoch, False
            was_gone = link.is_gone(now)
            if not link.is_up:
                link.is_up, link.is_new, link.since_s = True, False, now
            for id in book.on_host(event.host):
                if was_gone or id not in event.running or before.get(id) != "releasing":
                    self.forget(id)
                elif id in self.doubtful:
                    self.doubtful[id] = Doubt(event.host, now)

    def write_down_link(
        self, host: str, epoch: int, book: Book, before: Mapping[str, str], now: float
    ) -> None:
        """Record the loss of a connection, unless it is an old one."""
        link = self.hosts[host]
        if epoch and epoch < link.epoch:
            return
        link.epoch = max(link.epoch, epoch)
        if link.is_up or link.is_new:
            link.is_up, link.is_new, link.since_s = False, False, now
            there = book.on_host(host)
            serving = {id for id in there if before.get(id) not in ENDING}
            self.doubtful |= {id: Doubt(host, now) for id in serving}


ENDING = ("draining", "releasing")
"""States in which a replica takes no new calls, so that another one may be started beside it."""
