"""Frozen data classes: targets of compiled models, and the state of their builds."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import Final, Literal

from runtime_image.contract.compiled import CompilerName, OutputParity, ShapeRange

TYPES_MAX: Final = 8
"""Max types of devices that one model is compiled for: a bound of builds and of files."""
TYPE_DIGITS: Final = 16
"""Hexadecimal digits of a type's digest."""


Outside = Literal["ordinary", "refuse"]


@dataclass(frozen=True, slots=True)
class Compilation:
    """How a revision's model is compiled in the background: the part of [runtime] about it.

    `engine`: "tensorrt" fails a deploy without that compiler, "auto" goes on without one. `shapes`
    are those of inputs whose axes the model leaves open. `outside`: what happens to a request with
    other shapes than those that the model was compiled for.
    """

    engine: Literal["tensorrt", "auto"]
    shapes: tuple[ShapeRange, ...] = ()
    outside: Outside = "ordinary"


@dataclass(frozen=True, slots=True, order=True)
class DeviceType:
    """Devices of a host that are alike. `model` is all that is known of a GPU, "" for CPU slots.

    Two hosts with the same model may still differ in what files depend on: the processor, or what
    is installed. The key of a compiled model decides.
    """

    host: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """Target of a build: a model of a bundle, for one type of device, with one set of ranges.

    `base` is the sha256 of the candidate that replaces the model, "" for the model itself.
    `device` is DeviceType() where the type does not matter.
    """

    bundle: str
    model: str
    base: str
    device_kind: str
    compiler: CompilerName
    ranges: tuple[ShapeRange, ...]
    keeps_ordinary: bool
    device: DeviceType = DeviceType()

    @property
    def group(self) -> str:
        """Digest in hex of all fields but the type of device."""
        ranges = [
            {
                "input": one.input,
                "largest": one.largest,
                "smallest": one.smallest,
                "usual": one.usual,
            }
            for one in self.ranges
        ]
        fields = [self.bundle, self.model, self.base, self.device_kind, self.compiler, ranges]
        text = json.dumps([*fields, self.keeps_ordinary])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def digest(self) -> str:
        """The group and a digest of the type of device: the key of builds and compiled models."""
        return digest_of(self.group, self.device)


def digest_of(group: str, device: DeviceType) -> str:
    """Return the digest of a target by its group and type of device."""
    return f"{group}:{_type_digest(device)}"


@functools.lru_cache(maxsize=256)
def _type_digest(device: DeviceType) -> str:
    text = json.dumps([device.host, device.model])
    return hashlib.sha256(text.encode()).hexdigest()[:TYPE_DIGITS]


def group_of(digest: str) -> str:
    """Return the group of a target by its digest."""
    return digest.partition(":")[0]


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
    `is_urgent`: an operator asked for it now. `parity` is the worst agreement of each output if
    that is why the last attempt failed. `stale_keys` are those of compiled models that
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
    parity: tuple[OutputParity, ...] = ()
