"""Claims: one for each GPU in use, given back after a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.errors import ApiAway, ApiRefused
from hosts.kubernetes.objects import CLAIMS, OWNER_LABEL, Kind, Metadata, ResourceClaim
from pool_manager.core.state import Device
from pool_manager.hosts.kubernetes.claims import (
    AGAIN_S,
    MAKE_S,
    Claims,
    ClaimTable,
    claim_name,
    claim_of,
)
from registry.tasks import Tasks
from tests.support.cluster_objects import definition

OWNER = "store-1"
UUID = "GPU-2fa81118-5a5f-aa66-7660-471eed407181"
GPU = Device(f"c/n1/{UUID}", "cuda", 1000.0, host="c/n1")
OTHER = Device("c/n1/MIG-1", "cuda", 1000.0, host="c/n1", is_slice=True)


class ClaimStore:
    """The claims of an API server in memory, with its answers to what cannot be."""

    def __init__(self) -> None:
        self.claims: dict[str, ResourceClaim] = {}
        self.requests: list[tuple[str, str]] = []
        self.deleted = asyncio.Event()
        """Set by each delete."""
        self.on_request: Callable[[str, str], None] = lambda _verb, _name: None
        self._made = 0

    async def _asked(self, verb: str, name: str) -> None:
        self.requests.append((verb, name))
        self.on_request(verb, name)
        await asyncio.sleep(0)

    async def create(self, kind: Kind[Any], claim: ResourceClaim) -> ResourceClaim:
        assert kind is CLAIMS
        name = claim.metadata.name
        await self._asked("create", name)
        if name in self.claims:
            raise ApiRefused(409, "AlreadyExists", f"{name} already exists")
        self._made += 1
        metadata = msgspec.structs.replace(claim.metadata, uid=f"uid-{self._made}")
        self.claims[name] = msgspec.structs.replace(claim, metadata=metadata)
        return self.claims[name]

    async def get(self, _kind: Kind[Any], name: str) -> ResourceClaim:
        await self._asked("get", name)
        if name not in self.claims:
            raise ApiRefused(404, "NotFound", f"{name} not found")
        return self.claims[name]

    async def list(self, _kind: Kind[Any], selector: str) -> tuple[dict[str, ResourceClaim], str]:
        await self._asked("list", selector)
        key, _, value = selector.partition("=")
        found = self.claims.items()
        return {name: one for name, one in found if one.metadata.labels.get(key) == value}, "1"

    async def delete(self, _kind: Kind[Any], name: str, *, uid: str = "") -> None:
        await self._asked("delete", name)
        if name not in self.claims:
            raise ApiRefused(404, "NotFound", f"{name} not found")
        if uid and self.claims[name].metadata.uid != uid:
            raise ApiRefused(409, "Conflict", "another uid")
        del self.claims[name]
        self.deleted.set()

    def put(self, claim: ResourceClaim, **metadata: Any) -> None:
        """Put a claim there as somebody else would."""
        changed = msgspec.structs.replace(claim.metadata, **{"uid": "uid-old", **metadata})
        self.claims[changed.name] = msgspec.structs.replace(claim, metadata=changed)


class World:
    """Claims over a store, and a clock that only pauses move."""

    def __init__(self, **changes: Any) -> None:
        self.store, self.now = ClaimStore(), 100.0
        self.claims = Claims(
            cast(KubernetesClient, self.store),
            definition(**changes),
            OWNER,
            lambda: self.now,
            pause=self._pause,
        )

    async def _pause(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    def asked(self) -> list[str]:
        """Return the verbs of the requests since the last call."""
        verbs = [verb for verb, _ in self.store.requests]
        self.store.requests.clear()
        return verbs


def wanted(device: Device = GPU, **changes: Any) -> ResourceClaim:
    return claim_of(device, definition(**changes), OWNER, ())


def test_a_claim_names_one_device() -> None:
    """A claim asks for one device, by its UUID, and has our label."""
    claim = wanted()
    (request,) = claim.spec.devices.requests
    assert request.exactly is not None
    assert request.exactly.device_class_name == "gpu.nvidia.com"
    assert [one.cel.expression for one in request.exactly.selectors] == [
        f"device.attributes['gpu.nvidia.com'].uuid == '{UUID}'"
    ]
    assert claim.metadata.labels == {OWNER_LABEL: OWNER}


def test_a_slice_has_a_class_of_its_own() -> None:
    """NVIDIA's class of GPUs does not match MIG slices."""
    exactly = wanted(OTHER).spec.devices.requests[0].exactly
    assert exactly is not None
    assert exactly.device_class_name == "mig.nvidia.com"


