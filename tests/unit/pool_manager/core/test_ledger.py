"""Charges and reservations of devices and memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core.ledger import RESERVE_MIB, Charge, Ledger, Need, Reservation
from pool_manager.core.state import Cordon, Device

CPUS = [Device("d0", "cpu", 1_000, "ram"), Device("d1", "cpu", 1_000, "ram")]
GPU = Device("gpu", "cuda", 10_000)
FREE_MIB = 1_000 - RESERVE_MIB


def need(memory_mib: float = 0.0, share: float = 1.0, pool: str = "a", kind: str = "any") -> Need:
    return Need(pool, kind, share, memory_mib)


def test_what_is_charged_is_on_its_device_and_in_its_bank() -> None:
    """A replica takes a share of its device and memory of its bank, which several devices may
    share."""
    ledger = Ledger([*CPUS, GPU])

    ledger.charge("r1", ("d0",), 0.5, 300.0)

    assert ledger.charge_of("r1") == Charge(("d0",), ("ram",), 0.5, 300.0)
    assert ledger.on("d0") == ["r1"]
    assert ledger.in_bank("ram") == ["r1"]
    assert (ledger.on("d1"), ledger.in_bank("gpu")) == ([], [])
    assert ledger.empty() == ["d1", "gpu"]


def test_what_is_released_is_free() -> None:
    """A released replica holds nothing; releasing it twice has no effect."""
    ledger = Ledger(CPUS)
    ledger.charge("r1", ("d0",), 1.0, 0.1)
    ledger.charge("r2", ("d1",), 1.0, 0.2)

    for id in ("r1", "r2", "r2"):
        ledger.release(id)

    assert ledger.empty() == ["d0", "d1"]
    assert ledger.free_mib("ram", "a") == FREE_MIB


def test_the_device_free_for_longest_comes_first() -> None:
    """Devices are used in rotation, so that one on which starts fail is not tried again and
    again."""
    ledger = Ledger(CPUS)
    ledger.charge("r1", ("d0",), 1.0, 0.0)
    ledger.release("r1")

    assert ledger.empty() == ["d1", "d0"]


def test_a_second_charge_replaces_the_first() -> None:
    """A second charge of the same replica replaces the first."""
    ledger = Ledger([*CPUS, GPU])
    ledger.charge_bank("r1", "ram", 80.0)
    assert ledger.charge_of("r1") == Charge((), ("ram",), 0.0, 80.0)

    ledger.charge("r1", ("d1",), 1.0, 300.0)
    assert ledger.free_mib("ram", "a") == FREE_MIB - 300
    ledger.charge_bank("r1", "gpu", 80.0)
    assert ledger.free_mib("ram", "a") == FREE_MIB


def test_what_was_measured_is_charged() -> None:
    """A larger measurement leaves less for others, possibly less than nothing."""
    ledger = Ledger(CPUS)
    ledger.charge("r1", ("d0",), 0.5, 100.0)

    ledger.recharge("r1", 900.0)

    assert ledger.charge_of("r1") == Charge(("d0",), ("ram",), 0.5, 900.0)
    assert ledger.free_mib("ram", "a") == FREE_MIB - 900
    assert not ledger.fits_memory("d1", need(0.0))
    assert ledger.fits_memory("d1", replace(need(0.0), has_memory=True)), "only a slot is taken"


def test_a_device_that_is_no_more_is_charged_to_nobody() -> None:
    """A replica on an unknown device is charged to no device."""
    ledger = Ledger(CPUS)

    ledger.charge("old", ("gone",), 1.0, 100.0)

    assert ledger.charge_of("old") == Charge(("gone",), ("",), 1.0, 100.0)
    assert ledger.empty() == ["d0", "d1"]
    ledger.release("old")
    assert ledger.in_bank("") == []


@pytest.mark.parametrize(
    ("shares", "share", "expected"),
    [
        ([], 1.0, True),
        ([0.5], 0.5, True),
        ([0.4, 0.4], 0.2, True),
        ([0.1] * 9, 0.1, True),
        ([0.5], 0.6, False),
        ([1.0], 0.1, False),
        ([0.1], 1.0, False),
    ],
)
def test_shares_add_up_to_one_device(shares: list[float], share: float, expected: bool) -> None:
    """Replicas share a device while their shares fit; a whole-device replica shares it with
    none."""
    ledger = Ledger([GPU])
    for number, other in enumerate(shares):
        ledger.charge(f"r{number}", ("gpu",), other, 0.0)

    assert ledger.fits_share("gpu", need(share=share)) == expected


def test_who_leaves_leaves_its_share_and_memory() -> None:
    """A device is judged without the share and memory of replicas that leave; unknown ids are
    ignored."""
    ledger = Ledger(CPUS)
    ledger.charge("r1", ("d0",), 1.0, 700.0)

    assert not ledger.fits("d0", need(700.0))
    assert ledger.fits("d0", need(700.0), ["r1", "r9"])
    assert not ledger.fits("d0", need(FREE_MIB + 1), ["r1"])


def test_memory_is_that_of_the_bank_less_a_reserve() -> None:
    """Slots of one bank share its memory, and some of it is kept free."""
    ledger = Ledger(CPUS)
    ledger.charge("r1", ("d0",), 1.0, 300.0)

    assert ledger.fits_memory("d1", need(FREE_MIB - 300))
    assert not ledger.fits_memory("d1", need(FREE_MIB - 299))


def test_memory_of_unknown_size_is_not_accounted() -> None:
    """With an unknown memory size, any amount of memory fits."""
    ledger = Ledger([Device("d0", "cpu")])

    assert ledger.fits_memory("d0", need(1e9))
    assert ledger.free_mib("nowhere", "a") == float("inf")


def test_the_kind_must_be_right() -> None:
    """A need for a kind is met by that kind only, one for any kind by all."""
    ledger = Ledger([*CPUS, GPU])

    assert [ledger.fits_kind("gpu", need(kind=kind)) for kind in ("any", "cuda", "cpu")] == [
        True,
        True,
        False,
    ]


def test_a_claimed_device_is_for_one_pool() -> None:
    """A reserved device is refused to other pools, whatever room it has, until the reservation
    ends."""
    ledger = Ledger([GPU])
    reservation = Reservation(need(pool="a"), ("gpu",), (), 0.0)

    ledger.reserve(reservation)
    assert ledger.reservations == {"gpu": reservation}
    assert ledger.fits("gpu", need(pool="a"))
    assert not ledger.fits("gpu", need(pool="b"))

    ledger.unreserve(reservation)
    assert ledger.reservations == {}
    assert ledger.fits("gpu", need(pool="b"))


def test_a_claim_keeps_the_memory_its_victims_leave() -> None:
    """Memory freed by one victim stays reserved while the reservation waits for the second."""
    ledger = Ledger(CPUS)
    ledger.charge("v1", ("d0",), 1.0, 300.0)
    ledger.charge("v2", ("d1",), 1.0, 300.0)
    reservation = Reservation(need(500.0, pool="a"), ("d0",), ("v1", "v2"), 0.0)
    ledger.reserve(reservation)
    assert ledger.free_mib("ram", "b") == FREE_MIB - 600

    ledger.release("v1")

    assert ledger.free_mib("ram", "b") == FREE_MIB - 500
    assert ledger.free_mib("ram", "a") == FREE_MIB - 300
    ledger.unreserve(reservation)
    assert ledger.free_mib("ram", "b") == FREE_MIB - 300


def test_a_claim_for_no_device_keeps_nothing() -> None:
    """A reservation without a device (only `max` in the way) reserves nothing in the ledger."""
    ledger = Ledger(CPUS)
    reservation = Reservation(need(500.0), (), ("v1",), 0.0)

    ledger.reserve(reservation)
    assert ledger.reservations == {}
    assert ledger.free_mib("ram", "b") == FREE_MIB
    ledger.unreserve(reservation)


def test_a_fleet_is_counted_by_kind() -> None:
    """A fleet counts the devices of a kind; its largest memory is infinite if one device is not
    accounted."""
    ledger = Ledger(
        [Device("g0", "cuda", 80.0), Device("g1", "cuda", 40.0), Device("c0", "cpu", 0.0)]
    )

    assert ledger.fleet(need(kind="cuda")) == (2, 80.0, 2)
    assert ledger.fleet(need(kind="any")) == (3, float("inf"), 3)
    assert ledger.fleet(need(kind="tpu")) == (0, float("inf"), 0)
    assert ledger.fleet(need(kind="cuda")) is ledger.fleet(need(kind="cuda"))


def test_a_cordoned_device_is_none() -> None:
    """Nothing fits on a cordoned device and the fleet does not count it, until it is uncordoned."""
    ledger = Ledger([GPU, Device("small", "cuda", 1_000), *CPUS])
    assert ledger.fleet(need(kind="cuda")).largest_mib == 10_000

    ledger.cordon("gpu", Cordon("XID 79", is_gone=True))

    assert not ledger.fits("gpu", need())
    assert ledger.fleet(need(kind="cuda")) == (1, 1_000, 1)
    assert (
        list(ledger.cordoned(need(kind="cuda")))
        == list(ledger.cordoned(need(kind="any")))
        == ["gpu"]
    )
    assert ledger.cordoned(need(kind="cpu")) == {}
    ledger.uncordon("gpu")
    ledger.uncordon("gpu")
    assert ledger.fits("gpu", need())
    assert ledger.fleet(need(kind="cuda")) == (2, 10_000, 2)


def test_what_is_left_of_a_device() -> None:
    """A need that takes the rest of a device fits as long as any share is left."""
    ledger = Ledger([GPU])
    rest = Need("a", takes_rest=True)
    ledger.charge("r1", ("gpu",), 0.7, 0.0)
    assert ledger.free_share("gpu") == pytest.approx(0.3)
    assert ledger.fits_share("gpu", rest)

    ledger.charge("r2", ("gpu",), 0.3, 0.0)

    assert not ledger.fits_share("gpu", rest)
    assert ledger.fits_share("gpu", rest, ["r2"])


def test_nothing_is_placed_on_a_closed_host() -> None:
    """The devices of a closed host have no room and are not counted until it is opened again."""
    there = Device("gpu2/d0", "cpu", host="gpu2")
    ledger = Ledger([*CPUS, there])

    ledger.close_host("gpu2", "no answer")

    assert ledger.closed == {"gpu2": "no answer"}
    assert not ledger.fits("gpu2/d0", need())
    assert ledger.fits("d0", need())
    assert ledger.fleet(need(kind="any")).devices == 2

    ledger.open_host("gpu2")

    assert ledger.closed == {}
    assert ledger.fits("gpu2/d0", need())
    assert ledger.fleet(need(kind="any")).devices == 3


def test_devices_are_added_and_removed() -> None:
    """Charges on a device that is added later are charged to its bank; those on a removed one stay
    until they are released."""
    there = Device("gpu2/d0", "cpu", 1_000, "gpu2/ram", "gpu2")
    ledger = Ledger(CPUS)
    ledger.charge("r1", ("gpu2/d0",), 1.0, 100.0)
    ledger.charge("r2", ("d0",), 1.0, 100.0)

    ledger.add_devices([there])

    assert ledger.charge_of("r1").banks == ("gpu2/ram",)
    assert ledger.on("gpu2/d0") == ["r1"]
    assert ledger.empty() == ["d1"]
    assert ledger.free_mib("gpu2/ram", "a") == FREE_MIB - 100.0

    ledger.cordon("gpu2/d0", Cordon("XID 79", True))
    ledger.remove_devices(["gpu2/d0"])

    assert (list(ledger.devices), ledger.cordons) == (["d0", "d1"], {})
    assert ledger.in_bank("gpu2/ram") == ["r1"]
    assert ledger.free_mib("gpu2/ram", "a") == float("inf")

    ledger.add_devices([there])

    assert ledger.on("gpu2/d0") == ["r1"]
    ledger.release("r1")
    assert ledger.empty() == ["d1", "gpu2/d0"]


def test_a_device_gets_other_settings() -> None:
    """A known device that is added again takes its new size; its replicas stay."""
    ledger = Ledger([GPU])
    ledger.charge("r1", ("gpu",), 0.5, 100.0)

    ledger.add_devices([Device("gpu", "cuda", 5_000)])

    assert ledger.on("gpu") == ["r1"]
    assert ledger.free_mib("gpu", "a") == 5_000 - RESERVE_MIB - 100.0


GPUS = [Device(id, "cuda", 10_000) for id in ("g1", "g2", "g3")]


def test_a_replica_on_several_devices_has_the_same_of_each() -> None:
    """Its share and its memory are charged on each device and in each bank, and given back there;
    a measured value replaces the memory of all."""
    ledger = Ledger(GPUS)

    ledger.charge("r1", ("g1", "g3"), 1.0, 3_000.0)
    ledger.recharge("r1", 4_000.0)

    assert ledger.charge_of("r1") == Charge(("g1", "g3"), ("g1", "g3"), 1.0, 4_000.0)
    assert (ledger.on("g1"), ledger.on("g2"), ledger.on("g3")) == (["r1"], [], ["r1"])
    assert [ledger.free_share(one.id) for one in GPUS] == [0.0, 1.0, 0.0]
    left = [10_000 - RESERVE_MIB - used for used in (4_000, 0, 4_000)]
    assert [ledger.free_mib(one.id, "b") for one in GPUS] == left
    ledger.release("r1")
    assert ledger.empty() == ["g2", "g1", "g3"]
    assert {ledger.free_mib(one.id, "b") for one in GPUS} == {10_000 - RESERVE_MIB}


def test_devices_of_one_bank_are_charged_the_memory_of_each() -> None:
    """The memory of a charge is that for each of its devices."""
    ledger = Ledger(CPUS)

    ledger.charge("r1", ("d0", "d1"), 1.0, 100.0)

    assert ledger.in_bank("ram") == ["r1"]
    assert ledger.free_mib("ram", "b") == FREE_MIB - 200
    assert ledger.free_mib("ram", "b", ["r1"]) == FREE_MIB
    ledger.release("r1")
    assert ledger.free_mib("ram", "b") == FREE_MIB


def test_a_charge_follows_the_devices_that_become_known() -> None:
    """An adopted replica is charged to the bank of each of its devices once that is known."""
    ledger = Ledger([GPUS[0]])
    ledger.charge("r1", ("g1", "g2"), 1.0, 100.0)
    ledger.charge_bank("s1", "g1", 80.0)
    assert ledger.charge_of("r1").banks == ("g1", "")

    ledger.add_devices([GPUS[1]])

    assert ledger.charge_of("r1").banks == ("g1", "g2")
    assert (ledger.on("g2"), ledger.charge_of("s1").banks) == (["r1"], ("g1",))


def test_a_claim_of_several_devices_keeps_all_of_them() -> None:
    """Each of its devices is refused to other pools, with the memory that the victims free there;
    a host has the reservation once."""
    ledger = Ledger(GPUS)
    ledger.charge("v1", ("g1", "g2"), 1.0, 4_000.0)
    reservation = Reservation(need(6_000.0, pool="a"), ("g1", "g2"), ("v1",), 0.0)

    ledger.reserve(reservation)

    assert ledger.reservations == {"g1": reservation, "g2": reservation}
    assert ledger.reserved_on("local") == [reservation]
    free = [10_000 - RESERVE_MIB - used for used in (6_000, 6_000, 0)]
    assert [ledger.free_mib(one.id, "b") for one in GPUS] == free
    ledger.unreserve(reservation)
    assert (ledger.reservations, ledger.take_given_up()) == ({}, False)
    ledger.reserve(reservation)
    ledger.take_given_up()
    ledger.unreserve(reservation)
    assert ledger.take_given_up()
