"""The records of a host."""

from __future__ import annotations

from dataclasses import replace

from pool_manager.core.cluster import COLD, GPU_STANDBY_MIB, STANDBY_KEY, STANDBY_MIB, Cluster
from pool_manager.core.ledger import Charge, Need, Reservation
from pool_manager.core.start_queue import Rank, StartPriority
from pool_manager.core.state import Device, PoolSpec, Replica, Role, State
from registry.exchange import Demand, Load

A1, A2, B = "default/a@1", "default/a@2", "default/b@1"
GPU = Device("gpu", "cuda", 10_000)
CPU = Device("d0", "cpu", 2_000, "ram")


def host(*specs: PoolSpec) -> Cluster:
    made = Cluster([GPU, CPU])
    for spec in specs:
        made.define(spec)
    return made


def standby(id: str, state: State = State.STANDBY) -> Replica:
    return Replica(id, STANDBY_KEY, (), "standby", 0.0, state, is_bound=False)


def test_an_id_of_a_living_replica_is_not_given_again() -> None:
    """The next id that no replica has is taken."""
    there = host(PoolSpec(STANDBY_KEY))
    there.add(standby("s1"))
    ids = iter(["s1", "s1", "s2"])

    assert there.unused_id(lambda: next(ids)) == "s2"


def test_a_definition_makes_a_pool_or_changes_it() -> None:
    """A redefined pool keeps its replicas and has the new settings."""
    there = host(PoolSpec(A1))
    pool = there.pools[A1]
    pool.removed, pool.quiet_until_s = True, 100.0

    assert there.define(PoolSpec(A1, max=5)) is pool
    assert (pool.spec.max, pool.removed, pool.quiet_until_s) == (5, False, 0.0)


def test_revisions_of_a_function_know_each_other() -> None:
    """Siblings are the other revisions of a function; a pool without a function has none."""
    there = host(PoolSpec(A1, function="default/a"), PoolSpec(A2, function="default/a"))
    other = there.define(PoolSpec(B))

    assert [pool.key for pool in there.siblings(there.pools[A1])] == [A2]
    assert list(there.siblings(other)) == []


def test_a_cold_pool_still_publishes_how_its_replicas_ended() -> None:
    """Gateways need the cause of a death after the pool is cold again."""
    there = host(PoolSpec(A1), PoolSpec(B))
    pool = there.pools[A1]
    pool.ended["r1"] = "was killed by SIGKILL"

    shown = there.endpoints(pool, 0.0)

    assert (shown.state, shown.ended) == (COLD.state, {"r1": "was killed by SIGKILL"})
    assert there.endpoints(there.pools[B], 0.0) == COLD


def test_a_forgotten_pool_leaves_nothing() -> None:
    """After the last revision is removed, no index has the function."""
    there = host(PoolSpec(A1, function="default/a"), PoolSpec(A2, function="default/a"))
    first, second = there.pools[A1], there.pools[A2]
    there.live[A1] = None
    there.blocked.add(A1)

    there.forget(first)

    assert (there.pools, there.live, there.blocked) == ({A2: second}, {}, set())
    assert list(there.siblings(second)) == []
    there.forget(second)
    assert there.pools == {}


def test_a_replica_takes_its_place_and_gives_it_back() -> None:
    """A replica is indexed and charged from its record until it is removed."""
    there = host(PoolSpec(A1, share=0.5, memory_mib=700.0))
    replica = Replica("r1", A1, ("gpu",), "serve", 0.0)
    there.pools[A1].quiet_until_s = 100.0

    there.add(replica)
    assert there.find("r1") is replica
    assert list(there.replicas()) == [replica]
    assert there.ledger.charge_of("r1") == Charge(("gpu",), ("gpu",), 0.5, 700.0)
    assert there.pools[A1].quiet_until_s == 0.0

    there.remove(replica)
    assert there.find("r1") is None
    assert list(there.replicas()) == []
    assert "gpu" in there.ledger.empty()


