"""Which changes leave no device for other functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from admin.deploy.slots import slot_warnings
from pool_manager.hosts.view import HostView
from registry.catalog import Deployed
from registry.model.functions import Scaling
from registry.model.revisions import DeviceNeed
from tests.support import nouns

TWO = [HostView("local", cpu_slots=2)]
FREES = "fnctl scale NAME --min 0 frees what it keeps"
SLOTS = f"{FREES}, FN_CPU_SLOTS sets the number of CPU slots"


def one(name: str, least: int = 0, kind: Any = "any", share: float = 1.0) -> Deployed:
    """Return a function that keeps replicas on devices of a kind."""
    return Deployed(
        nouns.function(name, scaling=Scaling(min=least, max=8)),
        nouns.revision(name, device=DeviceNeed(kind, share=share)),
    )


@pytest.mark.parametrize(
    ("functions", "text"),
    [
        ([one("a", 1), one("b")], ""),
        (
            [one("a", 1), one("b", 1, "cpu")],
            f"min keeps all of 2 CPU slots (a, b): no other function can start; {SLOTS}",
        ),
        (
            [one("a", 1), one("b", 1), one("c", 1)],
            "min asks for 3 of 2 CPU slots (a, b, c): not all are kept, and no other function can"
            f" start; {SLOTS}",
        ),
        (
            [one("a"), one("b", 2)],
            f"min keeps all of 2 CPU slots (b): no other function can start; {SLOTS}",
        ),
    ],
)
def test_full_slots_are_told_with_who_keeps_them(functions: list[Deployed], text: str) -> None:
    """Also to a function without a `min`, which cannot start then."""
    assert slot_warnings(functions[0], functions, TWO) == ([text] if text else [])


def test_kinds_of_devices_are_told_apart() -> None:
    """Slots of all hosts count. What may run on both kinds is in the way where both are full."""
    hosts = [HostView("local", cpu_slots=1, gpus=1), HostView("far", gpus=1)]
    gpus = [one("a", 1, "cuda"), one("b", 2, "cuda", 0.5)]
    free, cpu = one("c"), one("d", 0, "cpu")

    assert slot_warnings(gpus[0], gpus, hosts) == [
        f"min keeps all of 2 GPUs (a, b): no other function can start; {FREES}"
    ]
    assert slot_warnings(free, [*gpus, free, cpu], hosts) == []
    assert slot_warnings(cpu, [*gpus, free, cpu], hosts) == []
    [text] = slot_warnings(free, [*gpus, replace(free, function=one("c", 1).function)], hosts)
    assert text.startswith("min keeps all of 1 CPU slot and 2 GPUs (a, b, c): no other")
    assert slot_warnings(gpus[0], gpus, []) == []


def test_many_names_are_cut() -> None:
    """A warning stays a line."""
    many = [one(f"f{number}", 1) for number in range(10)]

    [text] = slot_warnings(many[0], many, TWO)

    assert "(f0, f1, f2, f3, f4, f5, f6, f7 and 2 more)" in text
