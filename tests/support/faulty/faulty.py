"""An HTTP server with a behaviour per path, right and wrong ones: `python faulty.py --port PORT`.

Standard library only. `answers.py` has the right behaviours, `lies.py` the wrong ones, `lives.py`
the faults of the process. `--help` lists the options.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import time

import answers
import lies
import lives
from tally import Tally
from websocket import websocket
from wire import HEAD_MAX, Exchange, Gone, Malformed, parse

PATHS = {**answers.PATHS, **lies.PATHS, "/ws": websocket}
BACKLOG = 1024


class Server:
    """The server. `ready_s`: the monotonic time until which it answers 503."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._tally = Tally()
        self._seen = -1
        if given.seen:
            self._seen = os.open(given.seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._ready_s = time.monotonic() + given.ready_after
        if given.never_ready:
            self._ready_s = float("inf")

    async def serve(self) -> None:
        """Listen and serve until the process ends."""
        if self._given.listen_after:
            await asyncio.sleep(self._given.listen_after)
        port = self._given.port + (1 if self._given.elsewhere else 0)
        made = asyncio.start_server(
            self._connected, self._given.host, port, limit=HEAD_MAX, backlog=BACKLOG
        )
        async with await made as server:
            print(server.sockets[0].getsockname()[1], flush=True)
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tally.connections += 1
        if self._given.answers_first:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nunasked!")
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, Gone, asyncio.IncompleteReadError):
            pass
        except asyncio.LimitOverrunError:
            self._tally.malformed.append(f"a head over {HEAD_MAX} bytes")
        except Malformed as error:
            self._tally.malformed.append(str(error))
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; return whether another may follow on the connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        request = parse(head[:-4])
        self._tally.saw(request.target, request.get("token"))
        if self._seen >= 0:
            os.write(self._seen, f"{request.get('token')}\n".encode())
        own = {"Server-Name": self._given.name, "Token": request.get("token")}
        exchange = Exchange(request, reader, writer, own if self._given.name else {})
        if time.monotonic() < self._ready_s:
            await exchange.answer(b"not yet\n", 503)
        elif handler := PATHS.get(request.path.removeprefix(self._given.prefix)):
            await handler(exchange, self._tally)
        else:
            await exchange.whole()
            await exchange.answer(b"no such path\n", 404)
        return exchange.is_read and not exchange.is_over and not writer.is_closing()


def main() -> None:
    """Parse the options and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--prefix", default="", help="prefix that paths may have")
    parser.add_argument("--name", default="", help="name that answers have, with their token")
    parser.add_argument("--seen", default="", help="file that gets the token of each request")
    lives.add_options(parser)
    given = parser.parse_args()
    lives.begin(given)
    asyncio.run(Server(given).serve())


if __name__ == "__main__":
    main()