def test_a_standby_takes_memory_of_the_cpu_only() -> None:
    """A standby is charged to the bank of the CPU slots, or to no bank if there are none."""
    there = host(PoolSpec(STANDBY_KEY, role="standby"))

    there.add(standby("s1"))

    assert there.standby_bank() == "ram"
    assert there.ledger.charge_of("s1") == Charge((), ("ram",), 0.0, STANDBY_MIB)
    assert Cluster([GPU]).standby_bank() == ""


def test_a_standby_that_waits_is_used_before_one_that_starts() -> None:
    """`next_standby` prefers waiting standbys to starting ones, and ignores those that leave."""
    there = host(PoolSpec(STANDBY_KEY, role="standby"))
    assert there.next_standby() is None
    for one in (standby("s1", State.STARTING), standby("s2"), standby("s3", State.RELEASING)):
        there.add(one)

    assert [one.id for one in there.standbys()] == ["s1", "s2"]
    following = there.next_standby()
    assert following is not None
    assert following.id == "s2"


def test_without_standbys_there_is_none() -> None:
    """A host without standbys has no pool for them."""
    assert host().standbys() == []


def test_an_assigned_standby_is_a_replica_of_its_pool() -> None:
    """An assigned standby changes pool, device, role and charge, and both pools are marked as
    changed."""
    there = host(PoolSpec(STANDBY_KEY, role="standby"), PoolSpec(A1, memory_mib=700.0))
    one = standby("s1")
    there.add(one)

    there.assign(one, there.pools[A1], ("d0",))

    assert (one.pool, one.devices, one.role) == (A1, ("d0",), "serve")
    assert there.pools[STANDBY_KEY].replicas == {}
    assert there.pools[A1].replicas == {"s1": one}
    assert there.ledger.charge_of("s1") == Charge(("d0",), ("ram",), 1.0, 700.0)
    assert there.changed == {STANDBY_KEY, A1}


def test_a_need_is_what_was_declared_or_measured() -> None:
    """A need uses the larger of the stored and the measured memory."""
    there = host(PoolSpec(A1, device_kind="cuda", share=0.5, memory_mib=100.0))
    pool = there.pools[A1]
    assert there.need(pool) == Need(A1, "cuda", 0.5, 100.0)

    pool.measured_mib = 300.0

    assert there.need(pool) == Need(A1, "cuda", 0.5, 300.0)


def test_each_gpu_has_a_pool_of_standbys() -> None:
    """CPU slots share one pool of standbys, each GPU has its own, and an unknown device maps to an
    unused key."""
    there = host()

    pools = {device: there.standby_key(device) for device in ("", "d0", "gpu", "gone")}

    assert pools == {
        "": STANDBY_KEY,
        "d0": STANDBY_KEY,
        "gpu": "standby/gpu",
        "gone": "standby/gone",
    }
    assert there.standby_charge("gpu") == ("gpu", GPU_STANDBY_MIB)
    assert there.standby_charge("gone") == ("", 0.0)


def test_everybody_on_a_device_is_known() -> None:
    """`on` returns replicas and a GPU's standbys; standbys for the CPU are on no slot."""
    there = host(PoolSpec(A1))
    there.keep_standbys("", 1)
    there.keep_standbys("gpu", 1)
    waiting = Replica("s2", "standby/gpu", ("gpu",), "standby", 0.0, is_bound=False)
    one = Replica("r1", A1, ("gpu",), "serve", 0.0)
    for replica in (standby("s1"), waiting, one):
        there.add(replica)

    assert there.standby_places == {STANDBY_KEY: ("local", ""), "standby/gpu": ("local", "gpu")}
    assert there.next_standby("gpu") is waiting
    assert there.on("gpu") == [one, waiting]
    assert there.on("d0") == []


def test_a_trial_takes_what_others_leave() -> None:
    """A trial takes all of an empty device, the rest of a shared one, and nothing if nothing is
    left."""
    there = host(PoolSpec(A1, share=0.4), PoolSpec(B, role="trial", share=0.1))
    there.add(Replica("r1", A1, ("gpu",), "serve", 0.0))

    for id, device in (("t1", "gpu"), ("t2", "d0"), ("t3", "gpu")):
        there.add(Replica(id, B, (device,), "trial", 0.0))

    shares = [there.ledger.charge_of(id).share for id in ("t1", "t2", "t3")]
    assert shares == [0.6, 1.0, 0.0]
    assert there.need(there.pools[B]) == Need(B, "any", 0.1, 0.0, takes_rest=True)


