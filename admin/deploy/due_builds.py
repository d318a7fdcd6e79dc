"""Decides which model is compiled next, and how a build's state changes. Pure.

A build that was given up, for a reason other than the model, is tried again, up to ATTEMPTS_MAX
times. One that failed would fail again until bundle, shapes or compiler change, which makes it
another target, or until an operator asks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pool_manager.builds import PARITY, Built
from pool_manager.core.state import Device
from registry.builds import TYPES_MAX, Build, DeviceType, Target
from registry.catalog import Deployed
from registry.compilation import TOLERANCE, Compiled
from registry.errors import BuildFailed, FnError
from registry.model.hosts import host_order

ATTEMPTS_MAX: Final = 3
PAUSE_RATIO: Final = 2.0
"""A device that was needed during a build is probably needed again soon: the pause after an attempt
that was given up is this many times as long as the attempt, ..."""
PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 600.0
"""... within these limits."""
POSTPONED_S: Final = 10.0
STALE_KEYS_MAX: Final = 16
REASON_MAX: Final = 500
KILLED: Final = "the server ended during the build"
NO_DEVICE: Final = "waits for a free device"
NO_TYPE: Final = "there is no device that could run it"


Free = tuple[str, DeviceType]
"""Kind and type of a free device."""


@dataclass(frozen=True, slots=True)
class WantedBuild:
    """A target that the traffic of a revision would use on one type of device, with the target's
    digest."""

    deployed: Deployed
    target: Target
    digest: str


def next_build(
    wanted: Iterable[WantedBuild],
    builds: Mapping[str, Build],
    free: Collection[Free],
    now_s: float,
) -> WantedBuild | None:
    """Return the build to begin among targets without a compiled model, None if none is due.

    `builds` are known states by digest. Urgent builds come first
    and may wait for a device; then those with the fewest attempts, then by name.
    """
    found = [
        (not build.is_urgent, build.attempts, one.deployed.revision.key, one)
        for one in wanted
        if is_due(build := builds.get(one.digest, Build()), now_s)
        and (build.is_urgent or (one.target.device_kind, one.target.device) in free)
    ]
    return min(found, key=lambda entry: entry[:3])[-1] if found else None


def device_types(devices: Iterable[Device], kind: str) -> list[DeviceType]:
    """Return the types of device of a kind that a model is compiled for: TYPES_MAX at most, those
    of this machine first. A GPU that has not been read yet has none."""
    found = {one.type for one in devices if one.kind == kind and (one.model or kind == "cpu")}
    ordered = sorted(found, key=lambda one: (host_order(one.host), one.model))
    return ordered[:TYPES_MAX]


def shared(target: Target, build: Build, there: Iterable[Compiled]) -> Compiled | None:
    """Return the newest result of a build on another host with the same model of device, None if
    there is none. Its key may fit; if a replica has refused it, this target has a build of its
    own, as it has after one that failed."""
    if build.state in ("building", "failed"):
        return None
    alike = [
        one
        for one in there
        if one.target.device.model == target.device.model and one.model.key not in build.stale_keys
    ]
    newest = max(alike, key=lambda one: one.made_s, default=None)
    return replace(newest, target=target) if newest is not None else None


def is_due(build: Build, now_s: float) -> bool:
    """Return whether a target without a compiled model is compiled as soon as a device is free.
    One that is `done` has lost its files."""
    return build.state in ("waiting", "building", "done") and now_s >= build.not_before_s


def begun(build: Build, now_s: float) -> Build:
    """Return the state of a build that a replica has begun."""
    return replace(
        build,
        state="building",
        attempts=build.attempts + 1,
        began_s=now_s,
        ended_s=0.0,
        reason="",
        parity=(),
    )


def resumed(build: Build, now_s: float) -> Build:
    """Return the state after a start of the server; a build that was running counts as given up."""
    return given_up(build, KILLED, now_s) if build.state == "building" else build


def interrupted(build: Build) -> Build:
    """Return the state after an orderly end of the server, or if the model is no longer wanted: the
    attempt does not count."""
    if build.state != "building":
        return build
    return replace(build, state="waiting", attempts=max(0, build.attempts - 1), began_s=0.0)


def ended(build: Build, error: FnError, now_s: float) -> Build:
    """Return the state after an attempt without a compiled model, which may have ended before it
    was seen to run."""
    if build.state != "building":
        build = begun(build, now_s)
    if isinstance(error, BuildFailed):
        return failed(build, error, now_s)
    return given_up(build, error.message, now_s)


def given_up(build: Build, reason: str, now_s: float) -> Build:
    """Return the state after an attempt that ended for a reason other than the model."""
    is_last = build.attempts >= ATTEMPTS_MAX
    lost_s = max(0.0, now_s - build.began_s) if build.began_s else 0.0
    pause_s = min(max(PAUSE_RATIO * lost_s, PAUSE_MIN_S), PAUSE_MAX_S)
    return replace(
        build,
        state="given_up" if is_last else "waiting",
        reason=reason[:REASON_MAX],
        ended_s=now_s,
        not_before_s=now_s + pause_s,
        is_urgent=build.is_urgent and not is_last,
    )


def postponed(build: Build, now_s: float) -> Build:
    """Return the state of a build that found no device although one was free: others go first."""
    return replace(build, reason=NO_DEVICE, not_before_s=now_s + POSTPONED_S)


def failed(build: Build, error: BuildFailed, now_s: float) -> Build:
    """Return the state after an attempt that would end the same again."""
    text, parity = error.message[:REASON_MAX], tuple(error.detail.get(PARITY, ()))
    return replace(
        build, state="failed", reason=text, ended_s=now_s, is_urgent=False, parity=parity
    )


def done(build: Build, now_s: float) -> Build:
    """Return the state once there is a compiled model."""
    return replace(
        build, state="done", attempts=0, reason="", ended_s=now_s, not_before_s=0.0, is_urgent=False
    )


def requested(build: Build, *, is_urgent: bool) -> Build:
    """Return the state after an operator's request; a running build goes on."""
    if build.state == "building":
        return replace(build, is_urgent=build.is_urgent or is_urgent)
    return replace(
        build, state="waiting", attempts=0, not_before_s=0.0, is_urgent=is_urgent, stale_keys=()
    )


