"""The guide of several hosts, followed with another host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.container_server import container_server
from tests.support.document_runs import ROOT, Desk
from tests.support.fleet.fleet import Fleet, open_fleet
from tests.support.fleet.host import WORKER, Plan

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(180)]

GUIDE = ROOT / "docs/guides/hosts.md"
RUN_MIN = 8
"""Min number of commands of the guide that are run."""


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Run one host, to which the runtime image is still to be sent."""
    with open_fleet(Plan(user=WORKER)) as fleet:
        yield fleet


def test_the_guide_shows_what_happens(
    engine: str, runtime_image: str, fleet: Fleet, tmp_path: Path
) -> None:
    """Each command of the guide prints what is shown, from adding a host to its removal, after
    which nothing of the server is left there. The server logs in as its user does, by a name of
    ~/.ssh/config."""
    host = fleet.first
    home, folder = tmp_path / "user", tmp_path / "fngate"
    (home / ".ssh").mkdir(parents=True)
    folder.mkdir()
    config = f"Host {host.name}\n  HostName {host.ip}\n  IdentityFile {host.identity}\n"
    (home / ".ssh/config").write_text(config)
    data = folder / ".fngate"
    with container_server(data, engine, runtime_image, HOME=str(home)) as server:
        place = Desk(
            folder,
            server,
            engine={"DOCKER_HOST": engine},
            names={f"nn@{host.name}": f"{WORKER}@{host.name}", "/home/nn": str(host.home)},
        )
        ran = place.run(GUIDE.read_text("utf-8"))

    assert [one.trouble for one in ran if one.trouble] == []
    assert len([one for one in ran if not one.step.is_hidden]) >= RUN_MIN
    assert host.files() == []
    assert host.containers() == []
