"""Tests of the main job over HTTP: deploy, call cold, get the answer, scale to zero."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from functions.digits import train
from tests.support import models
from tests.support.process_server import ServerProcess, server_process, wait_end

DIGITS = Path(train.__file__).parent


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with digits deployed and cold."""
    with server_process(tmp_path / "data") as server:
        assert server.fnctl_json("deploy", str(DIGITS))["state"] == "done"
        yield server


def json_form(scan: Any) -> dict[str, Any]:
    """Return the request in short JSON."""
    return {"json": {"inputs": {"image": scan.tolist()}}}


def npy_form(scan: Any) -> dict[str, Any]:
    """Return the request as an .npy file."""
    body = io.BytesIO()
    np.save(body, scan)
    return {"data": body.getvalue(), "headers": {"Content-Type": "application/x-npy"}}


def png_form(scan: Any) -> dict[str, Any]:
    """Return the request as a PNG image."""
    body = io.BytesIO()
    train.picture(scan[0]).save(body, "PNG")
    return {"data": body.getvalue(), "headers": {"Content-Type": "image/png"}}


def v2_form(scan: Any) -> dict[str, Any]:
    """Return the request in the Open Inference Protocol with binary tensors."""
    raw = scan.tobytes()
    tensor = {"name": "image", "shape": list(scan.shape), "datatype": "FP32"}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}]})
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
    return {"data": head.encode() + raw, "headers": headers}


def label(answer: dict[str, Any]) -> int:
    """Return the digit in an answer of either JSON form."""
    outputs = answer["outputs"]
    if isinstance(outputs, dict):
        return int(outputs["label"][0])
    return int(next(tensor["data"][0] for tensor in outputs if tensor["name"] == "label"))


@pytest.mark.slow
@pytest.mark.parametrize("form", [json_form, npy_form, png_form, v2_form])
async def test_every_form_has_the_accuracy_of_onnx_runtime(
    server: ServerProcess, form: Any
) -> None:
    """All 450 held-out scans get exactly the labels of ONNX Runtime in this process."""
    scans, labels = train.held_out()
    session = ort.InferenceSession(str(DIGITS / "digits.onnx"))
    expected = session.run(["label"], {"image": scans})[0]
    async with server.session() as http:

        async def call(index: int) -> int:
            async with http.post("/fn/digits", **form(scans[index : index + 1])) as response:
                assert response.status == 200, await response.text()
                return label(await response.json())

        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(call(index)) for index in range(len(scans))]
    got = np.array([call.result() for call in calls])

    assert len(scans) == 450
    assert (got == expected).all()
    assert (got == labels).mean() == (expected == labels).mean()


@pytest.mark.slow
async def test_a_burst_at_zero_is_one_start_and_runs_as_batches(server: ServerProcess) -> None:
    """500 simultaneous calls of a cold function get 500 right answers from one start, in large
    batches."""
    scans, _ = train.held_out()
    session = ort.InferenceSession(str(DIGITS / "digits.onnx"))
    expected = session.run(["label"], {"image": scans})[0]
    rows: Counter[int] = Counter()
    async with server.session() as http:

        async def call(index: int) -> None:
            body = {"inputs": {"image": [scans[index].tolist()]}}
            async with http.post("/fn/digits", json=body) as response:
                assert response.status == 200, await response.text()
                assert label(await response.json()) == expected[index]
                timing = response.headers["Server-Timing"]
                match = re.search(r'desc="(\d+) rows"', timing)
                assert match is not None
                rows[int(match[1])] += 1

        async with asyncio.TaskGroup() as group:
            for index in range(500):
                group.create_task(call(index % 450))
        why = server.fnctl_json("why", "digits")
        replicas = server.fnctl_json("show", "digits")

    starts = [entry["text"] for entry in why["decisions"] if " on cpu:" in entry["text"]]
    assert len(starts) == 1
    assert replicas["ready"] == 1
    assert sum(rows.values()) == 500
    assert max(rows) >= 32


