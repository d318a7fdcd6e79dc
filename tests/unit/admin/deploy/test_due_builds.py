"""Tests of the decision which model is compiled next, and of the states of builds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from admin.deploy import due_builds
from admin.deploy.due_builds import ATTEMPTS_MAX, WantedBuild, device_types, next_build, shared
from pool_manager.builds import Built, Fetched
from pool_manager.core.state import Device
from registry.builds import TYPES_MAX, Build, DeviceType, Target
from registry.catalog import Deployed
from runtime_image.contract.compiled import (
    BuildDescribed,
    CompiledModel,
    OutputParity,
    ShapeRange,
)
from tests.support.nouns import function, revision

ROWS = ShapeRange("x", (1, 4), (8, 4), (8, 4))
TARGET = Target("b", "m.onnx", "", "cpu", "onnxruntime", (ROWS,), keeps_ordinary=True)


def wanted(name: str, kind: str = "cpu") -> WantedBuild:
    deployed = Deployed(function(name), revision(name))
    return WantedBuild(deployed, replace(TARGET, bundle=name, device_kind=kind, device=HERE), name)


HERE = DeviceType("local", "")
A, B, GPU = wanted("a"), wanted("b"), wanted("g", "cuda")


def chosen(builds: dict[str, Build], *, free: str = "cpu", now_s: float = 100.0) -> str:
    found = next_build([A, B, GPU], builds, {"done"}, {(free, HERE)}, now_s)
    return found.digest if found else ""


def test_a_free_device_is_used() -> None:
    """Whatever is not compiled yet is compiled, by name, on a device of its kind."""
    assert chosen({}) == "a"
    assert chosen({}, free="cuda") == "g"
    assert chosen({}, free="none") == ""
    assert next_build([A], {}, {"a"}, {("cpu", HERE)}, 0.0) is None
    assert next_build([A], {}, set(), {("cpu", DeviceType("far", ""))}, 0.0) is None


def test_the_types_of_devices() -> None:
    """Those of the kind, this machine's first, up to a limit; a GPU must have been read."""
    there = [
        Device("far/g", "cuda", host="far", model="H100"),
        Device("far/h", "cuda", host="far"),
        Device("g1", "cuda", model="L4"),
        Device("g2", "cuda", model="L4"),
        Device("cpu:0", "cpu"),
    ]

    assert device_types(there, "cpu") == [HERE]
    assert device_types(there, "cuda") == [DeviceType("local", "L4"), DeviceType("far", "H100")]
    many = [Device(f"g{n}", "cuda", model=f"{n}") for n in range(99)]
    assert len(device_types(many, "cuda")) == TYPES_MAX


def test_equal_devices_share_a_result() -> None:
    """The newest one of the same model that no replica of this type has refused."""
    build, far = Build(), replace(TARGET, device=DeviceType("far", ""))
    other = replace(TARGET, device=DeviceType("local", "L4"))
    made = [
        replace(due_builds.result(one, result(key), 1.0), made_s=made_s)
        for one, key, made_s in ((TARGET, "k1", 1.0), (TARGET, "k2", 2.0), (other, "k3", 3.0))
    ]

    assert shared(far, build, made) == replace(made[1], target=far)
    assert shared(far, replace(build, stale_keys=("k2",)), made) == replace(made[0], target=far)
    assert shared(far, replace(build, stale_keys=("k1", "k2")), made) is None
    for state in ("building", "failed"):
        assert shared(far, replace(build, state=state), made) is None
    assert shared(replace(far, device=DeviceType("far", "H100")), build, made) is None


def test_the_least_tried_goes_first() -> None:
    """A build that was given up does not keep others from their first attempt."""
    assert chosen({"a": Build(attempts=1)}) == "b"
    assert chosen({"a": Build(attempts=1), "b": Build(attempts=2)}) == "a"


@pytest.mark.parametrize(
    "state", [Build("given_up", 3), Build("failed"), Build(not_before_s=101.0)]
)
def test_some_wait(state: Build) -> None:
    """Given up for good, failed, and in the pause after an attempt."""
    assert chosen({"a": state, "b": state}) == ""
    assert chosen({"a": state}) == "b"


def test_lost_files_are_built_again() -> None:
    """A build that is done without a compiled model is due."""
    assert chosen({"a": Build("done")}) == "a"


