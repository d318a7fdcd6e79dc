"""Server functions on several stand-in GPUs: environment, loss of a GPU, adoption."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.nvml import board as boards
from tests.support.nvml.board import Board, Gpu
from tests.support.own_engine import await_condition
from tests.support.process_server import ServerProcess, server_process

pytestmark = pytest.mark.slow

GPUS = [f"GPU-{letter * 8}" for letter in "abcd"]
BUSES = (0xC1, 0x18, 0x81, 0x41)
"""PCI buses in another order than the driver's."""
NUMBERS = {"GPU-bbbbbbbb": 0, "GPU-dddddddd": 1, "GPU-cccccccc": 2, "GPU-aaaaaaaa": 3}
"""Numbers of the GPUs by PCI bus."""
APP = """
import json, os, sys, uuid
from http.server import BaseHTTPRequestHandler, HTTPServer

BORN = uuid.uuid4().hex

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"words": sys.argv[2:], "env": dict(os.environ), "born": BORN})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
HANDLER = """
import os

def predict(inputs, ctx):
    assert ctx.device == "cuda"
    return {name: value for name, value in os.environ.items() if name[:4] in ("CUDA", "NCCL")}
"""
MANIFEST = """
schema = 1
name = "torch"
[runtime]
engine = "python"
[device]
count = 2
[input.x]
kind = "json"
"""
ALONE = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
}


@contextmanager
def box(root: Path, *slices: Gpu) -> Iterator[tuple[ServerProcess, Board]]:
    """A server over four stand-in GPUs, and slices of these."""
    library = root / "lib"
    library.mkdir()
    boards.build(library)
    board = Board(root / "nvml")
    board.add(*(Gpu(uuid) for uuid in GPUS), *slices)
    for uuid, bus in zip(GPUS, BUSES, strict=True):
        board.sense(uuid, pci_bus=bus)
    environment = {"LD_LIBRARY_PATH": str(library), "FN_STANDIN_NVML": str(board.file)}
    with server_process(root / "data", environment=environment) as server:
        yield server, board


def deploy(server: ServerProcess, name: str, *options: str) -> None:
    """Deploy a function that answers with its environment and the number of its GPUs."""
    folder = server.data.parent / name
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(APP)
    command = f"{sys.executable} app.py ${{PORT}} --tensor-parallel-size ${{GPUS}}"
    server.fnctl_json(
        *("deploy", str(folder), "--name", name, "--command", command, "--trust", *options)
    )


def get(server: ServerProcess, path: str) -> Any:
    """Return the answer of a request with the admin token."""
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    connection.request("GET", path, headers=server.headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    return json.loads(body)


def held(server: ServerProcess) -> dict[str, str]:
    """Return the replica of each GPU that has one."""
    items = get(server, "/admin/v1/devices")["items"]
    return {one["id"]: one["replicas"][0] for one in items if one["replicas"]}


def numbers(devices: dict[str, str]) -> str:
    """Return what CUDA_VISIBLE_DEVICES is on these GPUs."""
    return ",".join(map(str, sorted(NUMBERS[one] for one in devices)))


@pytest.mark.parametrize("count", [2, 4])
def test_a_server_has_all_of_its_gpus(tmp_path: Path, count: int) -> None:
    """A server on several GPUs holds each of them, sees them by number in the order of their PCI
    addresses, learns how many they are, and meets itself on the loopback interface."""
    with box(tmp_path) as (server, _):
        deploy(server, "llm", "--gpus", str(count))
        answer = get(server, "/fn/llm/")
        devices = held(server)
        function = get(server, "/admin/v1/functions/llm")

    assert (len(devices), len(set(devices.values()))) == (count, 1)
    assert answer["words"] == ["--tensor-parallel-size", str(count)]
    assert answer["env"].items() >= ALONE.items()
    assert answer["env"]["CUDA_VISIBLE_DEVICES"] == numbers(devices)
    assert (function["device"]["kind"], function["device"]["count"]) == ("cuda", count)


def test_a_second_counts_on_each_gpu(tmp_path: Path) -> None:
    """The time of a replica is counted on each of its GPUs, and a function has their sum in its
    timeline and in its cost."""
    with box(tmp_path) as (server, _):
        deploy(server, "llm", "--gpus", "2")
        get(server, "/fn/llm/")
        devices = held(server)
        server.stop()
        server.start()
        timeline = get(server, "/admin/v1/timeline?hours=24")
        costs = get(server, "/admin/v1/cost?by=function")["items"]

    on_each = {one["id"]: one["waking_s"] for one in timeline["devices"]}
    (function,) = timeline["functions"]
    (cost,) = (one for one in costs if one["function"] == "llm")
    assert on_each.keys() == devices.keys()
    assert len(set(on_each.values())) == 1
    assert function["waking_s"] == pytest.approx(sum(on_each.values()), abs=0.01)
    assert function["waking_s"] > 0
    spent_s = cost["waking_s"] + cost["idle_s"] + cost["busy_s"]
    assert cost["held_s"] == pytest.approx(spent_s, abs=0.2)


def test_a_handler_has_all_of_its_gpus(tmp_path: Path) -> None:
    """A handler without a model sees them as a server does. It has the host's network, in which
    NCCL finds an interface by itself. Its file names the number of GPUs alone."""
    with box(tmp_path) as (server, _):
        folder = tmp_path / "torch"
        folder.mkdir()
        (folder / "handler.py").write_text(HANDLER)
        (folder / "function.toml").write_text(MANIFEST)
        server.fnctl_json("deploy", str(folder), "--trust")
        done = server.fnctl_json("invoke", "torch", "-i", "x=1")
        devices = held(server)

    assert len(devices) == 2
    assert done["outputs"] == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": numbers(devices),
    }


def test_beside_slices_gpus_have_their_names(tmp_path: Path) -> None:
    """Slices of MIG are in no group of GPUs. Beside them numbers may mean other GPUs, so names are
    used; a number of GPUs that is not there is refused."""
    with box(tmp_path, Gpu("MIG-1", 6_000, parent=GPUS[3])) as (server, _):
        deploy(server, "llm", "--gpus", "3")
        visible = get(server, "/fn/llm/")["env"]["CUDA_VISIBLE_DEVICES"]
        folder = str(server.data.parent / "llm")
        many = server.fnctl(
            *("deploy", folder, "--name", "llm", "--command", "x ${PORT}", "--trust"),
            *("--gpus", "4", "--json"),
        )

    assert sorted(visible.split(",")) == GPUS[:3]
    assert many.returncode != 0
    assert "device.count: expected at most 3, got 4" in many.stderr + many.stdout


def test_a_lost_gpu_ends_the_replica_on_all_of_them(tmp_path: Path) -> None:
    """The replica ends, its other GPUs get free, and the next call is served on those that are
    left."""
    with box(tmp_path) as (server, board):
        deploy(server, "llm", "--gpus", "2")
        first = get(server, "/fn/llm/")
        before = held(server)
        lost = sorted(before)[0]
        board.lose(lost)
        await_condition(lambda: lost not in held(server), "the replica is still there")
        again = get(server, "/fn/llm/")
        after = held(server)

    assert again["born"] != first["born"]
    assert len(after) == 2
    assert lost not in after
    assert set(after.values()).isdisjoint(before.values())
    visible = again["env"]["CUDA_VISIBLE_DEVICES"].split(",")
    # Beside a lost GPU numbers may mean others.
    assert sorted(visible) == sorted(after)


def test_a_killed_server_leaves_its_replicas_on_all_gpus(tmp_path: Path) -> None:
    """The next server adopts the replica with all of its GPUs, and gives none of them to another
    function."""
    with box(tmp_path) as (server, _):
        deploy(server, "llm", "--gpus", "2")
        deploy(server, "other", "--gpus", "2")
        first = get(server, "/fn/llm/")
        before = held(server).keys()
        server.kill()
        server.start()
        again = get(server, "/fn/llm/")
        other = get(server, "/fn/other/")
        after = held(server)
        decisions = get(server, "/admin/v1/functions/llm/why")["decisions"]

    assert (again["born"], again["env"]) == (first["born"], first["env"]), decisions
    mine, others = (set(one["env"]["CUDA_VISIBLE_DEVICES"].split(",")) for one in (again, other))
    assert mine.isdisjoint(others)
    assert len(after) == 4
    assert before <= after.keys()
