"""Tests of hosts over the admin API, with a server of the fake driver."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.server import ServingServer

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFfGcgGRVOoYdyv3h1CmT6HjCPWEX0dyCRYDIdpoyrpI"
NOWHERE = "127.0.0.1:1"
"""Address at which nothing listens."""
NEW = {"address": NOWHERE, "name": "gpu2", "labels": {"zone": "a"}, "host_key": KEY}


async def add(server: ServingServer, **changes: Any) -> dict[str, Any]:
    answer = await server.admin("POST", "/hosts?unchecked=true", {**NEW, **changes})
    assert answer.status == 201, answer
    found: dict[str, Any] = answer.json()
    return found


async def test_the_local_host_is_there_and_not_to_be_changed(server: ServingServer) -> None:
    """It is listed and shown without settings; every change of it is refused."""
    listed = (await server.admin("GET", "/hosts")).json()["items"]
    assert [(one["name"], one["address"], one["state"]) for one in listed] == [("local", "", "up")]
    assert (await server.admin("GET", "/hosts/local")).json()["settings"] is None

    for method, path in (
        ("PATCH", "/hosts/local"),
        ("DELETE", "/hosts/local"),
        ("POST", "/hosts/local/check"),
    ):
        answer = await server.admin(method, path, {"draining": True})
        assert (answer.status, answer.problem["code"]) == (400, "bad_request")


async def test_an_unchecked_host_is_stored_as_given(server: ServingServer) -> None:
    """Its settings come back; the name is that of the machine without its domain."""
    made = await add(server, cpu_slots=3)
    assert made["checks"] == []
    assert made["settings"] | {"added_s": 0} == {
        "kind": "ssh",
        "address": NOWHERE,
        "labels": {"zone": "a"},
        "host_key": KEY,
        "identity": "",
        "engine": "/var/run/docker.sock",
        "cpu_slots": 3,
        "gpus": "all",
        "files_mib": 51_200,
        "draining": False,
        "added_s": 0,
    }
    other = await add(server, name="", address="nn@GPU3.example.com:2222")
    assert (other["name"], other["address"]) == ("gpu3", "nn@GPU3.example.com:2222")


async def test_a_host_without_an_answer_is_refused(server: ServingServer) -> None:
    """The error has the reason and a hint, and nothing is stored."""
    answer = await server.admin("POST", "/hosts", NEW)

    assert (answer.status, answer.problem["code"]) == (422, "host_refused")
    assert "cannot be reached by SSH" in answer.problem["detail"]
    assert answer.problem["hint"].startswith("check whether this works: ssh -p 1 127.0.0.1")
    assert (await server.admin("GET", "/hosts/gpu2")).status == 404


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "local"}, "the machine that the server runs on"),
        ({"name": "", "address": "10.0.0.7"}, "cannot derive a name from '10.0.0.7'"),
        ({"address": "-oProxyCommand=id"}, "expected [USER@]HOST[:PORT]"),
        ({"name": "", "address": ""}, "expected [USER@]HOST[:PORT], got ''"),
        ({"name": "", "address": "nn@gpu2\x1b[31m"}, "expected [USER@]HOST[:PORT], got 'nn@gpu2"),
        ({"identity": "key"}, "identity: expected the absolute path"),
        ({"host_key": "ssh-ed25519 AAAA"}, "expected a public"),
        ({"labels": {"host": "x"}}, "every host has the label"),
        ({"labels": {"zone": 1}}, "the host cannot be read"),
        ({"nonsense": 1}, "the host cannot be read"),
    ],
)
async def test_bad_hosts_are_refused_without_a_login(
    server: ServingServer, changes: dict[str, Any], expected: str
) -> None:
    """The first bad field is named."""
    answer = await server.admin("POST", "/hosts", {**NEW, **changes})
    assert answer.status == 400
    assert expected in answer.problem["detail"]


async def test_a_host_is_changed(server: ServingServer) -> None:
    """Labels are merged, null removes one; a new login is checked unless that is waived."""
    await add(server)

    labels = {"labels": {"disk": "nvme", "zone": None}}
    changed = (await server.admin("PATCH", "/hosts/gpu2", labels)).json()
    assert changed["settings"]["labels"] == {"disk": "nvme"}
    changed = (await server.admin("PATCH", "/hosts/gpu2", {"draining": True})).json()
    assert changed["settings"]["draining"] is True

    relative = {"address": "127.0.0.1:2", "identity": "key"}
    refused = await server.admin("PATCH", "/hosts/gpu2", relative)
    assert (refused.status, refused.problem["code"]) == (400, "bad_request"), "before a login"
    login = {"address": "127.0.0.1:2"}
    assert (await server.admin("PATCH", "/hosts/gpu2", login)).status == 422
    answer = await server.admin("PATCH", "/hosts/gpu2?unchecked=true", login)
    assert answer.json()["settings"]["address"] == "127.0.0.1:2"
    for bad in ({}, {"cpu_slots": -1}, {"labels": {"host": "x"}}):
        assert (await server.admin("PATCH", "/hosts/gpu2", bad)).status == 400
    assert (await server.admin("PATCH", "/hosts/gpu9", {"draining": True})).status == 404


async def test_names_and_addresses_are_taken_once(server: ServingServer) -> None:
    """A second host of the same name or address is a conflict."""
    await add(server)
    for taken in (NEW, {**NEW, "name": "gpu3"}):
        answer = await server.admin("POST", "/hosts?unchecked=true", taken)
        assert (answer.status, answer.problem["code"]) == (409, "conflict")


async def test_a_check_reports_a_failed_login(server: ServingServer) -> None:
    """Checks are answered in the form of doctor, a failed login as one of them."""
    await add(server)
    items = (await server.admin("POST", "/hosts/gpu2/check")).json()["items"]
    assert [(one["level"], one["name"]) for one in items] == [("fail", "login")]


async def test_a_host_is_removed(server: ServingServer) -> None:
    """A host without replicas is gone at once; then its name is free."""
    await add(server)
    assert (await server.admin("DELETE", "/hosts/gpu2?force=yes")).status == 400
    answer = await server.admin("DELETE", "/hosts/gpu2?force=true")
    assert answer.json() == {"removed": "gpu2", "replicas": 0}
    assert (await server.admin("DELETE", "/hosts/gpu2")).status == 404
    await add(server)


async def test_a_host_is_kept_until_its_replicas_have_drained(
    server: ServingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row goes when the manager has forgotten it. Until then, the only change is to keep it."""
    await add(server)
    manager = server.server.manager
    view = manager.host("gpu2")
    assert view
    draining = replace(view, state="draining", replicas=1)
    forgotten: list[bool] = []
    monkeypatch.setattr(manager, "hosts_of", lambda _name: [] if forgotten else [draining])
    for _ in range(2):
        answer = await server.admin("DELETE", "/hosts/gpu2")
        assert (answer.status, answer.json()) == (202, {"removed": None, "replicas": 1})
    assert (await server.admin("PATCH", "/hosts/gpu2", {"labels": {}})).status == 409
    kept = (await server.admin("PATCH", "/hosts/gpu2", {"draining": False})).json()
    assert kept["settings"]["draining"] is False
    assert (await server.admin("DELETE", "/hosts/gpu2")).status == 202
    assert (await server.admin("GET", "/hosts/gpu2")).status == 200

    forgotten.append(True)
    manager._hosts.changed.notify("gpu2")
    async with asyncio.timeout(60):
        while server.server.store.hosts.has("gpu2"):
            await server.admin("GET", "/hosts")


async def test_logins_of_hosts_need_the_scope_admin(server: ServingServer) -> None:
    """A key with the scope read sees the list, as it sees the events; the rest is for others."""
    made = await server.admin("POST", "/keys", {"scopes": ["deploy", "read"]})
    bearer = {"Authorization": f"Bearer {made.json()['secret']}"}
    listed = await server.request("GET", "/admin/v1/hosts", None, bearer)
    assert [one["name"] for one in listed.json()["items"]] == ["local"]
    for method, path in (
        ("POST", ""),
        ("GET", "/gpu2"),
        ("PATCH", "/gpu2"),
        ("DELETE", "/gpu2"),
        ("POST", "/gpu2/check"),
    ):
        answer = await server.request(method, f"/admin/v1/hosts{path}", {}, bearer)
        assert (answer.status, answer.problem["code"]) == (403, "wrong_scope")