def test_an_attribute_may_have_a_domain_of_its_own() -> None:
    """The UUID may be an attribute of another domain than the driver's."""
    exactly = wanted(uuid_attribute="example.com/id").spec.devices.requests[0].exactly
    assert exactly is not None
    assert exactly.selectors[0].cel.expression == f"device.attributes['example.com'].id == '{UUID}'"


def test_names_of_claims_are_names_of_objects_and_differ() -> None:
    """Names are in lower case and short enough, and differ by server and UUID."""
    name = claim_name(OWNER, UUID)
    assert name.endswith("-gpu-2fa81118-5a5f-aa66-7660-471eed407181")
    uuids = [UUID, UUID.upper(), UUID.lower(), "x", "X", "a.b", "MIG-1", "mig-1", "GPU-" + "a" * 60]
    names = {claim_name(owner, uuid) for uuid in uuids for owner in ("a", "b")}
    assert len(names) == 2 * len(uuids)
    assert all(len(one) <= 253 and one == one.lower() for one in names)


async def test_a_claim_is_made_once_and_shared() -> None:
    """Replicas that come at once have one claim, with one request."""
    world = World()
    names = await asyncio.gather(*(world.claims.use(GPU, f"r{n}") for n in range(5)))
    assert set(names) == {claim_name(OWNER, UUID)}
    assert world.asked() == ["create"]
    assert world.claims.used == 1


async def test_each_gpu_has_its_claim() -> None:
    """A replica on two GPUs has two claims, and gives both up."""
    world = World()
    await world.claims.use(GPU, "r1")
    await world.claims.use(OTHER, "r1")
    assert len(world.store.claims) == 2
    world.claims.end_use("r1")
    assert world.claims.used == 0


async def test_a_claim_is_given_back_after_a_while() -> None:
    """It goes `claim_idle_s` after its last replica, with one request and no others."""
    world = World(claim_idle_s=60.0)
    await world.claims.use(GPU, "r1")
    await world.claims.use(GPU, "r2")
    world.claims.end_use("r1")
    world.now += 1000
    await world.claims.give_back()
    assert world.store.claims  # r2 is on it
    world.claims.end_use("r2")
    world.now += 59
    await world.claims.give_back()
    assert world.store.claims
    world.now += 1
    world.asked()
    await world.claims.give_back()
    assert not world.store.claims
    assert world.asked() == ["delete"]
    await world.claims.give_back()
    assert world.asked() == []


async def test_a_claim_that_is_used_again_stays() -> None:
    """A replica within that time costs no request."""
    world = World(claim_idle_s=60.0)
    await world.claims.use(GPU, "r1")
    world.claims.end_use("r1")
    world.now += 59
    world.asked()
    await world.claims.use(GPU, "r2")
    world.now += 1000
    await world.claims.give_back()
    assert world.asked() == []


async def test_a_user_that_comes_while_a_claim_is_given_back_has_a_new_one() -> None:
    """The name may be used again only after the delete."""
    world = World(claim_idle_s=0.0)
    await world.claims.use(GPU, "r1")
    world.claims.end_use("r1")
    giving = asyncio.ensure_future(world.claims.give_back())
    await asyncio.sleep(0)
    name = await world.claims.use(GPU, "r2")
    await giving
    assert world.store.claims[name].metadata.uid == "uid-2"
    world.now += 1000
    await world.claims.give_back()
    assert name in world.store.claims


