"""Devices, and what functions used of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """What a device is, as of `at_s`."""

    name: str
    """Id of the device."""
    kind: str
    """cpu or cuda."""
    model: str
    """Name of a GPU as its driver reports it, "" for a CPU slot."""
    part: float
    """Less than 1 for a slice of a GPU: its part of the GPU's memory."""
    at_s: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Use:
    """Use of one device by a revision's replicas in one minute. Records of one minute add up.

    Standbys on a GPU belong to no function: their name is "" and their number 0. So does the time
    in which a device has no holder.
    """

    namespace: str
    """Namespace of the function."""
    name: str
    """Name of the function, "" for none."""
    number: int
    """Number of the revision; 0 for none, and for a trial, which has no revision yet."""
    device: str
    """Id of the device."""
    minute_s: int
    """Unix seconds at which the minute begins."""
    waking_s: float = 0.0
    """Device-seconds starting and loading."""
    idle_s: float = 0.0
    """Device-seconds ready and not running."""
    busy_s: float = 0.0
    """Device-seconds running the model."""
    held_s: float = 0.0
    """Device-seconds that the replicas are charged with: several holders of a device split each of
    its seconds, so that all records of a device add up to the time that passed."""
    joules: float = 0.0
    """Energy, split likewise; 0 for a device without an energy counter."""
