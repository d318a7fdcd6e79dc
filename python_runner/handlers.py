"""Imports a handler, and says what its `predict` is."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from python_runner.parameters import Parameters, read_parameters
from python_runner.settings import Settings
from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import declared_signature
from runtime_image.contract.signature import Signature

Form = Literal["def", "async def", "generator", "async generator"]
ASYNC_CONCURRENCY: Final = 32
"""Calls at once of an `async def`, unless the settings say another number."""
PAGE_MAX: Final = 1024 * 1024
"""Max bytes of the page."""
trace: Final = ContextVar("traceparent", default="")


class Context:
    """The `ctx` argument of a handler.

    `folder` contains the bundle's files, read-only. `device` is "cpu" or "cuda", `threads` the CPU
    share. `state` is the return value of `load`. `traceparent` is the trace of the present call
    (W3C Trace Context), "" without one.
    """

    def __init__(self, folder: Path, device: str, threads: int) -> None:
        self.folder = folder
        self.device = device
        self.threads = threads
        self.state: Any = None

    @property
    def traceparent(self) -> str:
        """The trace of the present call, "" without one."""
        return trace.get()

    def run(self, _inputs: dict[str, Any]) -> dict[str, Any]:
        """Raise RuntimeError: a Python function has no model beside its handler."""
        raise RuntimeError("this function has no model; ctx.run needs one")


@dataclass(frozen=True)
class Handler:
    """A loaded handler. `signature`: of inputs that are tensors or one raw body, else None. `page`:
    what `GET /` answers, None for nothing."""

    predict: Callable[..., Any]
    form: Form
    parameters: Parameters
    context: Context
    signature: Signature | None
    concurrency: int
    batch_max: int
    page: bytes | None
    leads: bool
    """Whether the thread that runs `predict` runs the event loop, too: one call at a time, and no
    `async def load`, whose tasks and connections a call may wait for."""

    @property
    def is_async(self) -> bool:
        """Whether `predict` runs in the event loop."""
        return self.form.startswith("async")


def import_handler(path: Path) -> Any:
    """Return the module of a handler's file. Raises what its code raises, and LoadError."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def read_handler(module: Any, settings: Settings, context: Context) -> Handler:
    """Return what a module's `predict` is. Raises LoadError."""
    predict = getattr(module, "predict", None)
    file = Path(settings.handler).name
    if not callable(predict):
        raise LoadError(f"{file} must define predict")
    form = form_of(predict)
    is_batch = settings.batch_max > 0
    if is_batch and form.endswith("generator"):
        raise LoadError(f"{file} predict is a generator: expected a function, in batches")
    parameters = read_parameters(predict, settings.inputs, is_batch=is_batch)
    signature = declared_signature(settings.inputs) if settings.inputs else parameters.signature
    if signature is not None and signature.kind == "json":
        signature = None
    concurrency = settings.concurrency or (ASYNC_CONCURRENCY if form.startswith("async") else 1)
    leads = (
        not form.startswith("async")
        and concurrency == 1
        and not inspect.iscoroutinefunction(getattr(module, "load", None))
    )
    return Handler(
        predict,
        form,
        parameters,
        context,
        signature,
        concurrency,
        settings.batch_max,
        read_page(settings.page),
        leads,
    )


def read_page(name: str) -> bytes | None:
    """Return the bytes of the page, None without one. Raises LoadError."""
    if not name:
        return None
    try:
        with Path(name).open("rb") as file:
            page = file.read(PAGE_MAX + 1)
    except OSError as error:
        raise LoadError(f"{Path(name).name}: {error.strerror}") from None
    if len(page) > PAGE_MAX:
        raise LoadError(f"{Path(name).name}: expected at most {PAGE_MAX} bytes, got more")
    return page


def form_of(function: Callable[..., Any]) -> Form:
    """Return how a function, or an object that can be called, gives its results."""
    targets = (function, getattr(function, "__call__", None))  # noqa: B004 - its method is read
    if any(map(inspect.isasyncgenfunction, targets)):
        return "async generator"
    if any(map(inspect.iscoroutinefunction, targets)):
        return "async def"
    return "generator" if any(map(inspect.isgeneratorfunction, targets)) else "def"


def optional(module: Any, name: str) -> Callable[..., Any] | None:
    """Return a function that a handler may define. Raises LoadError if it is none."""
    function = getattr(module, name, None)
    if function is not None and not callable(function):
        raise LoadError(f"{name}: expected a function, got {type(function).__name__}")
    return function
