"""The gRPC server over real replicas, called by Triton's clients, with one and two workers."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.utils import InferenceServerException

from tests.support import models
from tests.support.grpc_server import GrpcServerProcess, grpc_server, rows
from tests.support.process_server import wait_end
from tests.support.worker_server import until_replaced, watch, worker_pids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ANSWER_S = 30.0
POLLS_MAX = 1000
SLOW_LOOPS = 5_000
"""A call of the function slow takes about 50 ms for each row."""
HANDLER = "def predict(inputs, ctx):\n    return ctx.run(inputs)\n"
"""Runs the model. A trial compares no batches of a handler; those of slow take 12 s of CPU."""


@pytest.fixture(scope="module", params=["1", "2"], ids=["one worker", "two workers"])
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[GrpcServerProcess]:
    """A server with the functions add, cold and slow."""
    folder = tmp_path_factory.mktemp("grpc")
    options = ("--workers", request.param, "--cpu-slots", "3")
    with grpc_server(folder, *options) as server:
        add, slow = models.add_one(folder), folder / "slow"
        slow.mkdir()
        models.slow(slow, SLOW_LOOPS)
        (slow / "handler.py").write_text(HANDLER)
        (slow / "function.toml").write_text('schema = 1\nmodel = "slow.onnx"\n')
        for path, name in ((add, "add"), (slow, "slow"), (add, "cold")):
            server.deploy(path, name, "--trust")
        yield server
        complaints = [line for line in server.http.complaints if "a worker ended" not in line]
        assert not complaints, complaints


def _put(answers: queue.Queue[Any], result: Any, error: Any) -> None:
    """Take one answer of a client's callback."""
    answers.put((result, error))


def code_of(caught: pytest.ExceptionInfo[InferenceServerException]) -> str:
    """Return the status code of an error of Triton's client."""
    return str(caught.value.status()).removeprefix("StatusCode.")


def test_every_call_about_server_and_models(server: GrpcServerProcess) -> None:
    """Triton's client gets each document that this server claims to have."""
    with server.client() as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("cold")
        assert not client.is_model_ready("nobody")
        assert client.get_server_metadata(as_json=True)["name"] == "fngate"
        metadata = client.get_model_metadata("add", as_json=True)
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "4"]}]
        config = client.get_model_config("add", "1").config
        assert (config.name, config.input[0].data_type) == ("add", 11)
        index = client.get_model_repository_index().models
        assert {"add", "cold", "slow"} <= {one.name for one in index}
        client.infer("add", [rows(1)])
        stats = client.get_inference_statistics("add", "1").model_stats
        assert (stats[0].name, stats[0].version) == ("add", "1")
        assert len(client.get_inference_statistics().model_stats) >= 3


def test_models_are_loaded_and_unloaded(server: GrpcServerProcess) -> None:
    """A loaded model is resident; an unloaded one is woken by its next call."""
    with server.client() as client:
        client.load_model("cold")
        client.infer("cold", [rows(1)])
        client.unload_model("cold")
        client.infer("cold", [rows(1)])
        with pytest.raises(InferenceServerException, match="config") as caught:
            client.load_model("cold", config="{}")
        assert code_of(caught) == "INVALID_ARGUMENT"
        with pytest.raises(InferenceServerException, match="no model") as caught:
            client.load_model("nobody")
        assert code_of(caught) == "NOT_FOUND"


def test_shared_memory_is_refused_as_the_protocol_has_it(server: GrpcServerProcess) -> None:
    """Examples unregister everything first, which succeeds; a region cannot be registered."""
    with server.client() as client:
        for kind in ("system", "cuda"):
            assert not getattr(client, f"get_{kind}_shared_memory_status")().regions
            getattr(client, f"unregister_{kind}_shared_memory")()
            getattr(client, f"unregister_{kind}_shared_memory")("any")
        with pytest.raises(InferenceServerException) as caught:
            client.register_system_shared_memory("r", "/r", 8)
        assert code_of(caught) == "UNIMPLEMENTED"
        with pytest.raises(InferenceServerException) as caught:
            client.register_cuda_shared_memory("r", b"aGk=", 0, 8)
        assert code_of(caught) == "UNIMPLEMENTED"
        used = triton.InferInput("x", [1, 4], "FP32")
        used.set_shared_memory("r", 16)
        with pytest.raises(InferenceServerException) as caught:
            client.infer("add", [used])
        assert code_of(caught) == "UNIMPLEMENTED"


def test_settings_are_shown_to_administrators(server: GrpcServerProcess) -> None:
    """They are read with the admin key, and cannot be changed."""
    with server.client() as client:
        with pytest.raises(InferenceServerException) as caught:
            client.get_trace_settings()
        assert code_of(caught) == "UNAUTHENTICATED"
        trace = client.get_trace_settings(headers=server.admin).settings
        assert list(trace["trace_level"].value) == ["OFF"]
        assert client.get_log_settings(headers=server.admin).settings["log_info"].bool_param
        client.update_log_settings({}, headers=server.admin)
        for change in (
            lambda: client.update_trace_settings(
                settings={"trace_rate": "1"}, headers=server.admin
            ),
            lambda: client.update_log_settings({"log_info": False}, headers=server.admin),
        ):
            with pytest.raises(InferenceServerException) as caught:
                change()
            assert code_of(caught) == "INVALID_ARGUMENT"


