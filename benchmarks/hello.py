"""The reference server: aiohttp on uvloop, reads the body and answers 100 bytes."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import web


async def hello(request: web.Request) -> web.Response:
    """Read and answer."""
    await request.read()
    return web.Response(body=b"x" * 100)


async def serve(port: int) -> None:
    """For ever."""
    app = web.Application()
    app.router.add_post("/fn/digits", hello)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
