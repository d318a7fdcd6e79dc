"""Tests of functions in other precision: a real server, its trials, and what answers."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from aiohttp import ClientSession
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

from runtime_image.proc import read_stat
from tests.support.caller import Caller
from tests.support.process_server import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

DIGITS = Path(__file__).parent.parent.parent / "functions" / "digits"
SCANS = (load_digits().images[:120] / 16).astype(np.float32)
WIDTH = 64
LOUD = np.float32(1000.0)
NARROW = "schema = 1\n"

Array = npt.NDArray[Any]


def packed(**arrays: Array) -> bytes:
    """Return the content of a .npz file."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def optimise(precision: str) -> str:
    return f'[optimise]\nprecision = "{precision}"\nsamples = "samples.npz"\n'


def digits(precision: str) -> dict[str, bytes]:
    """Return the files of the ready-made function in that precision."""
    manifest = (DIGITS / "function.toml").read_text().replace('image = "@seven.png"', "")
    return {
        "digits.onnx": (DIGITS / "digits.onnx").read_bytes(),
        "samples.npz": packed(image=SCANS),
        "function.toml": f"{manifest}\n{optimise(precision)}".encode(),
    }


def loud() -> tuple[bytes, Array]:
    """Return a model that 8 bits break, and samples: one input is a thousand times as large as the
    others and decides nothing, but the scale of the integers is its."""
    random = np.random.default_rng(7)
    weights = random.standard_normal((WIDTH, 8)).astype(np.float32)
    weights[0] = 0.0
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "loud",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    samples = random.uniform(-1, 1, (120, WIDTH)).astype(np.float32)
    samples[:, 0] = LOUD
    return model.SerializeToString(), samples


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with server_process(tmp_path / "data", environment={"FN_CPU_SLOTS": "2"}) as found:
        yield found


@pytest.fixture
async def caller(server: ServerProcess) -> AsyncIterator[Caller]:
    async with ClientSession(headers=server.headers) as session:
        yield Caller(server.url, server.token, session)


def served_file(server: ServerProcess, revision: dict[str, Any], original: Path) -> Path:
    """Return the file that a revision is served by: that of its candidate, or the original."""
    file = revision["profile"]["optimised"]["file"]
    if file is None:
        return original
    assert file["path"] == ".optimised/model.onnx"
    return server.data / "blobs" / file["sha256"][:2] / str(file["sha256"])


def outputs(model: Path, scan: Array) -> Array:
    """Return the probabilities of ONNX Runtime alone."""
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    found: Array = session.run(["probabilities"], {"image": scan[None]})[0]
    return found


async def answered(caller: Caller, name: str, scan: Array) -> Array:
    """Return the probabilities of an answer."""
    answer = await caller.call(name, {"inputs": {"image": [scan.tolist()]}})
    assert answer.status == 200, answer.body
    return np.asarray(answer.json()["outputs"]["probabilities"], np.float32)


async def test_the_chosen_candidate_answers(server: ServerProcess, caller: Caller) -> None:
    """`auto` and `int8` of one bundle are revisions beside each other. Each answers as its own file
    does, also from a cold start of a new server, and a rollback brings the other one back."""
    for precision in ("auto", "int8"):
        await caller.deploy(digits(precision), name="digits")

    shown = await caller.function("digits")
    first, second = shown["revisions"]
    table = shown["precision"]
    assert table == second["profile"]["optimised"]["table"]
    assert table["chosen"] in ("int8", "int8-dynamic")
    rows = {row["name"]: row for row in table["candidates"]}
    assert rows["original"]["why_not"]
    assert rows[table["chosen"]]["cosine"] > 0.99
    assert rows[table["chosen"]]["file_bytes"] < rows["original"]["file_bytes"]
    judged = {row["name"] for row in first["profile"]["optimised"]["table"]["candidates"]}
    assert judged == {"original", "fp16", "int8", "int8-dynamic"}

    files = [served_file(server, one, DIGITS / "digits.onnx") for one in (first, second)]
    apart = [np.abs(np.subtract(*[outputs(file, scan) for file in files])).max() for scan in SCANS]
    scan = SCANS[int(np.argmax(apart))]
    for name, file in (("digits@1", files[0]), ("digits@2", files[1]), ("digits", files[1])):
        np.testing.assert_allclose(await answered(caller, name, scan), outputs(file, scan), 1e-3)

    assert server.stop() == 0
    server.start()
    again = Caller(server.url, server.token, caller.session)
    await again.admin("POST", "/functions/digits/sleep")
    await again.until_shown("digits", state="cold")
    np.testing.assert_allclose(
        await answered(again, "digits", scan), outputs(files[1], scan), 1e-3, 1e-5
    )
    rollback = await again.admin("POST", "/functions/digits/rollback", {"to": 1})
    assert (await again.ended(rollback.json())).json()["state"] == "done"
    shown = await again.function("digits")
    assert shown["precision"] == first["profile"]["optimised"]["table"]
    np.testing.assert_allclose(
        await answered(again, "digits", scan), outputs(files[0], scan), 1e-3, 1e-5
    )
    text = server.fnctl("show", "digits").stdout
    assert "judged by" in text
    assert "int8-dynamic" in text


