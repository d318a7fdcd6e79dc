"""Occupancy of devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool_manager.core import events
from pool_manager.core.ledger import Ledger
from pool_manager.core.state import Device, PoolSpec
from pool_manager.ports import Charges, GpuView, GpuViews
from pool_manager.reports import charges, occupancies
from tests.support.play import Play
from tests.unit.pool_manager.core.park.test_parks import RESIDUE, Parked, sleeper

A, B = Device("GPU-a", "cuda", 24_000.0), Device("GPU-b", "cuda", 24_000.0)
CPU = Device("cpu:0", "cpu", 8_000.0, "cpu")
VIEW = GpuView("NVIDIA A", "0", "9.0", "580", 24_000.0, 12.0, 0.0)


def one_gpu(device: Device) -> GpuView | None:
    """GPU-a is seen."""
    return VIEW if device == A else None


def no_gpu(_device: Device) -> GpuView | None:
    """No GPU is seen."""


def test_an_account_tells_a_replica_from_the_others() -> None:
    """Charges separate a replica from the others, including standbys in the bank; a device without
    replicas has none."""
    ledger = Ledger([A, CPU])
    ledger.charge("r1", (A.id,), 0.5, 700.0)
    ledger.charge("r2", (A.id,), 0.25, 300.0)
    ledger.charge_bank("r3", A.id, 80.0)
    ledger.charge("r4", (CPU.id,), 1.0, 50.0)

    assert charges(ledger, A.id, "r1") == Charges(700.0, 2, 380.0)
    assert charges(ledger, A.id, "r9") == Charges(0.0, 3, 1_080.0)
    assert charges(ledger, CPU.id, "r4") == Charges(50.0, 0, 0.0)


def test_a_device_is_free_taken_or_quarantined() -> None:
    """A device is free, taken or quarantined, with its replicas, charges and reason."""
    spec = PoolSpec("default/a@1", device_kind="cuda", memory_mib=700.0)
    play = Play(spec, devices=[A, B, CPU])
    play.demand(a=1)
    gpu = play.replica("r1").first_device
    shown = {one.device.id: one for one in occupancies(play.machine, one_gpu)}

    assert list(shown) == [A.id, B.id, CPU.id]
    assert (shown[gpu].state, shown[gpu].replicas, shown[gpu].charged_mib) == (
        "taken",
        ("r1",),
        700.0,
    )
    assert [one.state for one in shown.values()].count("free") == 2
    assert (shown[A.id].gpu, shown[CPU.id].gpu) == (VIEW, None)

    play.on(events.Lost("r1", "exit 1"))
    play.on(events.NotReleased("r1", "GPU-a still shows pid 7"))
    shown = {one.device.id: one for one in occupancies(play.machine, one_gpu)}
    assert (shown[gpu].state, shown[gpu].reason) == ("quarantined", "r1: GPU-a still shows pid 7")


def test_the_memory_of_kept_replicas_is_that_of_the_slot_they_had() -> None:
    """They are not on it: it is free. All slots together show what the bank has charged."""
    play = Play(PoolSpec("default/a@1"), PoolSpec("default/b@1"), devices=[CPU])
    play.warm(a="r1", b="r2")

    (idle,) = occupancies(play.machine, one_gpu)
    assert (idle.state, idle.replicas, idle.charged_mib) == ("free", (), 160.0)

    play.run(a=1)
    (busy,) = occupancies(play.machine, one_gpu)
    assert (busy.state, busy.replicas, busy.charged_mib) == ("taken", ("r1",), 160.0)


def shows(used_mib: float | None) -> GpuViews:
    """Every device is seen with so much in use, of which 100 MiB are foreign."""
    return lambda _device: replace(VIEW, used_mib=used_mib, foreign_mib=100.0)


@pytest.mark.parametrize(("used_mib", "leaked_mib"), [(None, 700.0), (350.0, 250.0), (90.0, 0.0)])
def test_what_a_gone_replica_has_kept_has_leaked(used_mib: float | None, leaked_mib: float) -> None:
    """Leaked memory is the stuck replica's charge, or what the GPU shows beyond all others; a live
    replica leaks none."""
    spec = PoolSpec("default/a@1", device_kind="cuda", memory_mib=700.0)
    play = Play(spec, devices=[A])
    play.demand(a=1)
    assert occupancies(play.machine, shows(used_mib))[0].leaked_mib == 0.0
    play.on(events.Lost("r1", "exit 1"))
    play.on(events.NotReleased("r1", "GPU-a still shows pid 7"))

    assert occupancies(play.machine, shows(used_mib))[0].leaked_mib == leaked_mib
    play.on(events.Released("r1"))
    assert occupancies(play.machine, shows(used_mib))[0].leaked_mib == 0.0


def test_a_device_with_parked_replicas_alone_is_free() -> None:
    """It shows what they keep; another one holds it beside them. One whose release fails makes it
    quarantined, as any other."""
    there = Parked(sleeper("default/a@1"), sleeper("default/b@1", memory_mib=1_000.0))
    there.warm(a="r1")
    there.park("r1")

    gpu = occupancies(there.play.machine, no_gpu)[0]
    assert (gpu.state, gpu.replicas, gpu.parked) == ("free", (), ("r1",))
    assert (gpu.charged_mib, gpu.residue_mib) == (RESIDUE, RESIDUE)

    there.play.demand(b=1)
    gpu = occupancies(there.play.machine, no_gpu)[0]
    assert (gpu.state, gpu.replicas, gpu.parked) == ("taken", ("r2",), ("r1",))
    assert (gpu.charged_mib, gpu.residue_mib) == (RESIDUE + 1_000.0, RESIDUE)

    there.play.on(events.Lost("r1", "exit 1"))
    there.play.on(events.NotReleased("r1", "g0 still shows pid 7"))
    gpu = occupancies(there.play.machine, no_gpu)[0]
    assert (gpu.state, gpu.leaked_mib) == ("quarantined", RESIDUE)


def test_a_refused_device_is_taken() -> None:
    """Others have it, in the words of the engine of its host; a replica may be there, too."""
    play = Play(PoolSpec("default/a@1", device_kind="cuda"), devices=[A])
    play.demand(a=1)
    play.on(events.Lost("r1", "2 Insufficient gpu", is_its_fault=False, refused_s=30.0))
    play.on(events.Released("r1"))

    (shown,) = occupancies(play.machine, one_gpu)
    assert (shown.state, shown.reason) == ("taken", "refused: 2 Insufficient gpu")
    play.tick(30.0)
    play.demand(a=1)
    (shown,) = occupancies(play.machine, one_gpu)
    assert (shown.state, shown.reason) == ("taken", "")
