"""The reference server: aiohttp on uvloop, reads the body and answers a fixed number of bytes.

`python -m benchmarks.hello PORT [--path PATH] [--answer BYTES] [--client-max BYTES]`; it prints its
port.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Awaitable, Callable

import uvloop
from aiohttp import web

PATH = "/fn/tiny"
ANSWER = 100
CLIENT_MAX = 64 * 2**20


def answering(size: int) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return a handler that reads the body and answers `size` bytes."""
    body = b"x" * size

    async def hello(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=body)

    return hello


async def serve(port: int, path: str, answer: int, client_max: int) -> None:
    """Serve until the process ends."""
    # Clients that disconnect in the middle of a body are expected.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    app = web.Application(client_max_size=client_max)
    app.router.add_post(path, answering(answer))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hello", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--path", default=PATH)
    parser.add_argument("--answer", type=int, default=ANSWER, help="bytes of an answer")
    parser.add_argument("--client-max", type=int, default=CLIENT_MAX, help="bytes of a body")
    given = parser.parse_args()
    uvloop.run(serve(given.port, given.path, given.answer, given.client_max))
