"""`uv.lock`, read as versions and hashes: which of them are needed is resolved anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from environments.requirement import (
    Requirement,
    read_requirement,
    refusal,
    shown,
    with_hashes,
)
from registry.bounded_text import read_toml
from registry.errors import BadManifest, BadNeeds

SIZE_MAX: Final = 1024 * 1024
"""Max characters of a `uv.lock`: one of torch and 28 more has 200,000."""
KEYS_MAX: Final = 60_000
PACKAGES_MAX: Final = 1_000
PIN_MAX: Final = 2_000
"""Max characters of a pin: its marker lists platforms."""


def read_pins(name: str, text: str) -> tuple[Requirement, ...]:
    """Return the versions of a `uv.lock`, with the hashes of their wheels.

    Raises BadNeeds for what is no such file, or has a package that comes from no index.
    """
    try:
        document = read_toml(text, name, size_max=SIZE_MAX, keys_max=KEYS_MAX)
    except BadManifest as error:
        raise BadNeeds(error.message) from error
    if document.get("version") != 1:
        raise refusal(name, "version = 1", shown(str(document.get("version"))))
    packages = document.get("package", [])
    if not isinstance(packages, list) or not all(isinstance(one, dict) for one in packages):
        raise refusal(name, "[[package]] tables", type(packages).__name__)
    if len(packages) > PACKAGES_MAX:
        raise refusal(name, f"at most {PACKAGES_MAX} packages", str(len(packages)))
    pins = [_pin(name, at, package) for at, package in enumerate(packages)]
    return tuple(sorted(pin for pin in pins if pin is not None))


def _pin(name: str, at: int, package: Mapping[str, Any]) -> Requirement | None:
    """Return the pin of a package; None for the project itself."""
    where = f"{name}: package[{at}]"
    source = package.get("source")
    if not isinstance(source, dict):
        raise refusal(where, "a source", shown(str(source)))
    if "registry" not in source:
        if any(source.get(kind) == "." for kind in ("virtual", "editable", "directory")):
            return None
        raise refusal(where, "a package of an index", shown(str(dict(source))))
    markers = package.get("resolution-markers", [])
    if not isinstance(markers, list) or not all(isinstance(one, str) for one in markers):
        raise refusal(where, "resolution-markers as a list", shown(str(markers)))
    marker = " or ".join(f"({one})" for one in markers)
    pin = f"{package.get('name')}=={package.get('version')}"
    one = read_requirement(f"{pin} ; {marker}" if marker else pin, where, PIN_MAX)
    return with_hashes(one, _hashes(where, package), where)


def _hashes(where: str, package: Mapping[str, Any]) -> list[str]:
    wheels = package.get("wheels", [])
    if not isinstance(wheels, list) or not all(isinstance(one, dict) for one in wheels):
        raise refusal(where, "wheels as a list of tables", shown(str(wheels)))
    return [str(wheel.get("hash", "")) for wheel in wheels]
