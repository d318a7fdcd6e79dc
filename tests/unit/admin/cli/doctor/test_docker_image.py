from __future__ import annotations

from typing import Any

import pytest

from admin.cli.doctor.docker import expected_source, image
from admin.image.context import own_digest
from runtime_image.contract.link import VERSION

SOURCE = "a" * 64


def inspected(**labels: str) -> dict[str, Any]:
    return {"Id": "sha256:0123456789abcdef", "Config": {"Labels": labels or None}}


@pytest.mark.parametrize(
    ("found", "level", "text"),
    [
        (None, "fail", "is not there"),
        (inspected(), "fail", "no label fngate.link"),
        ({"Id": "x"}, "fail", "no label fngate.link"),
        (inspected(**{"fngate.link": "0"}), "fail", "speaks version 0"),
        (inspected(**{"fngate.link": str(VERSION)}), "warn", "other sources (unknown)"),
        (
            inspected(**{"fngate.link": str(VERSION), "fngate.source": "b" * 64}),
            "warn",
            "other sources (bbbbbbbbbbbb)",
        ),
        (inspected(**{"fngate.link": str(VERSION), "fngate.source": SOURCE}), "ok", f"{VERSION}"),
    ],
)
def test_the_image_must_fit(found: dict[str, Any] | None, level: str, text: str) -> None:
    """It must be there and speak this version of the link; other sources are a warning."""
    check = image("gpu", "mine:gpu", found, SOURCE)

    assert check.level == level
    assert text in check.found
    assert check.todo == ("" if level == "ok" else "fnctl image build gpu")


def test_unknown_sources_are_not_compared() -> None:
    """Where the sources' digest cannot be had, the link's version decides."""
    assert image("cpu", "mine:cpu", inspected(**{"fngate.link": str(VERSION)}), "").level == "ok"


def test_the_sources_digest_is_a_text() -> None:
    """It is a digest, or nothing where this fngate cannot build images."""
    assert expected_source() == own_digest()