async def test_a_claim_that_cannot_be_given_back_is_tried_again() -> None:
    """A silent or refusing API server delays one claim, not the others."""
    world = World(claim_idle_s=0.0)
    await world.claims.use(GPU, "r1")
    await world.claims.use(OTHER, "r2")
    world.claims.end_use("r1")
    world.claims.end_use("r2")
    answers = iter([ApiAway("no answer"), ApiRefused(403, "Forbidden", "no")])

    def refuse(_verb: str, _name: str) -> None:
        if (error := next(answers, None)) is not None:
            raise error

    world.store.on_request = refuse
    await world.claims.give_back()
    assert len(world.store.claims) == 2
    world.now += AGAIN_S - 1
    await world.claims.give_back()
    assert len(world.store.claims) == 2
    world.now += 1
    await world.claims.give_back()
    assert not world.store.claims


async def test_a_claim_that_somebody_has_deleted_is_gone() -> None:
    """A claim that is gone counts as given back."""
    world = World(claim_idle_s=0.0)
    await world.claims.use(GPU, "r1")
    world.claims.end_use("r1")
    world.store.claims.clear()
    await world.claims.give_back()
    await world.claims.use(GPU, "r2")
    assert world.store.claims


async def test_a_claim_of_the_same_name_that_is_another_stays() -> None:
    """It was deleted by somebody and made by a later server: not ours to delete."""
    world = World(claim_idle_s=0.0)
    await world.claims.use(GPU, "r1")
    world.store.put(wanted())
    world.claims.end_use("r1")
    await world.claims.give_back()
    assert world.store.claims
    world.now += 1000
    world.asked()
    await world.claims.give_back()
    assert world.asked() == []


async def test_a_claim_that_is_used_while_others_are_given_back_stays() -> None:
    """Deletes take time, in which a replica may come."""
    world = World(claim_idle_s=0.0)
    await world.claims.use(GPU, "r1")
    name = await world.claims.use(OTHER, "r1")
    world.claims.end_use("r1")
    users: list[asyncio.Task[str]] = []

    def use(_verb: str, _name: str) -> None:
        if not users:
            users.append(asyncio.ensure_future(world.claims.use(OTHER, "r2")))

    world.store.on_request = use
    await world.claims.give_back()
    assert [await one for one in users] == [name]
    assert world.store.claims[name].metadata.uid == "uid-2"


async def test_a_doubted_claim_is_looked_at() -> None:
    """After a Pod was not scheduled the claim is made again if it is gone."""
    world = World()
    name = await world.claims.use(GPU, "r1")
    world.claims.doubt(GPU)
    world.asked()
    await world.claims.use(GPU, "r2")
    assert world.asked() == ["create", "get"]
    del world.store.claims[name]
    world.claims.doubt(GPU)
    await world.claims.use(GPU, "r3")
    assert name in world.store.claims
    world.claims.doubt(OTHER)  # it has none


async def test_an_earlier_managers_claim_is_taken_over() -> None:
    """A claim that is there is used, not made."""
    world = World()
    world.store.put(wanted())
    world.claims.adopt([GPU], "r1")
    assert world.claims.used == 1
    assert await world.claims.sweep() == 0
    world.asked()
    name = await world.claims.use(GPU, "r2")
    assert world.asked() == ["create", "get"]
    assert world.store.claims[name].metadata.uid == "uid-old"


async def test_a_claim_that_ends_is_waited_for() -> None:
    """While a claim is being deleted none of its name can be made."""
    world = World()
    world.store.put(wanted(), deletion_timestamp="2026-11-30T12:00:00Z")
    asks: list[str] = []

    def end(verb: str, name: str) -> None:
        asks.append(verb)
        if len(asks) == 5:
            del world.store.claims[name]

    world.store.on_request = end
    name = await world.claims.use(GPU, "r1")
    assert world.store.claims[name].metadata.uid == "uid-1"


async def test_a_claim_that_does_not_end_is_no_reason_to_wait_for_ever() -> None:
    """After MAKE_S the start is refused with the API server's words."""
    world = World()
    world.store.put(wanted(), deletion_timestamp="2026-11-30T12:00:00Z")
    began = world.now
    with pytest.raises(ApiRefused, match="already exists"):
        await world.claims.use(GPU, "r1")
    assert MAKE_S <= world.now - began < MAKE_S + 1
    world.claims.end_use("r1")
    assert world.claims.used == 0


