"""The table of replicas that may be stopped, with the floors of their banks."""

from __future__ import annotations

from pool_manager.core.candidates import Candidate, CandidateTable
from pool_manager.core.ledger import Ledger
from pool_manager.core.state import Device


def opened(*charges: tuple[str, str]) -> Ledger:
    """A ledger of two GPUs and two CPU slots with these replicas."""
    slots = [Device(id, "cpu", 1_000.0, "ram") for id in ("d1", "d0")]
    ledger = Ledger([Device("g1", "cuda"), Device("g2", "cuda"), *slots])
    for id, device in charges:
        ledger.charge(id, (device,), 0.1, 0.0)
    return ledger


def candidate(cost: float, pool: str = "p") -> Candidate:
    return Candidate(pool, cost, 1)


def test_floors_are_the_cheapest_of_each_bank_in_rising_order() -> None:
    """Banks with equal floors come in the order of their first devices."""
    ledger = opened(("r1", "g2"), ("r2", "g2"), ("r3", "g1"), ("r4", "d1"), ("r5", "d0"))
    costs = {"r1": 0.3, "r2": 0.1, "r3": 0.1, "r4": 0.5, "r5": 0.05}

    table = CandidateTable.of(ledger, {id: candidate(cost) for id, cost in costs.items()})

    assert list(table.floors()) == [
        (0.05, "d0", "ram"),
        (0.1, "g1", "g1"),
        (0.1, "g2", "g2"),
    ]


def test_a_change_moves_the_floor_of_its_bank() -> None:
    """A candidate that is added, replaced or removed changes the order; a bank without any has no
    floor until it has one again."""
    ledger = opened(("r1", "g1"), ("r2", "g2"), ("r3", "g2"))
    table = CandidateTable.of(ledger, {"r1": candidate(0.2), "r2": candidate(0.3)})
    assert [bank for _, _, bank in table.floors()] == ["g1", "g2"]

    table.put("r3", candidate(0.1))
    assert list(table.floors()) == [(0.1, "g2", "g2"), (0.2, "g1", "g1")]
    table.put("r3", candidate(0.4))
    assert list(table.floors()) == [(0.2, "g1", "g1"), (0.3, "g2", "g2")]
    table.discard("r1")
    table.discard("r1")
    table.discard("nobody")
    assert list(table.floors()) == [(0.3, "g2", "g2")]
    assert "r1" not in table
    table.put("r1", candidate(0.0))
    assert [bank for _, _, bank in table.floors()] == ["g1", "g2"]
    assert table["r1"].cost == 0.0


def test_a_candidate_that_is_replaced_before_floors_are_needed_has_its_last_cost() -> None:
    """Replacing and removing candidates of a new table leave no lower floor behind."""
    ledger = opened(("r1", "g1"), ("r2", "g2"), ("r3", "g2"))
    table = CandidateTable(ledger)
    for id, cost in (("r1", 0.1), ("r1", 0.4), ("r2", 0.2), ("r3", 0.3)):
        table.put(id, candidate(cost))
    table.discard("r2")

    assert list(table.floors()) == [(0.3, "g2", "g2"), (0.4, "g1", "g1")]


def test_the_end_of_a_replica_on_an_unknown_device_makes_no_room() -> None:
    """A bank without a device has no floor, in a new table and after a change."""
    ledger = opened(("r1", "g1"), ("r2", "unknown"))
    table = CandidateTable.of(ledger, {"r2": candidate(0.0)})
    assert list(table.floors()) == []

    table.put("r1", candidate(0.2))
    assert [bank for _, _, bank in table.floors()] == ["g1"]
    table.put("r2", candidate(0.1))
    assert [bank for _, _, bank in table.floors()] == ["g1"]


def test_a_table_without_some_pools_leaves_the_other_one_as_it_was() -> None:
    """Replicas of the named pools are no candidates in the new table."""
    ledger = opened(("r1", "g1"), ("r2", "g2"))
    table = CandidateTable.of(ledger, {"r1": candidate(0.1, "p"), "r2": candidate(0.2, "q")})

    others = table.without({"p", "nobody"})

    assert [bank for _, _, bank in others.floors()] == ["g2"]
    assert [bank for _, _, bank in table.floors()] == ["g1", "g2"]


def test_a_candidate_on_several_devices_is_one_of_each_bank() -> None:
    """Its end makes room on each of its devices, so it is in the floor of each bank."""
    ledger = opened(("r2", "g1"))
    ledger.charge("r1", ("g1", "g2"), 1.0, 0.0)

    table = CandidateTable.of(ledger, {"r1": candidate(0.2), "r2": candidate(0.3)})
    assert list(table.floors()) == [(0.2, "g1", "g1"), (0.2, "g2", "g2")]
    table.put("r1", candidate(0.4))
    assert list(table.floors()) == [(0.3, "g1", "g1"), (0.4, "g2", "g2")]

    table.discard("r1")
    assert list(table.floors()) == [(0.3, "g1", "g1")]
