"""Packages of the optional extra for gRPC: whether they are installed, and fit each other."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from typing import Final

PACKAGES: Final = ("grpc", "grpc_health", "grpc_reflection")
GENERATED: Final = ("grpcio-health-checking", "grpcio-reflection")
"""Distributions with code that protobuf's compiler generated: it refuses an older runtime."""
_BOUND: Final = re.compile(r"(>=|<)\s*([0-9]+(?:\.[0-9]+)*)")
_PROTOBUF: Final = re.compile(r"protobuf\s*\(?([<>=!~,.\s\d]+)\)?")


def has_grpc() -> bool:
    """Return whether the packages of the extra are installed."""
    return all(map(importlib.util.find_spec, PACKAGES))


def grpc_refusal() -> str:
    """Return why the installed packages cannot serve gRPC, "" if they can."""
    if not has_grpc():
        return "gRPC is not installed: make install EXTRAS=grpc"
    try:
        found = metadata.version("protobuf")
    except metadata.PackageNotFoundError:
        return "protobuf is not installed: make install EXTRAS=grpc"
    for name in GENERATED:
        for needed in _requirements(name):
            if not fits(found, needed):
                return (
                    f"{name} needs protobuf {needed}, installed is {found}:"
                    " make install EXTRAS=grpc"
                )
    return ""


def fits(version: str, needed: str) -> bool:
    """Return whether a version is within bounds like ">=7.35.1,<8.0.0"; others are not judged."""
    found = _numbers(version)
    for sign, text in _BOUND.findall(needed):
        bound = _numbers(text)
        if (found < bound) if sign == ">=" else (found >= bound):
            return False
    return True


def _requirements(name: str) -> list[str]:
    """Return which versions of protobuf a distribution needs; none if it does not say."""
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    return [one[1].strip() for one in map(_PROTOBUF.fullmatch, lines) if one]


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, without zeros at its end."""
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