def test_inferences(server: GrpcServerProcess) -> None:
    """Ids, versions, outputs, compression and deadlines are the client's; y is x + 1."""
    with server.client() as client:
        for options in (
            {},
            {"model_version": "1"},
            {"request_id": "seven"},
            {"outputs": [triton.InferRequestedOutput("y")]},
            {"compression_algorithm": "gzip"},
            {"compression_algorithm": "deflate"},
            {"client_timeout": ANSWER_S},
            {"priority": 1, "timeout": 10_000_000},
            {"headers": {"x-request-id": "mine"}},
            {"parameters": {"own": "parameter"}},
        ):
            result = client.infer("add", [rows(1, 2)], **options)
            assert result.as_numpy("y").tolist() == [[2] * 4, [3] * 4], options
            response = result.get_response()
            assert (response.model_name, response.model_version) == ("add", "1")
            assert response.id == options.get("request_id", "")
        large = rows(*range(100_000))
        assert client.infer("add", [large]).as_numpy("y")[-1, 0] == 100_000
        answers: queue.Queue[Any] = queue.Queue()
        for _ in range(20):
            client.async_infer("add", [rows(1)], partial(_put, answers))
        for _ in range(20):
            result, error = answers.get(timeout=ANSWER_S)
            assert error is None
            assert result.as_numpy("y").tolist() == [[2] * 4]


def test_errors_have_the_codes_of_the_protocol(server: GrpcServerProcess) -> None:
    """The text says what was expected; fngate's own code stands in the trailing metadata."""
    wrong = triton.InferInput("x", [1, 3], "FP32")
    wrong.set_data_from_numpy(np.zeros((1, 3), np.float32))
    with server.client() as client:
        for name, options, inputs, code, said in (
            ("nobody", {}, [rows(1)], "NOT_FOUND", "no model 'nobody'"),
            ("add", {"model_version": "9"}, [rows(1)], "NOT_FOUND", "no version '9'"),
            ("add", {}, [wrong], "INVALID_ARGUMENT", "expected FP32 of shape"),
            ("add", {}, [], "INVALID_ARGUMENT", "expected"),
            (
                "add",
                {"sequence_id": 5},
                [rows(1)],
                "INVALID_ARGUMENT",
                "sequence",
            ),
        ):
            with pytest.raises(InferenceServerException, match=said) as caught:
                client.infer(name, inputs, **options)
            assert code_of(caught) == code
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as raw:
            call(b"\xff", metadata=(("x-request-id", "mine"),), timeout=ANSWER_S)
        sent = dict(raw.value.trailing_metadata())
        assert (sent["fn-problem"], sent["x-request-id"]) == ("bad_request", "mine")
        unknown = channel.unary_unary("/inference.GRPCInferenceService/Nothing")
        with pytest.raises(grpc.RpcError) as raw:
            unknown(b"", timeout=ANSWER_S)
        assert raw.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_deadline_ends_a_call(server: GrpcServerProcess) -> None:
    """The call is cancelled, and the next one finds the replica free."""
    with server.client() as client:
        client.infer("slow", [rows(1)])
        with pytest.raises(InferenceServerException) as caught:
            client.infer("slow", [rows(*range(10))], client_timeout=0.05)
        assert code_of(caught) == "DEADLINE_EXCEEDED"
        assert client.infer("slow", [rows(1)]).as_numpy("y").tolist() == [[1] * 4]


def test_a_stream_answers_each_request_once(server: GrpcServerProcess) -> None:
    """Answers have their requests' ids; an error is one request's, and the stream goes on."""
    answers: queue.Queue[Any] = queue.Queue()
    with server.client() as client:
        client.start_stream(partial(_put, answers))
        for at in range(200):
            client.async_stream_infer(
                "add", [rows(at)], request_id=str(at), enable_empty_final_response=at % 2 == 0
            )
        client.async_stream_infer("nobody", [rows(1)], request_id="bad")
        client.async_stream_infer("add", [rows(7)], request_id="last")
        found = {}
        errors = []
        for _ in range(202):
            result, error = answers.get(timeout=ANSWER_S)
            if error is not None:
                errors.append(str(error))
                continue
            response = result.get_response()
            assert response.parameters["triton_final_response"].bool_param
            found[response.id] = result.as_numpy("y")[0, 0]
        assert errors == ["Unknown model: no model 'nobody'"]
        assert found == {**{str(at): at + 1 for at in range(200)}, "last": 8}
        client.stop_stream()


