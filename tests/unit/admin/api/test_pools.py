"""Tests of pools, replicas and devices over the admin API."""

from __future__ import annotations

from tests.support.operator import MODEL
from tests.support.server import ServingServer

CALL = {"inputs": {}}


async def test_every_revision_has_a_pool(server: ServingServer) -> None:
    """Every revision has a pool, older ones too; trials have none."""
    await server.deploy({"other.onnx": b"\x3a\x00\x3a\x00"}, name="digits")
    await server.call("digits", CALL)

    pools = (await server.admin("GET", "/pools")).json()["items"]

    states = {pool["pool"]: (pool["state"], pool["ready"]) for pool in pools}
    assert states["default/digits@2"] == ("warm", 1)
    assert states["default/digits@1"] == ("cold", 0)


async def test_replicas_and_their_devices_are_listed(server: ServingServer) -> None:
    """After a call, one replica is ready on one device; the other devices are free."""
    before = (await server.admin("GET", "/devices")).json()["items"]
    assert [device["replicas"] for device in before] == [[]] * len(before)
    assert (await server.admin("GET", "/replicas")).json()["items"] == []

    await server.call("digits", CALL)

    (replica,) = (await server.admin("GET", "/replicas")).json()["items"]
    assert (replica["pool"], replica["state"]) == ("default/digits@1", "ready")
    assert (replica["role"], replica["since_s"] >= 0) == ("serve", True)
    devices = (await server.admin("GET", "/devices")).json()["items"]
    taken = [device for device in devices if device["replicas"]]
    assert [(one["id"], one["replicas"]) for one in taken] == [(replica["device"], [replica["id"]])]


async def test_pools_are_listed_in_pages(server: ServingServer) -> None:
    """Pools are listed by name and number in pages; a page may begin between two revisions of a
    function."""
    await server.deploy({"m.onnx": MODEL}, name="a")
    await server.deploy({"m.onnx": MODEL * 2}, name="digits")

    pages, cursor = [], ""
    for _ in range(3):
        page = (await server.admin("GET", f"/pools?limit=1&next={cursor}")).json()
        pages.append([item["pool"] for item in page["items"]])
        cursor = page["next"]

    assert pages == [["default/a@1"], ["default/digits@1"], ["default/digits@2"]]
    assert cursor is None
    assert (await server.admin("GET", "/pools?next=@")).status == 400
