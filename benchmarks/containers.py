"""Cold calls over containers, against the least that containers and models take by themselves.

Needs the tests' engine: `eval "$(.ci/engine start)"`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import docker

from benchmarks.cold_start import states
from benchmarks.measure import interleaved, show
from pool_manager.drivers.docker import shape
from pool_manager.drivers.docker.shape import Owner, Place
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.link import VERSION
from tests.support import models
from tests.support.engine import make_runtime_image
from tests.support.process_server import ServerProcess, server_process

ROUNDS = 20
BIG_MIB = 100
LOAD_AND_RUN = """
import numpy, onnxruntime, sys, time
def once(path, name, shape):
    began = time.monotonic()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    onnxruntime.InferenceSession(path, options).run(None, {name: numpy.zeros(shape, "f4")})
    return began, time.monotonic()
"""
IN_CONTAINER = LOAD_AND_RUN + "print(once('/model/model.onnx', *WHAT)[1])\n"
WARM = LOAD_AND_RUN + (
    "for path in sys.stdin:\n"
    "    began, ended = once(path.strip(), *WHAT)\n"
    "    print((ended - began) * 1e3, flush=True)\n"
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model file, and the input that a call of it has."""

    name: str
    model: Path
    input: str
    shape: tuple[int, ...]

    @property
    def what(self) -> str:
        """As Python source."""
        return repr((self.input, self.shape))

    @property
    def body(self) -> bytes:
        """A call of it."""
        value: object = 0.0
        for size in reversed(self.shape):
            value = [value] * size
        return json.dumps({"inputs": {self.input: value}}).encode()


def main() -> None:
    """Print a table for a small and a large model; say so where there is no engine."""
    url = os.environ.get("FN_TEST_DOCKER", "")
    if not url:
        print('left out: no engine; start the tests\' own: eval "$(.ci/engine start)"')
        return
    wheelhouse = Path(os.environ["FN_TEST_WHEELHOUSE"])
    image = make_runtime_image(url, os.environ["FN_TEST_BASE"], wheelhouse)
    with tempfile.TemporaryDirectory(prefix="fn-") as name:
        folder = Path(name)
        digits = folder / "digits.onnx"
        shutil.copyfile("functions/digits/digits.onnx", digits)
        big = models.big(folder, BIG_MIB)
        for subject in (
            Subject("digits", digits, "image", (1, 8, 8)),
            Subject("big", big, "x", (1, 4)),
        ):
            size_kib = subject.model.stat().st_size / 1024
            print(f"{subject.name}, {size_kib:.0f} KiB")
            measure(subject, folder, url, image)
            print()


def measure(subject: Subject, folder: Path, url: str, image: str) -> None:
    """Both kinds of cold call beside their references, in turns."""
    engine = {"FN_DRIVER": "docker", "FN_DOCKER_HOST": url, "FN_IMAGE_CPU": image}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                server_process(
                    folder / f"{subject.name}{standbys}",
                    environment={**engine, "FN_STANDBYS": str(standbys), "FN_CPU_SLOTS": "2"},
                )
            )
            for standbys in (1, 0)
        ]
        for server in servers:
            server.fnctl_json(
                "deploy", str(subject.model), "--name", subject.name, "--idle", "0.05"
            )
        client = docker.APIClient(base_url=url, version="auto")
        stack.callback(client.close)
        cases = {
            "load and run in a warm process": stack.enter_context(warm(subject)),
            "cold call, standby": partial(cold, servers[0], subject, standbys=1),
            "container: start, import, load, run": partial(
                container, client, image, subject, folder
            ),
            "cold call, no standby": partial(cold, servers[1], subject, standbys=0),
        }
        taken = interleaved(cases, ROUNDS)
        names = list(cases)
        for reference, case in (names[:2], names[2:]):
            show({name: taken[name] for name in (reference, case)}, reference, "ms")


@contextmanager
def warm(subject: Subject) -> Iterator[object]:
    """A process that has imported everything and loads and runs the model once when asked."""
    environment = {"PATH": "/usr/bin:/bin", "ORT_DISABLE_TELEMETRY": "1"}
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", WARM.replace("WHAT", subject.what)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asked, answered = process.stdin, process.stdout

    def once() -> float:
        asked.write(f"{subject.model}\n")
        asked.flush()
        return float(answered.readline())

    once()
    yield once
    asked.close()
    process.wait()
    answered.close()


def container(client: docker.APIClient, image: str, subject: Subject, folder: Path) -> float:
    """From the create of a container with a replica's settings to the end of its first run."""
    models_of_it = folder / f"{subject.name}-model"
    models_of_it.mkdir(exist_ok=True)
    linked = models_of_it / "model.onnx"
    if not linked.exists():
        os.link(subject.model, linked)
    place = Place(run_dir=models_of_it, model_dir=models_of_it, log_bytes=65536)
    config = shape.replica(_record(), image, Owner("benchmark", "10001:10001"), place)
    config["Entrypoint"] = ["python3", "-I", "-c"]
    config["Cmd"] = [IN_CONTAINER.replace("WHAT", subject.what)]
    began = time.monotonic()
    made = client.create_container_from_config(config)["Id"]
    client.start(made)
    client.wait(made)
    ended = float(client.logs(made, stderr=False))
    client.remove_container(made, force=True)
    return (ended - began) * 1e3


def _record() -> ReplicaRecord:
    # Standby: the limits that a replica has when it loads.
    return ReplicaRecord(
        *("bench", "", "standby", "", "", "/model", "", "cpu", "onnx"),
        threads=1,
        orphan_s=1.0,
        memory_mib=0,
        launched_s=0.0,
        link=VERSION,
    )


def cold(server: ServerProcess, subject: Subject, standbys: int) -> float:
    """A call when no replica is left but so many standbys, and they wait."""
    while states(server) != ["standby"] * standbys:
        time.sleep(0.05)
    # A spent holder is replaced after two seconds; whoever calls more often makes do without.
    time.sleep(2.5)
    headers = {"Content-Type": "application/json", **server.headers}
    request = urllib.request.Request(f"{server.url}/fn/{subject.name}", subject.body, headers)
    began = time.perf_counter()
    with urllib.request.urlopen(request) as response:
        response.read()
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    main()
