"""Cold starts and warm calls on another host, beside the local machine and `scp`.

The hosts are namespaces of this machine, which share its cores and its disk. Needs root and the
tests' engine: `eval "$(.ci/engine start)"`.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.gateway import Gateway, gateway
from benchmarks.measuring.record import Figures, Record, interleaved
from benchmarks.measuring.report import Part, compare
from benchmarks.measuring.setting import LeftOut, Setting
from benchmarks.models.subjects import Subject, npy
from registry.model.hosts import LOCAL_HOST
from tests.support.engine import make_runtime_image
from tests.support.fleet.fleet import open_fleet
from tests.support.fleet.host import Host, Plan
from tests.support.layered import WIDTH, layered
from tests.support.sshd import PORT

MS: Final = "ms"
MIB: Final = 100
DELAY_S: Final = 0.035
CALLS: Final = 40
QUICK_CALLS: Final = 5
UP_S: Final = 60.0
DEVICE: Final = '[device]\nhost = {{ host = "{host}" }}\n'
LOCAL: Final = "local, cold"
THERE: Final = "other host, files there"
SENT: Final = "other host, 100 MB to send"
SCP: Final = "scp of the same file"
ROUND_TRIP: Final = "connect: one round trip"
SIZES: Final = {"1 kB": 1, "64 kB": 32, "1 MB": 512}
"""Rows of 2 KiB in a body; 1 kB is a JSON body."""


def measure(setting: Setting) -> list[Part]:
    """Measure both. Raises LeftOut without root or an engine."""
    url = os.environ.get("FN_TEST_DOCKER", "")
    if not url or os.geteuid() != 0:
        raise LeftOut('it needs root and an engine: eval "$(.ci/engine start)"')
    wheelhouse = Path(os.environ["FN_TEST_WHEELHOUSE"])
    image = make_runtime_image(url, os.environ["FN_TEST_BASE"], wheelhouse)
    engine = {"FN_DRIVER": "docker", "FN_DOCKER_HOST": url, "FN_IMAGE_CPU": image}
    with (
        tempfile.TemporaryDirectory(prefix="fn-") as name,
        open_fleet(Plan(), Plan(is_relayed=True), images=(image,)) as fleet,
        gateway(environment={**engine, "FN_STANDBYS": "0"}) as server,
    ):
        near, far = fleet.hosts
        for host in fleet.hosts:
            add(server, host)
        parts = _cold_starts(setting, server, near, Path(name), "0 ms")
        far.link.set(delay_s=DELAY_S)
        parts += _cold_starts(setting, server, far, Path(name), "70 ms")
        return parts + _far(setting, server, far, Path(name))


def add(server: Gateway, host: Host) -> None:
    """Add a host; wait until it is up."""
    key = ("--identity-file", str(host.identity), "--host-key", host.host_key)
    server.server.fnctl_json("host", "add", host.address, "--name", host.name, *key)
    until_s = time.monotonic() + UP_S
    while (shown := server.ask("GET", f"hosts/{host.name}"))["state"] != "up":
        if time.monotonic() > until_s:
            raise TimeoutError(f"{host.name} is not up: {shown}")
        time.sleep(0.05)


def subject(folder: Path, name: str, host: str, mib: int) -> Subject:
    """Return a function of a model of `mib` MiB on one host."""
    path = folder / name
    path.mkdir()
    model = layered(path, mib, name)
    text = f'schema = 1\nname = "{name}"\nmodel = "{model.name}"\n{DEVICE.format(host=host)}'
    (path / "function.toml").write_text(text)
    return _with_rows(Subject(name, path, model, "float32", (1, WIDTH), b""), 1)


def _with_rows(one: Subject, rows: int) -> Subject:
    """Return the subject with a body of so many rows."""
    values = np.ones((rows, WIDTH), dtype=np.float32)
    if rows == 1:
        body = json.dumps({"inputs": {"x": [[1] * WIDTH]}}).encode()
        return Subject(one.name, one.path, one.model, one.dtype, values.shape, body)
    headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
    return Subject(one.name, one.path, one.model, one.dtype, values.shape, npy(values), headers)


def _cold_starts(
    setting: Setting, server: Gateway, host: Host, folder: Path, away: str
) -> list[Part]:
    here = subject(folder, f"here-{host.name}", LOCAL_HOST, MIB)
    there = subject(folder, f"there-{host.name}", host.name, MIB)
    for one in (here, there):
        server.deploy(one)
        server.call_ms(one)

    def cold(one: Subject) -> Figures:
        return {MS: server.cold_call_ms(one, 0)}

    def sent() -> Figures:
        server.go_cold(0)
        server.server.fnctl_json("host", "rm", host.name)
        host.run("find", str(host.home / ".fngate"), "-type", "f", "-delete")
        add(server, host)
        return {MS: server.call_ms(there)}

    cases = {
        LOCAL: partial(cold, here),
        THERE: partial(cold, there),
        SCP: partial(copied, host, there.model),
        SENT: sent,
    }
    record = interleaved(cases, setting.rounds)
    return compare(record, LOCAL, cases=tuple(cases), title=f"Cold starts, {MIB} MB, {away}")


def copied(host: Host, file: Path) -> Figures:
    """Copy a file to the host by scp."""
    known = host.root / "known_hosts"
    known.write_text(f"{host.ip} {host.host_key}\n")
    target = f"{host.address}:{host.home}/copied"
    options = ("-q", "-B", "-i", str(host.identity), "-o", f"UserKnownHostsFile={known}")
    began = time.perf_counter()
    subprocess.run(["scp", *options, str(file), target], check=True, capture_output=True)
    taken_ms = (time.perf_counter() - began) * 1e3
    host.run("rm", f"{host.home}/copied")
    return {MS: taken_ms}


def _far(setting: Setting, server: Gateway, host: Host, folder: Path) -> list[Part]:
    far = subject(folder, "far", host.name, 1)
    server.deploy(far)
    server.call_ms(far)
    calls = QUICK_CALLS if setting.quick else CALLS

    def called(one: Subject) -> Figures:
        return _figures([server.call_ms(one) for _ in range(calls)])

    def connected() -> Figures:
        taken = []
        for _ in range(calls):
            began = time.perf_counter()
            socket.create_connection((host.ip, PORT)).close()
            taken.append((time.perf_counter() - began) * 1e3)
        return _figures(taken)

    cases = {ROUND_TRIP: connected}
    cases |= {size: partial(called, _with_rows(far, rows)) for size, rows in SIZES.items()}
    record: Record = interleaved(cases, setting.rounds)
    return compare(record, ROUND_TRIP, cases=tuple(cases), title="Warm calls at 70 ms")


def _figures(taken: list[float]) -> Mapping[str, float]:
    return {"p50 ms": statistics.median(taken), "longest ms": max(taken)}
