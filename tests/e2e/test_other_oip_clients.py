"""Tests of the Open Inference Protocol by KServe's clients, MLServer's command, and a generic
client of gRPC; they install much: `make test-clients`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_gate import ask
from tests.support.process_server import ServerProcess, server_process
from tests.support.server_environment import environment_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif("FN_TEST_CLIENTS" not in os.environ, reason="make test-clients runs it"),
]

ROOT = Path(__file__).parent.parent.parent
REQUIREMENTS = ROOT / "tests" / "support" / "clients"
MODEL = ROOT / "functions" / "digits" / "digits.onnx"
INSTALL_S = 600.0
RUN_S = 120.0
IMAGE = [(at * 7 % 64) / 64 for at in range(64)]
KSERVE = """
import asyncio, json, sys
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

base, address, key, image = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
headers = {"Authorization": f"Bearer {key}"}
metadata = (("authorization", f"Bearer {key}"),)
values = np.array(image, np.float32).reshape(1, 8, 8)


def asked(binary, outputs):
    tensor = InferInput("image", [1, 8, 8], "FP32")
    tensor.set_data_from_numpy(values, binary_data=binary)
    wanted = [RequestedOutput(name, parameters={"binary_data": binary}) for name in outputs]
    return InferRequest("digits", [tensor], request_outputs=wanted or None)


def shown(answer):
    return {one.name: one.as_numpy().tolist() for one in answer.outputs}


async def main():
    said = {}
    rest = InferenceRESTClient(RESTConfig(protocol="v2"))
    said["rest live"] = await rest.is_server_live(base)
    said["rest ready"] = await rest.is_server_ready(base)
    said["rest model"] = await rest.is_model_ready(base, "digits", headers=headers)
    for form, binary in (("json", False), ("binary", True)):
        for outputs in ([], ["label"]):
            got = await rest.infer(base, asked(binary, outputs), "digits", headers=headers)
            said[f"rest {form} {len(outputs)}"] = shown(got)
    await rest.close()
    async with InferenceGRPCClient(address) as grpc:
        said["grpc live"] = await grpc.is_server_live()
        said["grpc ready"] = await grpc.is_server_ready()
        said["grpc model"] = await grpc.is_model_ready("digits", headers=metadata)
        for form, binary in (("typed", False), ("raw", True)):
            said[f"grpc {form}"] = shown(await grpc.infer(asked(binary, []), headers=metadata))
    print(json.dumps(said))


asyncio.run(main())
"""
GENERIC = """
import json, struct, sys
import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

