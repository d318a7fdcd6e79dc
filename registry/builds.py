"""Frozen data classes: what is compiled for a revision, and the state of its build."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Final, Literal

from runtime_image.contract.compiled import CompilerName, ShapeRange


@dataclass(frozen=True, slots=True)
class Compilation:
    """How a revision's model is compiled in the background: the part of [runtime] about it.

    `engine`: "tensorrt" fails a deploy without that compiler, "auto" goes on without one. `shapes`
    are those of inputs whose axes the model leaves open. `outside`: what happens to a request with
    other shapes than those that the model was compiled for.
    """

    engine: Literal["tensorrt", "auto"]
    shapes: tuple[ShapeRange, ...] = ()
    outside: Literal["ordinary", "refuse"] = "ordinary"


@dataclass(frozen=True, slots=True)
class Target:
    """What is compiled: a model of a bundle, for one kind of device, with one set of ranges.

    `base` is the sha256 of the candidate that replaces the model, "" for the model itself.
    """

    bundle: str
    model: str
    base: str
    device_kind: str
    compiler: CompilerName
    ranges: tuple[ShapeRange, ...]
    keeps_ordinary: bool

    @property
    def digest(self) -> str:
        """Digest of all fields, in hex: the key of builds and compiled models."""
        text = json.dumps([*asdict(self).values()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


BuildEnd = Literal["done", "failed", "given_up"]
BUILD_ENDS: Final[tuple[BuildEnd, ...]] = ("done", "failed", "given_up")
BuildState = Literal["waiting", "building", "given_up", "failed", "done"]


@dataclass(frozen=True, slots=True)
class Build:
    """State of the build of one target. Times in Unix seconds.

    waiting: until a device is free. building: a replica compiles. given_up: as often as is tried
    without being asked. failed: another attempt would end the same. done: there is a compiled
    model. `attempts` counts builds that began since the last request. `reason` says why the last
    attempt ended, or why replicas do not use its result. `not_before_s`: pause after an attempt.
    `is_urgent`: an operator asked for it now. `stale_keys` are those of compiled models that
    replicas refused, as other versions or devices had replaced those that they were made for.
    """

    state: BuildState = "waiting"
    attempts: int = 0
    reason: str = ""
    began_s: float = 0.0
    ended_s: float = 0.0
    not_before_s: float = 0.0
    is_urgent: bool = False
    stale_keys: tuple[str, ...] = ()
