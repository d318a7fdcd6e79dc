"""Whether an image is the one that is needed."""

from __future__ import annotations

from typing import Any

from pool_manager.drivers.docker.shape import LINK
from registry.errors import DriverError
from runtime_image.contract.link import VERSION


def check_image(image: str, kind: str, inspected: dict[str, Any]) -> None:
    """`inspected` is what GET /images/NAME/json says. Raises DriverError where the image speaks
    another version of the link, or is no runtime image at all."""
    target = "gpu" if kind == "cuda" else kind
    labels = (inspected.get("Config") or {}).get("Labels") or {}
    spoken = labels.get(LINK)
    if spoken is None:
        found = f"image {image} is no runtime image: it has no label {LINK}"
    elif spoken != str(VERSION):
        found = f"image {image} speaks link version {spoken}, this server version {VERSION}"
    else:
        return
    raise DriverError(f"{found}; build it: fnctl image build {target}")