async def test_a_killed_server_makes_the_candidates_again(
    server: ServerProcess, caller: Caller, tmp_path: Path
) -> None:
    """SIGKILL of the server while a child of the trial makes or measures a candidate: the next
    server ends both, tries the model again, and the deploy is done."""
    folder = tmp_path / "digits"
    folder.mkdir()
    for name, content in digits("auto").items():
        (folder / name).write_bytes(content)
    operation = server.fnctl_json("deploy", str(folder), "--name", "digits", "--no-wait")

    before: dict[int, int] = {}

    async def is_measuring() -> bool:
        before.update(children(server))
        return bool(before)

    await caller.until(is_measuring)
    trials = {id for id, pid in server.replica_processes().items() if pid in before.values()}
    assert len(trials) == 1
    server.kill()
    server.start()

    again = Caller(server.url, server.token, caller.session)
    ended = (await again.ended(operation)).json()
    assert ended["state"] == "done", ended
    assert (await again.function("digits"))["precision"]["candidates"]
    assert before.keys().isdisjoint(children(server))
    assert trials.isdisjoint(server.replica_processes())
    assert [path for id in trials for path in server.data.rglob(id) if path.is_dir()] == []


def children(server: ServerProcess) -> dict[int, int]:
    """Return the pids of the children in which trials of this server work on candidates, with those
    of the trials."""
    root, found = os.fsencode(server.data), {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            if b"verification.precision" in command and root in command:
                stat = read_stat(str(entry))
                if stat is not None:
                    found[int(entry.name)] = stat.parent
    return found


async def test_a_model_that_is_broken_by_it_is_refused(
    server: ServerProcess, caller: Caller
) -> None:
    """The refusal has the figures, and the earlier revision goes on answering. With `auto` the same
    model is served as it is, and its table has the figures."""
    model, samples = loud()
    files = {"loud.onnx": model, "samples.npz": packed(x=samples)}
    output = '[output]\ntensor = "y"\ntop_k = 1\n'
    await caller.deploy(files, name="loud", manifest=NARROW + output)
    body = {"inputs": {"x": samples[:1].tolist()}}
    before = (await caller.call("loud", body)).json()

    refused = await caller.try_deploy(
        files, name="loud", manifest=NARROW + output + optimise("int8")
    )

    operation = refused.json()
    assert operation["state"] == "failed", operation
    reason = operation["error"]["detail"]
    assert "int8" in reason
    assert "output y column " in reason
    shown = await caller.function("loud")
    assert (shown["revision"], shown["precision"]) == ("loud@1", None)
    assert (await caller.call("loud", body)).json() == before

    await caller.deploy(files, name="loud", manifest=NARROW + output + optimise("auto"))
    table = (await caller.function("loud"))["precision"]
    whys = {row["name"]: row["why_not"] for row in table["candidates"]}
    assert table["chosen"] in ("original", "fp16")
    assert whys["int8"]
    assert whys["int8-dynamic"]
    row = next(row for row in table["candidates"] if row["name"] == "int8")
    assert row["same_label"] < 0.99
