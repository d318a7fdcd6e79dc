"""Tests of stored hosts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from registry.errors import BadRequest, Conflict, StoreUnavailable, Unknown
from registry.model.hosts import SshHost, StoredHost
from registry.store import hosts
from registry.store.database import Database
from registry.store.hosts import HostStore, check_host
from registry.store.records import encode_record

GPU2 = SshHost("gpu2", address="nn@gpu2", labels={"zone": "a"}, added_s=7.0)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0"


@pytest.fixture
async def store(database: Database) -> HostStore:
    return await HostStore.open(database)


async def test_hosts_survive_a_restart(store: HostStore, database: Database) -> None:
    """Added hosts are there by name, also for a store that is opened later."""
    one = replace(GPU2, name="a", address="a:2222", host_key=KEY, identity="/k", is_draining=True)

    assert await store.add(GPU2) == GPU2
    await store.add(one)

    assert store.all() == [one, GPU2]
    assert (await HostStore.open(database)).all() == [one, GPU2]


async def test_hosts_of_earlier_servers_are_of_ssh(database: Database) -> None:
    """Their rows name no kind. Rows of this server can be read by an earlier one, which skips it:
    all fields have stayed on one level."""
    row = (
        '{"name":"gpu2","address":"nn@gpu2","labels":{"zone":"a"},"host_key":"","identity":"",'
        '"engine":"/var/run/docker.sock","cpu_slots":0,"gpus":"all","files_mib":51200,'
        '"is_draining":false,"added_s":7.0}'
    )
    async with database.write() as transaction:
        await transaction.query("INSERT INTO hosts VALUES (?, ?)", ("gpu2", row))

    assert (await HostStore.open(database)).all() == [GPU2]
    assert json.loads(encode_record(GPU2)) == {"kind": "ssh", **json.loads(row)}


async def test_subscribers_get_each_change(store: HostStore) -> None:
    """A subscriber gets the host after each change, None after its removal, nothing once it ended
    its subscription."""
    seen: list[tuple[str, StoredHost | None]] = []
    end = store.subscribe(lambda name, host: seen.append((name, host)))

    await store.add(GPU2)
    changed = await store.change("gpu2", {"is_draining": True})
    removed = await store.remove("gpu2")
    end()
    await store.add(GPU2)

    assert changed == removed == replace(GPU2, is_draining=True)
    assert seen == [("gpu2", GPU2), ("gpu2", changed), ("gpu2", None)]


async def test_a_refused_change_changes_nothing(store: HostStore, database: Database) -> None:
    """A value that a host cannot have leaves database and memory as they were."""
    await store.add(GPU2)
    with pytest.raises(BadRequest, match="cpu_slots: expected 0 to 256, got -1"):
        await store.change("gpu2", {"cpu_slots": -1})
    assert store.all() == (await HostStore.open(database)).all() == [GPU2]


async def test_a_change_refused_by_the_database_is_not_in_memory(
    store: HostStore, database: Database
) -> None:
    """A host that could not be stored is not there, and no subscriber was called."""
    seen: list[str] = []
    store.subscribe(lambda name, _: seen.append(name))
    await database.close()

    with pytest.raises(StoreUnavailable):
        await store.add(GPU2)
    assert (store.all(), seen) == ([], [])


async def test_names_and_addresses_are_unique(store: HostStore) -> None:
    """A second host with the name or the address of another is refused."""
    await store.add(GPU2)
    with pytest.raises(Conflict, match="a host gpu2 already: nn@gpu2"):
        await store.add(replace(GPU2, address="other"))
    with pytest.raises(Conflict, match="nn@gpu2 is the host gpu2 already"):
        await store.add(replace(GPU2, name="gpu3"))


async def test_there_is_a_limit(store: HostStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than HOSTS_MAX hosts are stored."""
    monkeypatch.setattr(hosts, "HOSTS_MAX", 1)
    await store.add(GPU2)
    with pytest.raises(Conflict, match="there are 1 hosts already"):
        await store.add(SshHost("gpu3", address="gpu3"))


async def test_unknown_hosts_have_similar_names(store: HostStore) -> None:
    """A name that no host has is an error, which names a similar one."""
    await store.add(GPU2)
    with pytest.raises(Unknown, match="no host 'gpu'; did you mean 'gpu2'"):
        store.get("gpu")
    with pytest.raises(Unknown, match=r"no host 'xxxxx'$"):
        await store.remove("xxxxx")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "local"}, "the machine that the server runs on"),
        ({"name": "GPU"}, "expected a name"),
        ({"address": ""}, "address: expected"),
        ({"address": "a\nb"}, "address: expected"),
        ({"address": "a" * 321}, "address: expected"),
        ({"labels": {"Zone": "a"}}, "labels: expected"),
        ({"labels": {"host": "a"}}, "labels: every host has the label host=NAME"),
        ({"labels": {"zone": ""}}, "labels: expected"),
        ({"labels": {f"k{n}": "a" for n in range(17)}}, "labels: expected at most 16, got 17"),
        ({"host_key": "AAAA"}, "host_key: expected"),
        ({"host_key": f"{KEY} x"}, "host_key: expected"),
        ({"identity": "\0"}, "identity: expected"),
        ({"engine": "docker.sock"}, "engine: expected the absolute path"),
        ({"engine": "/" + "a" * 107}, "engine: expected at most 107"),
        ({"cpu_slots": 257}, "cpu_slots: expected 0 to 256"),
        ({"gpus": ""}, "gpus: expected"),
        ({"files_mib": 63}, "files_mib: expected 64"),
    ],
)
def test_bad_fields_are_refused(changes: dict[str, Any], expected: str) -> None:
    """The first bad field is named, with what was expected."""
    with pytest.raises(BadRequest, match=expected):
        check_host(replace(GPU2, **changes))
