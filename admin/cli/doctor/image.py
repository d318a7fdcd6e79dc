"""Checks of the image that replicas run in. Pure, but for looking up what it should be."""

from __future__ import annotations

from typing import Any, Final

from admin.cli.doctor.check import Check
from pool_manager.drivers.docker.shape import LINK
from registry.errors import FnError
from runtime_image.contract.link import VERSION

SOURCE: Final = "fngate.source"
SHOWN: Final = 12
"""Characters shown of a digest."""


def image(kind: str, tag: str, inspected: dict[str, Any] | None, source: str) -> Check:
    """The image for replicas of a kind, cpu or gpu, is there and fits this fngate.

    `inspected` is what the engine says of `tag`, None where it has none; `source` is the sources'
    digest, "" if unknown.
    """
    name, todo = f"{kind} image", f"fnctl image build {kind}"
    if inspected is None:
        return Check("fail", name, f"{tag} is not there", todo)
    labels = (inspected.get("Config") or {}).get("Labels") or {}
    link = labels.get(LINK)
    if link is None:
        found = f"{tag} has no label {LINK}: it was not built by fnctl image build"
        return Check("fail", name, found, todo)
    if link != str(VERSION):
        found = f"{tag} speaks version {link} of the link, expected {VERSION}"
        return Check("fail", name, found, todo)
    built = str(labels.get(SOURCE) or "")
    if source and built != source:
        found = f"{tag} was built from other sources ({_short(built) or 'unknown'})"
        return Check("warn", name, f"{found}, expected {_short(source)}", todo)
    return Check("ok", name, f"{tag}, link {link}, {str(inspected.get('Id', ''))[:19]}")


def expected_source() -> str:
    """The digest of the runtime's sources as `fnctl image build` labels it, "" if it cannot be."""
    from admin.image.source import own_digest

    try:
        return own_digest()
    except (FnError, OSError):
        return ""


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:SHOWN]
