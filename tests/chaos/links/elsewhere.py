"""A TLS server of the standard library that answers nobody: attackers who attack it cost this
machine what they cost at a door, and hit nothing. `python -m tests.chaos.links.elsewhere FOLDER`
listens; with `open`, it welcomes everybody, which attackers must notice."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from runtime_image.contract.enrolment import SERVER_NAME
from runtime_image.contract.link import Kind
from runtime_image.link.frames import pack
from tests.chaos.links import identities
from tests.support.small_authority import authority, issued

PATIENCE_S: Final = 5.0


@asynccontextmanager
async def elsewhere(folder: Path, mode: str = "closed") -> AsyncIterator[Path]:
    """Run one; the path of its target."""
    own = folder / "elsewhere"
    own.mkdir()
    process = await asyncio.create_subprocess_exec(
        "nice",
        sys.executable,
        "-m",
        "tests.chaos.links.elsewhere",
        str(own),
        mode,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"listening\n"
        yield own / "target.json"
    finally:
        process.kill()
        await process.wait()


async def main(folder: Path, mode: str) -> None:
    """Listen until killed."""
    genuine = authority()
    for name, identity in identities.hostile(genuine, "a", "b", 1).items():
        identity.write(folder, name)
    (folder / "authority.pem").write_text(genuine.pem)
    issued(genuine, SERVER_NAME).write(folder, "own server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / "own server.pem")
    context.num_tickets = 0
    if mode == "closed":
        context.load_verify_locations(folder / "authority.pem")
        context.verify_mode = ssl.CERT_OPTIONAL

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await reader.read(1)
                if mode == "open":
                    writer.write(b"".join(pack(Kind.WELCOME)))
                    await writer.drain()
        except (OSError, TimeoutError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(
        answer, "127.0.0.1", 0, ssl=context, ssl_handshake_timeout=PATIENCE_S, backlog=1024
    )
    port = server.sockets[0].getsockname()[1]
    target = {
        "host": "127.0.0.1",
        "port": port,
        "server_name": SERVER_NAME,
        "folder": str(folder),
        "good": "a",
        "good_token": "11" * 32,
        "used_token": "33" * 32,
        "file": "ab" * 32,
    }
    (folder / "target.json").write_text(json.dumps(target))
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