@pytest.mark.slow
async def test_batching_is_proved_not_assumed(server: ServerProcess, tmp_path: Path) -> None:
    """A model with dependent rows gives every caller its own right answer."""
    model = models.softmax_over_batch(tmp_path)
    deployed = server.fnctl_json("deploy", str(model), "--name", "soft")
    random = np.random.default_rng(0)
    slots = asyncio.Semaphore(64)
    async with server.session() as http:

        async def call(rows: Any) -> None:
            async with (
                slots,
                http.post("/fn/soft", json={"inputs": {"x": rows.tolist()}}) as answer,
            ):
                got = np.array((await answer.json())["outputs"]["y"])
            powers = np.exp(rows - rows.max(axis=0))
            assert np.allclose(got, powers / powers.sum(axis=0), atol=1e-5)

        async with asyncio.TaskGroup() as group:
            for _ in range(640):
                group.create_task(call(random.normal(size=(3, 4)).astype(np.float32)))

    profile = deployed["result"]["profile"]
    assert not profile["batchable"]
    assert profile["why_not"].endswith("Softmax (node 'y') normalises along the rows' axis 0")


@pytest.mark.slow
def test_an_idle_replica_goes_and_the_next_call_wakes_it(server: ServerProcess) -> None:
    """After idle_s the process and its memory are gone, and the next call is cold."""
    assert server.fnctl("deploy", str(DIGITS), "--idle", "0.2").returncode == 0
    first = server.fnctl_json("invoke", "digits", "-i", f"image=@{DIGITS / 'seven.png'}")
    [pid] = server.replica_pids("serve")
    wait_end(os.pidfd_open(pid))

    second = server.fnctl_json("invoke", "digits", "-i", f"image=@{DIGITS / 'seven.png'}")

    assert first["receipt"]["cold"]
    assert second["receipt"]["cold"]
    assert server.replica_pids("serve") != [pid]


@pytest.mark.slow
def test_a_load_longer_than_idle_s_is_not_killed(server: ServerProcess, tmp_path: Path) -> None:
    """A load longer than idle_s is not interrupted: the idle time begins after it."""
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "function.toml").write_text(
        'schema = 1\nname = "slow"\n[runtime]\nengine = "python"\n'
        '[scaling]\nidle_s = 0.1\n[input.x]\nkind = "json"\n'
    )
    (folder / "handler.py").write_text(
        "import threading\n"
        "def load(ctx):\n    threading.Event().wait(2.5)\n"
        "def predict(inputs, ctx):\n    return {'ok': True}\n"
    )
    assert server.fnctl("deploy", str(folder), "--trust").returncode == 0
    answer = server.fnctl_json("invoke", "slow", "-d", '{"inputs": {"x": 1}}')
    why = server.fnctl_json("why", "slow")

    assert answer["outputs"] == {"ok": True}
    assert len([entry for entry in why["decisions"] if " on cpu:" in entry["text"]]) == 1


@pytest.mark.slow
async def test_a_replica_killed_in_flight_costs_no_request(server: ServerProcess) -> None:
    """With the replica killed five times under load, every request gets its right answer."""
    scans, _ = train.held_out()
    session = ort.InferenceSession(str(DIGITS / "digits.onnx"))
    expected = session.run(["label"], {"image": scans})[0]
    answered = 0
    async with server.session() as http:

        async def call(index: int) -> None:
            nonlocal answered
            body = {"inputs": {"image": [scans[index].tolist()]}}
            async with http.post("/fn/digits", json=body) as response:
                assert response.status == 200, await response.text()
                assert label(await response.json()) == expected[index]
                answered += 1

        for _ in range(5):
            async with asyncio.TaskGroup() as group:
                for index in range(200):
                    group.create_task(call(index))
                group.create_task(asyncio.to_thread(kill_one, server))

    assert answered == 1000


def kill_one(server: ServerProcess) -> None:
    """Kill the replica as soon as there is one."""
    for _ in range(2000):
        for pid in server.replica_pids("serve"):
            os.kill(pid, signal.SIGKILL)
            return
    raise AssertionError("no replica came")


