"""Servers with a port of gRPC, and Triton's client for them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton

from tests.support import models
from tests.support.process_server import ServerProcess, server_process

WIDTH = models.WIDTH


class GrpcServerProcess:
    """A server in its own process. `address`: where it serves gRPC."""

    def __init__(self, http: ServerProcess, port: int) -> None:
        self.http = http
        self.port = port
        self.address = f"127.0.0.1:{port}"

    @property
    def admin(self) -> dict[str, str]:
        """The metadata of an administrator."""
        return {"authorization": f"Bearer {self.http.token}"}

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Open a client of Triton."""
        with triton.InferenceServerClient(self.address) as client:
            yield client

    def deploy(self, model: Path, name: str, *options: str) -> None:
        """Deploy a model, which is cold then."""
        self.http.fnctl_json("deploy", str(model), "--name", name, *options)


def free_port() -> int:
    """Return a port that nothing listens on. Another process may take it before it is used."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def grpc_server(folder: Path, *options: str, **settings: Any) -> Iterator[GrpcServerProcess]:
    """Run a server with a port of gRPC and its data in `folder`.

    Meanwhile gRPC's core stays open in this process: otherwise the first channel of a test opens
    it, and the end of the last one closes it only some time later, which looks like a leak.
    """
    port = free_port()
    kept = grpc.insecure_channel("127.0.0.1:1")  # connects when it is used, which it never is
    try:
        data = folder / "data"
        with server_process(data, "--grpc-port", str(port), *options, **settings) as server:
            yield GrpcServerProcess(server, port)
    finally:
        kept.close()


def rows(*values: float) -> Any:
    """Return an input x with one row for each value."""
    array = np.repeat(np.array(values, np.float32)[:, None], WIDTH, axis=1)
    made = triton.InferInput("x", list(array.shape), "FP32")
    made.set_data_from_numpy(array)
    return made