async def test_a_claim_of_another_definition_is_replaced() -> None:
    """A claim for the same GPU under another class would not be allocated."""
    world = World(device_class="other.example.com")
    world.store.put(wanted())
    name = await world.claims.use(GPU, "r1")
    exactly = world.store.claims[name].spec.devices.requests[0].exactly
    assert exactly is not None
    assert exactly.device_class_name == "other.example.com"


async def test_a_claim_of_somebody_else_is_left_alone() -> None:
    """A claim of our name without our label is neither used nor deleted."""
    world = World(device_class="other.example.com")
    world.store.put(wanted(), labels={OWNER_LABEL: "somebody"})
    with pytest.raises(ApiRefused, match="already exists"):
        await world.claims.use(GPU, "r1")
    assert world.store.claims


@pytest.mark.parametrize(
    "error", [ApiAway("no answer"), ApiRefused(403, "Forbidden", "exceeded quota")]
)
async def test_refusals_are_the_callers(error: Exception) -> None:
    """A refused or unanswered request is the start's error, and the next start tries again."""
    world = World()

    def refuse(_verb: str, _name: str) -> None:
        raise error

    world.store.on_request = refuse
    with pytest.raises(type(error), match=str(error)):
        await world.claims.use(GPU, "r1")
    world.store.on_request = lambda _verb, _name: None
    await world.claims.use(GPU, "r2")
    assert len(world.store.claims) == 1


async def test_left_overs_are_swept() -> None:
    """Claims of ours that no replica uses are deleted, others are not."""
    world = World()
    world.store.put(wanted())
    world.store.put(wanted(OTHER))
    other = Metadata(name="theirs", labels={OWNER_LABEL: "somebody"})
    world.store.claims["theirs"] = ResourceClaim(metadata=other)
    world.claims.adopt([OTHER], "r1")
    assert await world.claims.sweep() == 1
    assert set(world.store.claims) == {claim_name(OWNER, "MIG-1"), "theirs"}


async def test_a_cluster_that_is_used_no_more_has_no_claims() -> None:
    """Then all claims of ours are deleted."""
    world = World()
    await world.claims.use(GPU, "r1")
    assert await world.claims.sweep(is_whole=True) == 1
    assert not world.store.claims


async def test_a_cluster_without_claims_has_no_left_overs() -> None:
    """Without dynamic resource allocation there is nothing to sweep."""
    world = World()

    def refuse(_verb: str, _name: str) -> None:
        raise ApiRefused(404, "NotFound", "the server could not find the requested resource")

    world.store.on_request = refuse
    assert await world.claims.sweep() == 0


async def test_a_sweep_that_is_refused_says_so() -> None:
    """A missing right is no empty list."""
    world = World()

    def refuse(_verb: str, _name: str) -> None:
        raise ApiRefused(403, "Forbidden", "resourceclaims is forbidden")

    world.store.on_request = refuse
    with pytest.raises(ApiRefused, match="forbidden"):
        await world.claims.sweep()


async def test_claims_are_looked_at_in_the_background() -> None:
    """Claims are given back without anybody asking."""
    world = World(claim_idle_s=60.0)
    await world.claims.use(GPU, "r1")
    world.claims.end_use("r1")
    tasks = Tasks("test")
    world.claims.open(tasks)
    async with asyncio.timeout(10):
        await world.store.deleted.wait()
    await tasks.close()
    assert not world.store.claims
    assert world.now >= 160.0


async def test_a_changed_time_holds_from_the_next_end_of_use() -> None:
    """A changed definition changes when claims are given back."""
    world = World(claim_idle_s=60.0)
    world.claims.define(definition(claim_idle_s=5.0))
    await world.claims.use(GPU, "r1")
    world.claims.end_use("r1")
    world.now += 5
    await world.claims.give_back()
    assert not world.store.claims


def test_a_table_is_decided_by_its_clock() -> None:
    """A claim is due from its time on, while it has no users."""
    table = ClaimTable(OWNER, 10.0)
    table.use("d", "x", "r1")
    assert table.due(1e9) == []
    table.end_use("r1", 5.0)
    table.end_use("r1", 500.0)  # it was not a user any more
    assert (table.due(14.9), table.due(15.0)) == ([], ["d"])
    table.forget("d")
    assert (table.due(1e9), table.find("d"), table.names()) == ([], None, frozenset())