@pytest.mark.slow
def test_a_killed_server_finds_its_replica_again(server: ServerProcess) -> None:
    """After kill -9 of the idle server, the next one adopts the replica with its model still
    loaded."""
    sample = f"image=@{DIGITS / 'seven.png'}"
    server.fnctl_json("invoke", "digits", "-i", sample)
    [pid] = server.replica_pids("serve")
    server.kill()
    assert server.replica_pids("serve") == [pid]

    server.start()
    answer = server.fnctl_json("invoke", "digits", "-i", sample)

    assert answer["outputs"]["label"] == [7]
    assert not answer["receipt"]["cold"]
    assert server.replica_pids("serve") == [pid]


@pytest.mark.slow
def test_a_server_killed_during_a_deploy_finishes_it(server: ServerProcess, tmp_path: Path) -> None:
    """After kill -9 during a deploy's verification the store is consistent, and the next server
    completes the deploy."""
    folder = tmp_path / "late"
    folder.mkdir()
    (folder / "function.toml").write_text(
        'schema = 1\nname = "late"\n[runtime]\nengine = "python"\n[input.x]\nkind = "json"\n'
    )
    (folder / "handler.py").write_text(
        "import threading\n"
        "def load(ctx):\n    threading.Event().wait(1)\n"
        "def predict(inputs, ctx):\n    return {'ok': True}\n"
    )
    started = server.fnctl_json("deploy", str(folder), "--trust", "--no-wait")
    orphans = server.replica_pids("trial")
    server.kill()
    server.start()
    done = server.fnctl_json("deploy", str(folder), "--trust")
    names = [item["name"] for item in server.fnctl_json("ls")["items"]]

    assert started["state"] == "running"
    assert done["state"] == "done"
    assert names == ["digits", "late"]
    assert not set(orphans) & set(server.replica_pids())


@pytest.mark.slow
def test_a_killed_trial_is_tried_again(server: ServerProcess, tmp_path: Path) -> None:
    """After kill -9 of the trial replica the deploy succeeds with a second one."""
    folder = tmp_path / "once"
    folder.mkdir()
    (folder / "function.toml").write_text(
        'schema = 1\nname = "once"\n[runtime]\nengine = "python"\n[input.x]\nkind = "json"\n'
    )
    mark = tmp_path / "was here"
    (folder / "handler.py").write_text(
        "import os, signal\n"
        f"def load(ctx):\n    if not os.path.exists({str(mark)!r}):\n"
        f"        open({str(mark)!r}, 'w').close()\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "def predict(inputs, ctx):\n    return {'ok': True}\n"
    )

    done = server.fnctl_json("deploy", str(folder), "--trust")

    assert (done["state"], done["result"]["revision"], mark.exists()) == ("done", "once@1", True)


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_and_no_socket(server: ServerProcess) -> None:
    """After SIGINT the server exits with 0 and leaves neither replicas nor sockets."""
    server.fnctl_json("invoke", "digits", "-i", f"image=@{DIGITS / 'seven.png'}")
    assert server.sockets()

    assert server.stop() == 0
    assert server.replica_pids() == []
    assert server.sockets() == []


@pytest.mark.slow
async def test_foreign_pages_and_hosts_can_neither_deploy_nor_invoke(
    server: ServerProcess,
) -> None:
    """A foreign Origin or Host is refused on both APIs, with and without a token, and starts
    nothing but a standby, which starts at its own time.

    The deploy's trial replica may still be ending.
    """
    before = {*server.replica_pids()}
    async with server.session() as http:
        for path in ("/fn/digits", "/admin/v1/functions/evil/revisions"):
            for headers, status in (
                ({"Origin": "http://evil.example"}, 403),
                ({"Origin": "null"}, 403),
                ({"Host": "evil.example"}, 421),
            ):
                async with http.post(path, json={}, headers=headers) as response:
                    assert response.status == status, path
                    assert "evil.example" in await response.text() or status == 403
    after = {*server.replica_pids()}
    assert after - {*server.replica_pids("standby")} <= before
