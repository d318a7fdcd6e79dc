"""Property test of the ledger's indexes: hosts that come, change and go leave them as a ledger that
learns of all devices at once has them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pool_manager.core.ledger import Ledger
from pool_manager.core.state import Device
from tests.support.doses import amount

HOSTS = ["local", "a", "b", "c/n1", "c/n2"]


def devices_of(host: str, gpus: int, slots: int, mib: float) -> list[Device]:
    """Return devices of a host; its CPU slots share a bank."""
    prefix = "" if host == "local" else f"{host}/"
    bank = f"{prefix}cpu"
    return [
        *(Device(f"{prefix}GPU-{n}", "cuda", mib + n, host=host) for n in range(gpus)),
        *(Device(f"{prefix}cpu:{n}", "cpu", mib, bank, host=host) for n in range(slots)),
    ]


def indexes(ledger: Ledger) -> dict[str, Any]:
    """Return what placement reads of devices, with numbers as ranks."""
    return {
        "groups": {
            key: (list(group.devices), list(group.empty)) for key, group in ledger._groups.items()
        },
        "with_empty": set(ledger._with_empty),
        "banks": ledger._banks,
        "sizes": ledger._sizes,
        "one": ledger.has_one_host,
        "numbers": all(
            sorted(group.devices.values()) == list(group.devices.values())
            and sorted(group.empty.values()) == list(group.empty.values())
            for group in ledger._groups.values()
        ),
    }


steps = st.lists(
    st.tuples(
        st.sampled_from(HOSTS),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from([0.0, 100.0, 5000.0]),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=amount(150, 3000), deadline=None)
@given(steps, st.sets(st.integers(0, 30), max_size=8))
def test_indexes_are_those_of_all_devices(
    changes: list[tuple[str, int, int, float, bool]], charged: set[int]
) -> None:
    """Each step gives a host other devices and another memory; some replicas stay where they
    are."""
    ledger, memory = Ledger([]), dict[str, float]()
    for number, (host, gpus, slots, mib, has_memory) in enumerate(changes):
        wanted = {one.id: one for one in devices_of(host, gpus, slots, mib)}
        ledger.add_devices(wanted.values())
        there = [id for id, one in ledger.devices.items() if one.host == host]
        ledger.remove_devices([id for id in there if id not in wanted])
        memory[host] = mib if has_memory else 0.0
        ledger.set_host_memory(host, memory[host])
        if number in charged and wanted:
            ledger.charge(f"r{number}", (min(wanted),), 1.0, 10.0)
    plain = Ledger([])
    for id, charge in ledger._charges.items():
        plain.charge(id, charge.devices, charge.share, charge.memory_mib)
    for host, mib in memory.items():
        plain.set_host_memory(host, mib)
    plain.add_devices(ledger.devices.values())

    found, expected = indexes(ledger), indexes(plain)

    def unordered(index: dict[str, Any]) -> dict[str, Any]:
        # Which device is empty for how long is a matter of the steps.
        groups = {key: (all, set(empty)) for key, (all, empty) in index["groups"].items()}
        return {**index, "groups": groups}

    assert unordered(found) == unordered(expected)
    assert found["numbers"]