def test_a_stream_may_end_with_its_first_error(server: GrpcServerProcess) -> None:
    """A client that asks for it gets the status of the request in place of a message."""
    answers: queue.Queue[Any] = queue.Queue()
    with server.client() as client:
        client.start_stream(
            lambda result, error: answers.put(error), headers={"triton_grpc_error": "true"}
        )
        client.async_stream_infer("nobody", [rows(1)])
        error = answers.get(timeout=ANSWER_S)
        assert str(error.status()) == "StatusCode.NOT_FOUND"
        client.stop_stream()


def test_a_stream_that_is_cancelled_leaves_nothing(server: GrpcServerProcess) -> None:
    """Its calls are cancelled, and the function serves the next caller."""
    with server.client() as client:
        client.start_stream(lambda result, error: None)
        for _ in range(5):
            client.async_stream_infer("slow", [rows(1)])
        client.stop_stream(cancel_requests=True)
        assert client.infer("slow", [rows(1)]).as_numpy("y").tolist() == [[1] * 4]


async def test_the_client_for_asyncio(server: GrpcServerProcess) -> None:
    """Its calls and its stream work alike, many at once."""
    async with triton_aio.InferenceServerClient(server.address) as client:
        assert await client.is_model_ready("add")
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(client.infer("add", [rows(at)])) for at in range(50)]
        assert [one.result().as_numpy("y")[0, 0] for one in calls] == list(range(1, 51))

        async def requests() -> Any:
            for at in range(10):
                yield {"model_name": "add", "inputs": [rows(at)], "request_id": str(at)}

        found = {}
        async for result, error in client.stream_infer(requests()):
            assert error is None
            found[result.get_response().id] = result.as_numpy("y")[0, 0]
        assert found == {str(at): at + 1 for at in range(10)}


def test_many_calls_of_a_cold_model_cause_one_start(server: GrpcServerProcess) -> None:
    """All of them wait for the same replica, and each one is answered."""
    with server.client() as client:
        client.unload_model("cold")
        with ThreadPoolExecutor(50) as threads:
            found = threads.map(lambda at: client.infer("cold", [rows(at)]), range(50))
            assert [one.as_numpy("y")[0, 0] for one in found] == list(range(1, 51))


def test_a_generic_client_needs_reflection_only(server: GrpcServerProcess) -> None:
    """The descriptors that the server sends are enough for a call."""
    with grpc.insecure_channel(server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()
        pool = descriptor_pool.DescriptorPool(database)
        service = pool.FindServiceByName("inference.GRPCInferenceService")
        method = service.FindMethodByName("ModelMetadata")
        asked = message_factory.GetMessageClass(method.input_type)(name="add")
        call = channel.unary_unary(f"/{service.full_name}/{method.name}")
        answer = message_factory.GetMessageClass(method.output_type).FromString(
            call(asked.SerializeToString(), timeout=ANSWER_S)
        )
        assert answer.inputs[0].name == "x"


def test_health_is_grpcs_own(server: GrpcServerProcess) -> None:
    """Load balancers ask grpc.health.v1 for the server and for the service."""
    with grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "inference.GRPCInferenceService"):
            found = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=ANSWER_S)
            assert found.status == health_pb2.HealthCheckResponse.SERVING


def test_a_killed_worker_is_replaced(server: GrpcServerProcess) -> None:
    """New connections reach the worker that takes its place, and the other one."""
    assert server.http.process is not None
    pids = worker_pids(server.http.process.pid)
    if not pids:
        pytest.skip("this server has no workers")
    ended = watch(pids[0])
    os.kill(pids[0], signal.SIGKILL)
    wait_end(ended)
    until_replaced(server.http, pids[0])
    for _ in range(20):
        with server.client() as client:
            assert client.infer("add", [rows(1)], client_timeout=ANSWER_S).as_numpy("y")[0, 0] == 2


def test_a_shutdown_answers_what_was_accepted(server: GrpcServerProcess) -> None:
    """Calls and requests of streams are answered. The last test of a server, which it ends."""
    answers: queue.Queue[Any] = queue.Queue()
    with server.client() as client, ThreadPoolExecutor(3) as threads:
        client.infer("slow", [rows(1)])
        before = _accepted(server)
        client.start_stream(partial(_put, answers))
        client.async_stream_infer("slow", [rows(1)], request_id="s")
        calls = [threads.submit(client.infer, "slow", [rows(2)]) for _ in range(3)]
        for _ in range(POLLS_MAX):
            if _accepted(server) == before + 4:
                break
        assert server.http.stop() == 0
        assert [one.result().as_numpy("y")[0, 0] for one in calls] == [2, 2, 2]
        result, error = answers.get(timeout=ANSWER_S)
        assert error is None
        assert result.get_response().id == "s"
        _, error = answers.get(timeout=ANSWER_S)
        assert str(error.status()) == "StatusCode.UNAVAILABLE"
        client.stop_stream()


def _accepted(server: GrpcServerProcess) -> float:
    """Return the number of calls accepted since the server's start."""
    with urllib.request.urlopen(f"{server.http.url}/metrics", timeout=ANSWER_S) as page:
        for line in page:
            if line.startswith(b"fngate_accepted_total "):
                return float(line.split()[1])
    raise AssertionError("no fngate_accepted_total")
