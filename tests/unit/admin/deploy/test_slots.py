"""Which changes leave no GPU, or no memory, for other functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from admin.deploy.slots import slot_warnings
from pool_manager.host import HostView
from registry.catalog import Deployed
from registry.model.functions import Scaling
from registry.model.revisions import DeviceNeed
from tests.support import nouns

BOX = [HostView("local", cpu_slots=2, memory_mib=1_000 + 256)]
FREES = "fnctl scale NAME --min 0 frees what it keeps"
MORE = f"{FREES}, FN_HOST_MEMORY_MIB sets the memory for all replicas on CPUs"


def one(
    name: str, least: int = 0, kind: Any = "any", share: float = 1.0, mib: float = 0.0
) -> Deployed:
    """Return a function that keeps replicas on devices of a kind, each with `mib` of memory."""
    return Deployed(
        nouns.function(name, scaling=Scaling(min=least, max=8)),
        nouns.revision(name, device=DeviceNeed(kind, share=share)),
        replace(nouns.profile(), memory_mib=mib) if mib else None,
    )


@pytest.mark.parametrize(
    ("functions", "text"),
    [
        ([one(f"f{n}", 1) for n in range(30)], ""),
        ([one("a", 1, mib=400.0), one("b", 1, mib=600.0)], ""),
        (
            [one("a", mib=100.0), one("b", 1, mib=901.0)],
            "min keeps 901 of 1000 MiB for replicas on CPUs (b): no room for a, which needs 100;"
            f" {MORE}",
        ),
        (
            [one("a", 2, mib=400.0), one("b", 1, "cpu", mib=300.0)],
            "min asks for 1100 of 1000 MiB for replicas on CPUs (a, b): not all are kept, and no"
            f" other function can start; {MORE}",
        ),
    ],
)
def test_full_memory_is_told_with_who_keeps_it(functions: list[Deployed], text: str) -> None:
    """CPU slots are given in turns: only memory is kept. Also a function without a `min` is told,
    which cannot start then."""
    assert slot_warnings(functions[0], functions, BOX) == ([text] if text else [])


def test_kinds_of_devices_are_told_apart() -> None:
    """GPUs of all hosts count. What may run on both kinds finds room as long as one has some."""
    hosts = [HostView("local", cpu_slots=1, gpus=1), HostView("far", gpus=1)]
    kept = [one("a", 1, "cuda"), one("b", 2, "cuda", 0.5)]
    free, cpu = one("c"), one("d", 0, "cpu")

    assert slot_warnings(kept[0], kept, hosts) == [
        f"min keeps all of 2 GPUs (a, b): no other function can start; {FREES}"
    ]
    assert slot_warnings(kept[0], [*kept, one("e", 1, "cuda")], hosts[:1]) == [
        "min asks for 3 of 1 GPU (a, b, e): not all are kept, and no other function can start;"
        f" {FREES}"
    ]
    assert slot_warnings(kept[0], kept[:1], hosts) == []
    assert slot_warnings(free, [*kept, free, cpu], hosts) == []
    assert slot_warnings(cpu, [*kept, free, cpu], hosts) == []
    assert slot_warnings(kept[0], kept, []) == []


def wide(name: str, count: int, least: int = 0) -> Deployed:
    """Return a function whose replicas have so many GPUs."""
    found = one(name, least, "cuda")
    device = DeviceNeed("cuda", count=count)
    return replace(found, revision=replace(found.revision, device=device))


@pytest.mark.parametrize(
    ("functions", "text"),
    [
        ([wide("a", 4, 2)], f"min keeps all of 8 GPUs (a): no other function can start; {FREES}"),
        ([wide("a", 4, 1), wide("b", 4)], ""),
        (
            [wide("a", 4, 1), one("b", 1, "cuda"), wide("c", 4)],
            f"min keeps 5 of 8 GPUs (a, b): no room for c, which needs 4; {FREES}",
        ),
        (
            [wide("a", 2, 1), wide("b", 8, 0)],
            f"min keeps 2 of 8 GPUs (a): no room for b, which needs 8; {FREES}",
        ),
        ([wide("a", 8)], ""),
        (
            [wide("a", 8, 1), one("b", 1, "cuda")],
            "min asks for 9 of 8 GPUs (a, b): not all are kept, and no other function can start;"
            f" {FREES}",
        ),
    ],
)
def test_each_of_several_gpus_is_kept(functions: list[Deployed], text: str) -> None:
    """A replica keeps all of its GPUs, and one that needs several is told what is in its way."""
    hosts = [HostView("local", gpus=8)]
    assert slot_warnings(functions[0], functions, hosts) == ([text] if text else [])


def test_many_names_are_cut() -> None:
    """A warning stays a line."""
    many = [one(f"f{number}", 1, mib=200.0) for number in range(10)]

    [text] = slot_warnings(many[0], many, BOX)

    assert "(f0, f1, f2, f3, f4, f5, f6, f7 and 2 more)" in text