def test_an_operator_goes_first_and_waits() -> None:
    """An urgent build goes before all others and does not need a free device to be chosen."""
    assert chosen({"b": Build(attempts=2, is_urgent=True)}) == "b"
    assert chosen({"b": Build(is_urgent=True)}, free="none") == "b"


def test_three_attempts() -> None:
    """The third build that is given up is the last one until a request."""
    build = Build()
    for number in range(1, ATTEMPTS_MAX + 1):
        assert build.state == "waiting"
        build = due_builds.begun(build, 100.0)
        assert (build.state, build.attempts, build.began_s) == ("building", number, 100.0)
        build = due_builds.given_up(build, "letters waits for the device", 104.0)

    assert (build.state, build.reason) == ("given_up", "letters waits for the device")
    again = due_builds.requested(build, is_urgent=True)
    assert (again.state, again.attempts, again.not_before_s) == ("waiting", 0, 0.0)
    assert again.is_urgent


@pytest.mark.parametrize(("lost_s", "pause_s"), [(0.1, 1.0), (30.0, 60.0), (9999.0, 600.0)])
def test_the_pause_grows_with_the_loss(lost_s: float, pause_s: float) -> None:
    """The longer an attempt ran, the longer is the pause, within limits."""
    build = due_builds.begun(Build(), 100.0)

    assert due_builds.given_up(build, "", 100.0 + lost_s).not_before_s == 100.0 + lost_s + pause_s


def test_a_killed_server_has_tried() -> None:
    """A crash counts as an attempt, an orderly end does not; other states stay as they are."""
    running = due_builds.begun(Build(attempts=1), 100.0)

    resumed = due_builds.resumed(running, 200.0)
    assert (resumed.state, resumed.attempts) == ("waiting", 2)
    assert resumed.reason == due_builds.KILLED
    assert due_builds.resumed(replace(running, attempts=3), 200.0).state == "given_up"
    stopped = due_builds.interrupted(running)
    assert (stopped.state, stopped.attempts) == ("waiting", 1)
    for other in (Build(), Build("done"), Build("failed"), Build("given_up")):
        assert due_builds.resumed(other, 200.0) == due_builds.interrupted(other) == other


def test_a_request_keeps_a_running_build() -> None:
    """A request while a model is compiled refers to that build."""
    running = due_builds.begun(Build(attempts=1), 100.0)

    assert due_builds.requested(running, is_urgent=True) == replace(running, is_urgent=True)


def test_a_request_ends_with_its_build() -> None:
    """An urgent build that failed, is done, or was given up for good is not urgent any more."""
    running = due_builds.begun(Build(is_urgent=True, attempts=2), 100.0)

    assert not due_builds.failed(running, "why", 101.0).is_urgent
    assert not due_builds.done(running, 101.0).is_urgent
    assert not due_builds.given_up(running, "why", 101.0).is_urgent
    assert due_builds.given_up(replace(running, attempts=1), "why", 101.0).is_urgent


def result(key: str = "k2", differs: float = 0.0, **changes: Any) -> Built:
    model = CompiledModel(key, "onnxruntime", "context", (), (ROWS,), keeps_ordinary=True)
    parity = OutputParity(
        output="y", largest_difference=differs, relative_difference=differs, cosine=1.0
    )
    described = BuildDescribed(why_not="", parity=[parity])
    return Built(Fetched(described, replace(model, **changes), ()), "cpu0")


@pytest.mark.parametrize(
    ("built", "why"),
    [
        (result(), ""),
        (result(ranges=()), "for the ranges that were ordered"),
        (result(compiler="tensorrt"), "compiled by onnxruntime"),
        (result(keeps_ordinary=False), "outside its ranges"),
        (result(differs=0.02), "output y differs by 0.02, more than 0.01"),
        (result(differs=float("nan")), "output y differs by nan"),
        (result("k1"), "another key each"),
    ],
)
def test_results_are_checked(built: Built, why: str) -> None:
    """A report that differs from the order is refused, and so is a key that was refused before."""
    refused = due_builds.stale(Build("done"), "k1", "another key")

    found = due_builds.refusal(TARGET, built, refused)

    assert why in found
    assert bool(found) == bool(why)


def test_stale_keys_are_bounded() -> None:
    """A server that changes for years does not collect keys."""
    build = Build("done")
    for number in range(50):
        build = due_builds.stale(build, f"k{number}", "another key")

    assert len(build.stale_keys) == due_builds.STALE_KEYS_MAX
    assert build.stale_keys[-1] == "k49"
    assert build.state == "waiting"
