"""Tests of a server with few file descriptors and many idle clients."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path

import pytest

from tests.chaos.calls import client
from tests.support import models
from tests.support.process_server import FNCTL, server_process

ROW = {"inputs": {"x": [[1.0, 2.0, 3.0, 4.0]]}}
FEW = (
    "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256));"
    " os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_idle_connections_take_no_descriptor_that_is_needed(tmp_path: Path) -> None:
    """With 256 descriptors and 400 idle connections, cold and warm calls are answered, a deploy
    succeeds, and nothing is logged as an error."""
    program = (sys.executable, "-c", FEW, FNCTL)
    with (
        server_process(tmp_path / "data", program=program) as server,
        contextlib.ExitStack() as all,
    ):
        for number in range(400):
            sock = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
            all.callback(sock.close)
            if number % 2:
                with contextlib.suppress(OSError):
                    sock.sendall(b"POST /fn/x HTTP/1.1\r\n")
        async with client(server) as caller:
            await caller.deploy(models.add_one(tmp_path), name="add-one")
            for _ in range(20):
                assert (await caller.call("add-one", ROW)).status == 200
        assert list(server.complaints) == []
