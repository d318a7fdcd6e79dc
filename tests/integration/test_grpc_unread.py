"""Clients of gRPC that do not read their answers: counted, and cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.grpc.request import REQUEST
from gateway.unsent import STILL_S, UnsentAnswers
from tests.support import models
from tests.support.grpc_server import free_port
from tests.support.server import ServingServer, serving

pytestmark = pytest.mark.slow

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
ROWS = 100_000
ANSWER_BYTES = ROWS * models.WIDTH * 4


def request() -> bytes:
    """Return a request whose answer is larger than the window of a client that reads nothing."""
    made = REQUEST(model_name="add", raw_input_contents=[bytes(ANSWER_BYTES)])
    made.inputs.add(name="x", datatype="FP32", shape=[ROWS, models.WIDTH])
    return bytes(made.SerializeToString())


def answers_of(server: ServingServer) -> UnsentAnswers:
    """Return the unsent answers of a server's gateway."""
    return server.gateway.invoker.body_budget.answers


async def read_all(call: Any) -> None:
    """Read a stream to its end. Raises AioRpcError."""
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_stream_that_is_not_read_is_counted_and_cut(tmp_path: Path) -> None:
    """Its answers are held bytes; 30 s without progress end its connection, which frees them."""
    port = free_port()
    async with (
        serving(tmp_path, grpc_port=port) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        await server.deploy(models.add_one(tmp_path), name="add")
        answers = answers_of(server)

        async def has_unsent() -> bool:
            return answers.bytes > 0

        call: Any = channel.stream_stream(STREAM)()
        for _ in range(3):
            await call.write(request())
        await server.until(has_unsent)
        clock = answers.clock
        assert answers.sweep() == 0
        answers.clock = lambda: clock() + STILL_S

        assert answers.sweep() == 1
        assert answers.bytes == 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_all(call)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
