"""Checks of one replica on two GPUs."""

from __future__ import annotations

import os
import signal

from tests.gpu import bundles
from tests.gpu.box import Box
from tests.gpu.checks import SLACK_MIB
from tests.gpu.outcome import Check

CARDS = 2


def memory_and_copies(box: Box) -> str:
    """A server on two GPUs sees them in the order of their PCI addresses, has memory on each, and
    copies between them."""
    before = box.machine.used_by_gpu(CARDS)
    name = box.deploy(bundles.cards(box.folder, "cards", CARDS))
    answer = box.call(name).outputs
    wanted = sorted(_address(gpu.pci_bus or "") for gpu in box.machine.gpus[:CARDS])
    assert [_address(bus) for bus in answer["buses"]] == wanted, (answer["buses"], wanted)
    assert answer["order"] == "PCI_BUS_ID", answer["order"]
    wrong = [one for one in answer["copies"] if not one["is_right"]]
    assert not wrong, wrong
    after = box.machine.used_by_gpu(CARDS)
    grown = [now - was for now, was in zip(after, before, strict=True)]
    assert all(mib >= 2 * bundles.CARD_MIB for mib in grown), grown
    peers = sum(one["is_peer"] for one in answer["copies"])
    speeds = ", ".join(f"{one['gb_s']:.0f}" for one in answer["copies"])
    return (
        f"{' and '.join(f'{mib:.0f}' for mib in grown)} MiB; copies at {speeds} GB/s,"
        f" {peers} of {len(answer['copies'])} with peer access"
    )


def memory_back(box: Box) -> str:
    """Both GPUs are free after the function went to zero, and after kill -9 of its sidecar."""
    name = box.deploy(bundles.cards(box.folder, "cards", CARDS))
    box.send_to_zero(name)
    idle = box.machine.used_by_gpu(CARDS)
    waited = []
    for is_killed in (False, True):
        box.call(name)
        if is_killed:
            os.kill(box.pid(name), signal.SIGKILL)
        else:
            box.send_to_zero(name)

        def is_back() -> bool:
            used = box.machine.used_by_gpu(CARDS)
            return all(now <= was + SLACK_MIB for now, was in zip(used, idle, strict=True))

        waited.append(box.until(is_back, "both GPUs have their memory back"))
    box.call(name)
    return f"back {waited[0]:.1f} s after the stop, {waited[1]:.1f} s after kill -9"


def all_reduce(box: Box) -> str:
    """PyTorch adds up over NCCL in a server on two GPUs."""
    box.machine.need_nccl()
    name = box.deploy(bundles.nccl(box.folder, "nccl", CARDS, box.machine.python))
    ranks = box.call(name).outputs["ranks"]
    assert [one["total"] for one in ranks] == [sum(range(1, CARDS + 1))] * CARDS, ranks
    return f"NCCL {box.machine.libraries['nccl']}: {ranks[0]['gb_s']:.0f} GB/s of 256 MiB"


def _address(bus: str) -> str:
    """Return a PCI address as CUDA writes it: NVML's domain has eight digits, CUDA's four."""
    domain, _, rest = bus.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


CHECKS = (
    Check("two-cards", "A server on two GPUs has both", memory_and_copies, cards=CARDS),
    Check("two-cards-back", "Two GPUs are free after their server", memory_back, cards=CARDS),
    Check("two-cards-nccl", "PyTorch uses NCCL on two GPUs", all_reduce, cards=CARDS),
)