def test_a_claim_can_be_given_up() -> None:
    """Releasing a reservation frees its device; without a reservation nothing happens."""
    there = host(PoolSpec(A1))
    pool = there.pools[A1]
    pool.reservation = Reservation(there.need(pool), ("gpu",), (), 0.0)
    there.ledger.reserve(pool.reservation)

    there.unreserve(pool)
    there.unreserve(pool)

    assert (pool.reservation, there.ledger.reservations) == (None, {})


def test_a_start_is_as_urgent_as_who_waits_for_it() -> None:
    """Priorities: waiting calls by arrival, then floors by request time, then standbys; short loads
    of a standby come first."""
    there = host(PoolSpec(A1, load_s=0.01), PoolSpec(B))
    there.keep_standbys("", 1)
    there.add(standby("s1", State.STARTING))
    for id, key in (("r1", A1), ("r2", B)):
        there.add(Replica(id, key, ("d0",), "serve", 50.0))
    before = there.start_priority("r1")
    there.demand.update(Demand("w", 1, True, {A1: Load(1, 0, 3.0), B: Load(1, 1, 0.5)}), 100.0)
    there.pools[A1].observe_load(1, 0, 3.0, 100.0)

    assert before == StartPriority(Rank.FLOOR, 50.0)
    assert there.start_priority("r1") == StartPriority(Rank.WAITER, 97.0)
    assert there.start_priority("r2") == StartPriority(Rank.WAITER, 50.0)
    assert there.start_priority("s1") == StartPriority(Rank.STANDBY, 0.0)
    assert there.start_priority("gone") == StartPriority(Rank.STANDBY, 0.0)

    for replica in there.replicas():
        replica.state = State.LOADING
    assert there.start_priority("r1").rank is Rank.SHORT
    assert there.start_priority("r2").rank is Rank.WAITER


def on_two(there: Cluster, key: str = A1, role: Role = "serve") -> Replica:
    """A replica on two GPUs of a cluster."""
    replica = Replica("r1", key, ("gpu", "gpu2"), role, 0.0)
    there.add(replica)
    return replica


def two_gpus(*specs: PoolSpec) -> Cluster:
    made = Cluster([GPU, replace(GPU, id="gpu2", bank="gpu2"), CPU])
    for spec in specs:
        made.define(spec)
    return made


def test_a_replica_on_several_devices_is_found_by_any() -> None:
    """It is on each of its devices; the first stands for all where one is shown."""
    there = two_gpus(PoolSpec(A1))
    replica = on_two(there)

    assert there.on("gpu") == there.on("gpu2") == [replica]
    assert replica.first_device == "gpu"
    assert there.keepers(there.pools[A1]) == {}
    there.define(PoolSpec(A1, min=1))
    replica.state = State.READY
    assert there.keepers(there.define(PoolSpec(B))) == {
        "gpu": {"r1": "default/a"},
        "gpu2": {"r1": "default/a"},
    }


def test_a_trial_on_several_devices_takes_what_is_left_on_each() -> None:
    """Its share is the least that others leave; devices that are not known do not count."""
    there = two_gpus(PoolSpec(A1, share=0.4), PoolSpec(B, role="trial"))
    there.add(Replica("r2", A1, ("gpu2",), "serve", 0.0))
    on_two(there, B, "trial")

    assert there.ledger.charge_of("r1").share == 0.6


def test_a_second_session_needs_memory_on_each_device() -> None:
    """What the fullest of its devices has free decides."""
    there = two_gpus(PoolSpec(A1, memory_mib=3_000.0), PoolSpec(B, memory_mib=5_000.0))
    replica = on_two(there)
    there.add(Replica("r2", B, ("gpu2",), "serve", 0.0))
    replica.state = State.READY

    assert "need 3000 MiB more, 1744 are free" in there.begin_upgrade("r1")