address, key, image = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
with grpc.insecure_channel(address) as channel:
    database = ProtoReflectionDescriptorDatabase(channel)
    services = list(database.get_services())
    pool = DescriptorPool(database)
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    method = service.FindMethodByName("ModelInfer")
    asked = GetMessageClass(method.input_type)(model_name="digits")
    asked.inputs.add(name="image", datatype="FP32", shape=[1, 8, 8])
    asked.raw_input_contents.append(struct.pack("<64f", *image))
    call = channel.unary_unary(
        f"/{service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    answer = call(asked, metadata=(("authorization", f"Bearer {key}"),), timeout=60)
    places = {one.name: place for place, one in enumerate(answer.outputs)}
    [label] = struct.unpack("<q", answer.raw_output_contents[places["label"]])
    methods = sorted(one.name for one in service.methods)
    print(json.dumps({"services": services, "methods": methods, "label": label}))
"""


@dataclass(frozen=True)
class Box:
    """A server with the model `digits`, which a key may call. `programs`: by environment."""

    server: ServerProcess
    key: str
    address: str
    label: int
    probabilities: list[float]

    async def go_cold(self) -> None:
        """Let the next call start the model."""
        await asyncio.to_thread(ask, self.server, "POST", "functions/digits/sleep")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A server with both ports and two gateway processes."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = int(reserved.getsockname()[1])
    folder = tmp_path_factory.mktemp("oip")
    options = ("--workers", "2", "--grpc-port", str(port))
    with server_process(folder / "data", *options) as server:
        server.fnctl_json("deploy", str(MODEL), "--name", "digits")
        body = folder / "image.json"
        body.write_text(json.dumps({"inputs": {"image": [np_rows(IMAGE)]}}))
        outputs = server.fnctl_json("invoke", "digits", "-d", f"@{body}")["outputs"]
        key = ask(server, "POST", "keys", {"scopes": ["invoke"]})["secret"]
        label, probabilities = outputs["label"][0], outputs["probabilities"][0]
        yield Box(server, key, f"127.0.0.1:{port}", label, probabilities)
        complaints = list(server.complaints)
    assert complaints == []


@pytest.fixture(scope="module")
def kserve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment with KServe's clients and that of reflection."""
    folder = tmp_path_factory.mktemp("kserve") / "environment"
    return environment_of(REQUIREMENTS / "kserve.txt", folder, INSTALL_S)


def np_rows(values: list[float]) -> list[list[float]]:
    """Return 64 values as 8 rows."""
    return [values[at : at + 8] for at in range(0, 64, 8)]


async def said(*words: str) -> Any:
    """Run a program, and return the JSON of its last line."""
    run = partial(subprocess.run, capture_output=True, text=True, timeout=RUN_S)
    done = await asyncio.to_thread(run, words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


async def test_kserves_clients(box: Box, kserve: Path) -> None:
    """KServe's inference clients get the same answer by REST, as JSON and binary, and by gRPC; the
    first call wakes the model."""
    await box.go_cold()
    words = (str(kserve / "python"), "-c", KSERVE, box.server.url, box.address, box.key)

    found = await said(*words, json.dumps(IMAGE))

    for api in ("rest", "grpc"):
        assert [found[f"{api} {what}"] for what in ("live", "ready", "model")] == [True] * 3
    whole = [found[name] for name in ("rest json 0", "rest binary 0", "grpc typed", "grpc raw")]
    for answer in whole:
        assert answer["label"] == [box.label]
        assert answer["probabilities"][0] == pytest.approx(box.probabilities, rel=1e-6)
    assert found["rest json 1"] == found["rest binary 1"] == {"label": [box.label]}


async def test_a_client_that_knows_the_service_by_reflection_only(box: Box, kserve: Path) -> None:
    """A generic client lists the services, and calls a model whose messages it learned from the
    server."""
    await box.go_cold()
    words = (str(kserve / "python"), "-c", GENERIC, box.address, box.key, json.dumps(IMAGE))

    found = await said(*words)

    assert "inference.GRPCInferenceService" in found["services"]
    assert {"ModelInfer", "ModelMetadata", "RepositoryIndex"} <= set(found["methods"])
    assert found["label"] == box.label


async def test_mlservers_command(tmp_path: Path, box: Box) -> None:
    """`mlserver infer` sends a file of requests in micro-batches, as JSON and binary, and writes
    the answer of each; the first call wakes the model."""
    programs = environment_of(REQUIREMENTS / "mlserver.txt", tmp_path / "environment", INSTALL_S)
    await box.go_cold()
    tensor = {"name": "image", "shape": [1, 8, 8], "datatype": "FP32", "data": IMAGE}
    lines = [json.dumps({"id": f"r{number}", "inputs": [tensor]}) for number in range(7)]
    (tmp_path / "asked.json").write_text("\n".join(lines) + "\n")
    words = [str(programs / "mlserver"), "infer", "-u", box.server.url.removeprefix("http://")]
    words += ["-m", "digits", "-i", str(tmp_path / "asked.json"), "-s", "3", "-w", "2"]
    words += ["-H", f"Authorization: Bearer {box.key}"]

    for options in ([], ["-b"]):
        output = tmp_path / f"answers{len(options)}.json"
        run = partial(subprocess.run, capture_output=True, text=True, timeout=RUN_S)
        done = await asyncio.to_thread(run, [*words, *options, "-o", str(output)])
        assert done.returncode == 0, done.stderr
        answers = [json.loads(line) for line in output.read_text().splitlines()]
        assert sorted(one["id"] for one in answers) == [f"r{number}" for number in range(7)]
        for one in answers:
            outputs = {each["name"]: each["data"] for each in one["outputs"]}
            assert outputs["label"] == [box.label]
            assert outputs["probabilities"] == pytest.approx(box.probabilities, rel=1e-6)
