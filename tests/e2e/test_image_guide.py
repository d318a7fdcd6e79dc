"""The guide of images, followed on a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pool_manager.drivers.docker.spec import owner_name
from tests.support.container_server import container_server
from tests.support.document_runs import ROOT, Desk
from tests.support.engine import base_image, connected

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(180)]

GUIDE = ROOT / "docs/guides/images.md"
RUN_MIN = 9
"""Min number of files and commands of the guide that are run."""


def test_the_guide_shows_what_happens(engine: str, runtime_image: str, tmp_path: Path) -> None:
    """Each command of the guide that needs an engine prints what is shown, from a Dockerfile to a
    call, with the base image of this engine."""
    tag = f"fngate-guide-{owner_name(tmp_path)[:12]}:1"
    folder = tmp_path / "fngate"
    folder.mkdir()
    data, settings = folder / ".fngate", {"FN_STANDBYS": "0"}
    with container_server(data, engine, runtime_image, **settings) as server:
        place = Desk(
            folder,
            server,
            engine={"DOCKER_HOST": engine},
            names={"hello:1": tag, "python:3.12-slim": base_image()},
        )
        ran = place.run(GUIDE.read_text("utf-8"))
    with connected(engine) as client:
        client.images.remove(tag)

    assert len(ran) >= RUN_MIN
    assert [one.trouble for one in ran if one.trouble] == []