def stale(build: Build, key: str, reason: str) -> Build:
    """Return the state after a replica has refused the compiled model with this key for another
    one: a new build is due."""
    keys = (*build.stale_keys, key)[-STALE_KEYS_MAX:]
    return replace(
        build,
        state="waiting",
        attempts=0,
        reason=reason[:REASON_MAX],
        not_before_s=0.0,
        stale_keys=keys,
    )


def lost(build: Build, reason: str) -> Build:
    """Return the state after files of the compiled model were damaged or removed: a new build is
    due."""
    return replace(requested(build, is_urgent=False), reason=reason[:REASON_MAX])


def refusal(target: Target, built: Built, build: Build) -> str:
    """Return why the result of a build is not used, "" if it is.

    The replica's report is checked against its order. Replicas on devices of this type have refused
    a key before: replacing the compiled model in turns would compile for ever.
    """
    model = built.compiled
    if (model.compiler, model.ranges) != (target.compiler, target.ranges):
        return f"expected a model compiled by {target.compiler} for the ranges that were ordered"
    if model.keeps_ordinary != target.keeps_ordinary:
        return "the build changed what happens outside its ranges"
    if model.key in build.stale_keys:
        return "its devices differ although they look alike, and replicas need another key each"
    for one in built.described.get("parity", ()):
        if not one["relative_difference"] <= TOLERANCE:
            return (
                f"output {one['output']} differs by {one['relative_difference']:.3g}, more than"
                f" {TOLERANCE:g}"
            )
    return ""


def result(target: Target, built: Built, now_s: float) -> Compiled:
    """Return the compiled model to be stored for a build."""
    said = built.described
    return Compiled(
        target=target,
        model=built.compiled,
        files=built.files,
        parity=tuple(said.get("parity", ())),
        samples=said.get("samples", 0),
        build_s=said.get("build_s", 0.0),
        ordinary_ms=said.get("ordinary_ms", {}),
        compiled_ms=said.get("compiled_ms", {}),
        load_ms=said.get("load_ms", 0.0),
        memory_mib=said.get("memory_mib", 0.0),
        timing_key=said.get("timing_key", ""),
        device=built.device,
        made_s=now_s,
    )
