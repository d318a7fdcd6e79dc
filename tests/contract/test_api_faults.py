"""The client and the reflector over the double's API server, whatever goes wrong there."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from hosts.kubernetes import list_watch
from hosts.kubernetes.access import Access
from hosts.kubernetes.client import ApiLimits, KubernetesClient
from hosts.kubernetes.errors import ApiAway, ApiRefused
from hosts.kubernetes.objects import CLAIMS, Metadata, ResourceClaim
from hosts.kubernetes.reflector import Reflector
from registry.tasks import Tasks
from tests.support.kubernetes.api import Api
from tests.support.kubernetes.certificate import context_of
from tests.support.kubernetes.pace import Pace
from tests.support.kubernetes.store import ACCOUNTS, NAMESPACES, Json, Store
from tests.support.kubernetes.store import CLAIMS as STORED
from tests.support.kubernetes.tokens import Tokens
from tests.support.operator import until

NAMES: Final = [f"c{number}" for number in range(8)]
STEPS: Final = 120
LIMITS: Final = ApiLimits(
    connect_s=5.0, request_s=5.0, silence_s=1.0, retry_s=0.0, retry_max_s=0.01, page=3
)


class NoNodes:
    """A cluster without nodes."""

    def log(self, pod: Json, container: str) -> bytes:
        """Return nothing: no container has run."""
        return b""

    def woken(self) -> None:
        """Do nothing: nobody acts on changes."""


def _update(metadata: Json, made: Json) -> None:
    made["metadata"].update(metadata)


class Cluster:
    """An API server, its client, and a reflector of claims."""

    def __init__(self, folder: Path) -> None:
        self.store = Store()
        self.tokens = Tokens(self.store)
        self.api = Api(self.store, self.tokens, Pace(bookmark_s=0.1), NoNodes())
        self.account = folder / "account"
        self.claims: dict[str, ResourceClaim] = {}
        self.told: Counter[str] = Counter()
        self._folder = folder

    async def open(self) -> None:
        """Start everything."""
        self._tasks_before = len(asyncio.all_tasks())
        context, authority = context_of(self._folder, ("127.0.0.1",))
        await self.api.open(context)
        self.store.add(NAMESPACES, {"metadata": {"name": "fngate"}})
        self.store.add(ACCOUNTS, {"metadata": {"name": "fngate", "namespace": "fngate"}})
        self.account.mkdir()
        (self.account / "ca.crt").write_text(authority)
        (self.account / "namespace").write_text("fngate")
        self.rotate()
        access = Access(self.account, "127.0.0.1", self.api.port)
        self.client = KubernetesClient(access, LIMITS)
        self.reflector = Reflector(
            self.client,
            CLAIMS,
            "",
            self._synced,
            self._changed,
            self._removed,
            lambda reason: self.told.update(away=1),
            lambda: self.told.update(back=1),
        )
        self.tasks = Tasks("cluster")
        self.tasks.root("reflector", self.reflector.run())

    async def close(self) -> None:
        """End everything."""
        self.api.faults.move()
        await self.tasks.close()
        await self.client.close()
        await self.api.close()
        await until(lambda: len(asyncio.all_tasks()) <= self._tasks_before)

    def rotate(self) -> None:
        """Renew the token."""
        new = self.account / ".token"
        new.write_text(self.tokens.issue("fngate", "fngate"))
        new.replace(self.account / "token")

    def _synced(self, objects: Mapping[str, ResourceClaim]) -> None:
        self.claims = dict(objects)
        self.told["synced"] += 1

    def _changed(self, claim: ResourceClaim) -> None:
        self.claims[claim.metadata.name] = claim
        self.told["changed"] += 1

    def _removed(self, claim: ResourceClaim) -> None:
        del self.claims[claim.metadata.name]
        self.told["removed"] += 1

    def known(self) -> dict[str, tuple[str, str]]:
        """Return what the reflector has told: uids and versions by name."""
        found = {name: one.metadata for name, one in self.claims.items()}
        return {name: (one.uid, one.resource_version) for name, one in found.items()}

    def there(self) -> dict[str, tuple[str, str]]:
        """Return the same of the API server."""
        found = [one["metadata"] for one in self.store.every(STORED)]
        return {one["name"]: (one["uid"], one["resourceVersion"]) for one in found}

    # What goes on

    async def write(self, chance: random.Random) -> None:
        """Make or delete a claim. What is refused has changed nothing, what succeeds is there."""
        name, before = chance.choice(NAMES), self.there()
        try:
            if name in before:
                uid = chance.choice([before[name][0], "another", ""])
                await self.client.delete(CLAIMS, name, uid=uid)
                assert name not in self.there()
                assert uid != "another"
            else:
                metadata = Metadata(name=name, labels={"a": str(chance.random())})
                made = await self.client.create(CLAIMS, ResourceClaim(metadata=metadata))
                assert self.there()[name] == (made.metadata.uid, made.metadata.resource_version)
        except ApiRefused as refused:
            # aiohttp repeats a delete whose connection broke, and finds the object gone.
            if refused.code == 404:
                before.pop(name)
            assert self.there() == before
            self.told["refused"] += 1
        except ApiAway:
            self.told["unknown"] += 1

    def change(self, chance: random.Random) -> None:
        """Change what is there, as somebody else does."""
        for one in list(self.store.every(STORED)):
            if chance.random() < 0.3:
                labels = {"labels": {"b": str(chance.random())}}
                self.store.change(STORED, one, partial(_update, labels))
            elif chance.random() < 0.2:
                self.store.remove(STORED, one)

    async def fail(self, chance: random.Random) -> None:
        """Have something go wrong."""
        faults = self.api.faults
        verb = chance.choice(["", "list", "watch", "create", "delete"])
        code = chance.choice([500, 503, 504])
        junk = chance.choice([b"", b"{", b"[]", b"null", b"\xff", b"{}", b'{"items":5}'])
        found = chance.choice(
            [
                lambda: faults.refuse(code, "InternalError", verb=verb),
                lambda: faults.refuse(code, "Timeout", verb="create", is_after=True),
                lambda: faults.refuse(429, "TooManyRequests", verb=verb, retry_after_s=9),
                lambda: faults.refuse(403, "Forbidden", verb=verb, times=2),
                lambda: faults.break_off(verb=verb, times=2),
                lambda: faults.break_off(verb=verb, is_after=True),
                lambda: faults.answer(junk, verb=verb),
                lambda: faults.delay(0.05, verb=verb, times=2),
                faults.stall,
                faults.move,
                self.api.expire,
                self.api.break_watches,
                self.reflector.resync,
                self.rotate,
                lambda: self.skew(chance.uniform(-3000.0, 3000.0)),
                self.restart,
            ]
        )()
        if asyncio.iscoroutine(found):
            await found

    def skew(self, seconds: float) -> None:
        """Set the API server's clock."""
        self.store.skew_s = seconds
        self.rotate()

    async def restart(self) -> None:
        """End all connections."""
        await self.api.close()
        await self.api.reopen()


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """Yield a cluster whose waits are short."""
    monkeypatch.setattr(list_watch, "BACK_OFF_S", 0.01)
    monkeypatch.setattr(list_watch, "BACK_OFF_MAX_S", 0.05)
    monkeypatch.setattr(list_watch, "RESYNC_S", 0.05)
    made = Cluster(tmp_path)
    await made.open()
    yield made
    await made.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_what_is_told_becomes_what_is_there(cluster: Cluster, seed: int) -> None:
    """Whatever goes wrong: the reflector ends with the API server's objects, their uids and
    versions, and a write that was refused has changed nothing."""
    chance = random.Random(seed)
    for _ in range(STEPS):
        match chance.randrange(4):
            case 0:
                await cluster.fail(chance)
            case 1:
                cluster.change(chance)
            case _:
                await cluster.write(chance)

    cluster.api.faults.pending.clear()
    cluster.api.faults.move()
    await until(lambda: cluster.known() == cluster.there())

    assert cluster.tasks.reasons() == []
    assert cluster.told.keys() >= {"synced", "changed", "removed", "refused", "unknown"}
    assert cluster.told["away"] - cluster.told["back"] in (0, 1)


async def test_pages_and_changes_between_list_and_watch(cluster: Cluster) -> None:
    """A list of several pages that expire half-way begins anew; a change right after it is told."""
    for name in NAMES:
        cluster.store.add(STORED, {"metadata": {"name": name, "namespace": "fngate"}})
    changed = asyncio.Event()

    def change(plural: str) -> None:
        cluster.store.remove(STORED, next(cluster.store.every(STORED)))
        changed.set()

    cluster.api.faults.between = change
    cluster.api.faults.refuse(410, "Expired", verb="list")
    cluster.api.expire()
    await changed.wait()
    await until(lambda: cluster.known() == cluster.there())

    assert sorted(cluster.claims) == NAMES[1:]
