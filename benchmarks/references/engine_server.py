"""A typical server without a gateway: aiohttp and ONNX Runtime in one process, one call per run.

`python -m benchmarks.references.engine_server MODEL PATH`; it prints its port. Bodies are JSON or
npy. Runs block the event loop, which is the cheapest way for small models.
"""

from __future__ import annotations

import asyncio
import io
import sys
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
import uvloop
from aiohttp import web

CLIENT_MAX = 64 * 2**20


def application(model: str, path: str) -> web.Application:
    """Return an application with one route and one session with one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    outputs = [node.name for node in session.get_outputs()]

    async def infer(request: web.Request) -> web.Response:
        body = await request.read()
        if request.content_type == "application/x-npy":
            value: Any = np.load(io.BytesIO(body))
        else:
            value = np.array(msgspec.json.decode(body)["inputs"][name], np.float32)
        arrays = session.run(outputs, {name: value})
        answer = {key: array.tolist() for key, array in zip(outputs, arrays, strict=True)}
        content = msgspec.json.encode({"outputs": answer})
        return web.Response(body=content, content_type="application/json")

    app = web.Application(client_max_size=CLIENT_MAX)
    app.router.add_post(path, infer)
    return app


async def serve(model: str, path: str) -> None:
    """Serve until the process ends."""
    runner = web.AppRunner(application(model, path), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2]))
