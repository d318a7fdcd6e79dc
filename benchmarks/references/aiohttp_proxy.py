"""A streaming reverse proxy of aiohttp on both sides, on uvloop: `... PORT UPSTREAM_PORT`.

It prints its port.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

DROPPED = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host"}
PIECE = 1 << 16


def proxying(session: ClientSession, upstream: int) -> web.Application:
    """Return the application that sends every request to port `upstream`."""

    async def proxy(request: web.Request) -> web.StreamResponse:
        sent = {name: value for name, value in request.headers.items() if _is_kept(name)}
        body = request.content.iter_chunked(PIECE) if request.can_read_body else None
        url = f"http://127.0.0.1:{upstream}{request.raw_path}"
        async with session.request(request.method, url, headers=sent, data=body) as got:
            kept = {name: value for name, value in got.headers.items() if _is_kept(name)}
            answer = web.StreamResponse(status=got.status, headers=kept)
            await answer.prepare(request)
            async for piece in got.content.iter_any():
                await answer.write(piece)
            await answer.write_eof()
            return answer

    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_route("*", "/{path:.*}", proxy)
    return app


def _is_kept(name: str) -> bool:
    return name.lower() not in DROPPED


async def serve(port: int, upstream: int) -> None:
    """Serve until the process ends."""
    # Clients that disconnect in the middle of a body are expected.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    connector, timeout = TCPConnector(limit=0), ClientTimeout(total=None)
    async with ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False
    ) as session:
        runner = web.AppRunner(proxying(session, upstream), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
