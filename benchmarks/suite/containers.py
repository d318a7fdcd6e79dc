"""Cold calls with containers, against the minimum time of containers and models alone.

Needs the tests' engine: `eval "$(.ci/engine start)"`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import docker

from benchmarks.gateway import Gateway, gateway
from benchmarks.measuring.record import Case, Figures, interleaved
from benchmarks.measuring.report import Part, compare
from benchmarks.measuring.setting import LeftOut, Setting
from benchmarks.models import subjects
from benchmarks.models.subjects import Subject
from benchmarks.references.engines import SCRIPT, Task, fresh_ms, task
from pool_manager.drivers.docker import spec
from pool_manager.drivers.docker.spec import MountPaths, Owner
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import VERSION
from tests.support.engine import make_runtime_image

MS = "ms"
LOADED = "warm process: load, run"
STANDBY = "cold call, standby"
CONTAINER = "new container: start, import, load, run"
NO_STANDBY = "cold call, no standby"
HOLDER_S = 2.5
"""A used network holder is replaced after two seconds; an earlier start runs without a spare
one."""


def measure(setting: Setting) -> list[Part]:
    """Measure both kinds of cold call and their references. Raises LeftOut without an engine."""
    url = os.environ.get("FN_TEST_DOCKER", "")
    if not url:
        raise LeftOut('no engine; start the tests\' own: eval "$(.ci/engine start)"')
    wheelhouse = Path(os.environ["FN_TEST_WHEELHOUSE"])
    image = make_runtime_image(url, os.environ["FN_TEST_BASE"], wheelhouse)
    chosen = [subjects.digits()]
    if not setting.quick:
        chosen.append(subjects.convnet(setting.models))
    small = task(subjects.tiny(setting.models))
    engine = {"FN_DRIVER": "docker", "FN_DOCKER_HOST": url, "FN_IMAGE_CPU": image}
    parts: list[Part] = []
    with tempfile.TemporaryDirectory(prefix="fn-") as name, ExitStack() as stack:
        servers = [
            stack.enter_context(
                gateway(environment={**engine, "FN_STANDBYS": str(count), "FN_CPU_SLOTS": "2"})
            )
            for count in (0, 1)
        ]
        client = docker.APIClient(base_url=url, version="auto")
        stack.callback(client.close)
        for subject in chosen:
            one = _prepared(servers, subject, Path(name))
            start = partial(container, client, image, one, Path(name))
            cases: dict[str, Case] = {
                LOADED: partial(_loaded, small, one),
                **_cases(servers, subject, start),
            }
            record = interleaved(cases, setting.rounds)
            for table in ((LOADED, STANDBY), (CONTAINER, NO_STANDBY)):
                title = f"{subject.name}, {subject.size}"
                parts += compare(record, table[0], cases=table, title=title)
    return parts


def _prepared(servers: list[Gateway], subject: Subject, folder: Path) -> Task:
    """Deploy on all servers; return a replica's first session, with its files in `folder`."""
    for server in servers:
        server.deploy(subject)
    servers[0].call_ms(subject)
    one = servers[0].first_session(subject, folder)
    if not Path(one.model).is_relative_to(folder):
        own = folder / subject.name
        own.mkdir()
        one = replace(one, model=shutil.copy(one.model, str(own)))
    servers[0].go_cold(0)
    return one


def _loaded(small: Task, one: Task) -> Figures:
    return {MS: fresh_ms(small, one)}


def _cases(servers: list[Gateway], subject: Subject, start: Case) -> dict[str, Case]:
    def cold(standbys: int) -> Figures:
        servers[standbys].go_cold(standbys)
        time.sleep(HOLDER_S)
        return {MS: servers[standbys].cold_call_ms(subject, standbys)}

    return {
        STANDBY: partial(cold, 1),
        CONTAINER: start,
        NO_STANDBY: partial(cold, 0),
    }


def container(client: docker.APIClient, image: str, one: Task, folder: Path) -> Figures:
    """Return the time from creating a container with a replica's settings to its first run's
    end."""
    inside = Path(one.model).relative_to(folder)
    own = folder / inside.parts[0]
    place = MountPaths(run_dir=own, model_dir=own, log_bytes=65536)
    config = spec.replica(_record(), image, Owner("benchmark"), place, 10001)
    there = replace(one, model=str(Path(spec.MODEL_TARGET, *inside.parts[1:])))
    config["Entrypoint"] = ["python3", "-I", "-c"]
    config["Cmd"] = [SCRIPT.read_text(), there.to_json()]
    began = time.monotonic()
    made = client.create_container_from_config(config)["Id"]
    client.start(made)
    client.wait(made)
    ended = float(json.loads(client.logs(made, stderr=False))["ended_s"])
    client.remove_container(made, force=True)
    return {MS: (ended - began) * 1e3}


def _record() -> ReplicaRecord:
    # A standby, because it has the limits of a replica that loads.
    return ReplicaRecord(
        *("bench", "", "standby", "", "", "/model", (), "cpu", "onnx"),
        threads=1,
        orphan_s=1.0,
        memory_mib=0,
        launched_s=0.0,
        link=VERSION,
    )
