"""The least that a server in Python needs to run a session for the Open Inference Protocol.

`python -m benchmarks.references.bare_v2 rest|grpc MODEL`; it prints its port. It reads nothing of a
message but its tensor, of a known size, and checks nothing. Runs block the event loop, which is the
cheapest way for small models.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio
import msgspec
import numpy as np
import onnxruntime as ort
import uvloop
from aiohttp import web

from benchmarks.loading.grpc_calls import METHOD

DATATYPES = {np.dtype(np.int64): "INT64", np.dtype(np.float32): "FP32"}
LENGTH = "Inference-Header-Content-Length"


class Session:
    """A session with one thread, for one input of float32 with a fixed shape."""

    def __init__(self, model: str) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        [node] = self._session.get_inputs()
        self._name, self._shape = node.name, (1, *node.shape[1:])
        self._bytes = 4 * int(np.prod(self._shape))
        self.outputs = [output.name for output in self._session.get_outputs()]

    def run(self, values: Any) -> dict[str, Any]:
        """Run flat values, or the bytes at the end of a message."""
        if isinstance(values, bytes):
            array = np.frombuffer(values[-self._bytes :], np.float32)
        else:
            array = np.array(values, np.float32)
        arrays = self._session.run(self.outputs, {self._name: array.reshape(self._shape)})
        return dict(zip(self.outputs, arrays, strict=True))


def head(outputs: Mapping[str, Any], *, is_binary: bool) -> dict[str, Any]:
    """Return the JSON of an answer."""
    items: list[dict[str, Any]] = []
    for name, value in outputs.items():
        item = {"name": name, "shape": value.shape, "datatype": DATATYPES[value.dtype]}
        if is_binary:
            item["parameters"] = {"binary_data_size": value.nbytes}
        else:
            item["data"] = value.ravel().tolist()
        items.append(item)
    return {"model_name": "digits", "model_version": "1", "outputs": items}


async def rest(session: Session) -> int:
    """Serve JSON and binary bodies; return the port."""

    async def infer(request: web.Request) -> web.Response:
        body = await request.read()
        if LENGTH in request.headers:
            outputs = session.run(body)
            text = msgspec.json.encode(head(outputs, is_binary=True))
            raw = b"".join([text, *(value.tobytes() for value in outputs.values())])
            return web.Response(body=raw, headers={LENGTH: str(len(text))})
        asked = msgspec.json.decode(body)
        outputs = session.run(asked["inputs"][0]["data"])
        return web.json_response(body=msgspec.json.encode(head(outputs, is_binary=False)))

    app = web.Application()
    app.router.add_post("/v2/models/digits/infer", infer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return int(runner.addresses[0][1])


async def remote(session: Session) -> int:
    """Serve gRPC; return the port. Answers have the raw tensors only."""

    async def infer(message: bytes, _context: Any) -> bytes:
        parts = []
        for value in session.run(message).values():
            raw = value.tobytes()
            parts.append(b"\x32%c%b" % (len(raw), raw))  # raw_output_contents, below 128 bytes
        return b"".join(parts)

    service, _, method = METHOD.strip("/").partition("/")
    handler = grpc.unary_unary_rpc_method_handler(infer)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _kept.append(server)
    return port


_kept: list[Any] = []
"""Servers stop when they are collected."""


async def serve(kind: str, model: str) -> None:
    """Serve until the process ends."""
    port = await {"rest": rest, "grpc": remote}[kind](Session(model))
    print(json.dumps(port), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2]))
