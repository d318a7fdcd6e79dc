"""Triton's HTTP client in both of its forms, called alike."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

UNTIL_S = 60.0
MODULES = {"http": "tritonclient.http", "aio": "tritonclient.http.aio"}
"""Modules by form; they take a second to import: not while tests are collected."""


class TritonClient:
    """A client whose methods are called alike in both forms: the coroutines of "aio" are run to
    their ends. `module` has the classes of inputs and outputs."""

    def __init__(self, module: Any, made: Any, runner: asyncio.Runner) -> None:
        self.module = module
        self._made = made
        self._runner = runner

    def methods(self) -> set[str]:
        """Return the names of all public methods."""
        return {name for name, _ in inspect.getmembers(self._made, callable) if name[0] != "_"}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._made, name)

        def call(*given: Any, **named: Any) -> Any:
            found = method(*given, **named)
            return self._runner.run(found) if inspect.iscoroutine(found) else found

        return call

    def input(self, name: str, array: Any, *, is_binary: bool = True) -> Any:
        """Return an input with the data of an array."""
        dtype = {"f": "FP32", "O": "BYTES"}[np.asarray(array).dtype.kind]
        made = self.module.InferInput(name, list(array.shape), dtype)
        made.set_data_from_numpy(array, binary_data=is_binary)
        return made


@contextmanager
def triton_client(form: str, url: str) -> Iterator[TritonClient]:
    """Open a client of a server's URL; `form` is "http" or "aio"."""
    module = importlib.import_module(MODULES[form])
    address = url.removeprefix("http://")

    async def make() -> Any:
        return module.InferenceServerClient(address)

    with asyncio.Runner() as runner:
        if form == "aio":
            made = runner.run(make())
        else:
            made = module.InferenceServerClient(address, concurrency=4)
        client = TritonClient(module, made, runner)
        try:
            yield client
        finally:
            client.close()
            if form == "http":
                # The event loop of the client's threads, which nothing else ends.
                importlib.import_module("gevent").get_hub().destroy(destroy_loop=True)
