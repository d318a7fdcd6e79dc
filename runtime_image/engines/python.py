"""Engine for handlers: `handler.py` with `load(ctx)` and `predict(inputs, ctx)`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from runtime_image.contract.control import SessionName
from runtime_image.contract.errors import LoadError, NeverAnswers
from runtime_image.contract.model import InputRule, declared_signature
from runtime_image.engines.base import Engine
from runtime_image.engines.failures import Failures, is_own
from runtime_image.engines.upgrade import SessionUpgrade

NAME_MAX: Final = 60
FUNCTIONS_SHOWN: Final = 5
"""Max functions of a handler that an error names, and max characters of each."""


class Context:
    """The `ctx` argument of a handler.

    `folder` contains the bundle's files, read-only. `device` is "cpu" or "cuda", `threads` the CPU
    share. `state` is the return value of `load`. `run(inputs)` runs the bundle's model, if any.
    `traceparent` is the trace of the run's request (W3C Trace Context), "" without one; for a
    batch, that of the first request with a trace.
    """

    def __init__(self, folder: Path, device: str, threads: int, model: Engine | None) -> None:
        self.folder = folder
        self.device = device
        self.threads = threads
        self.state: Any = None
        self.traceparent = ""
        self._model = model
        self._ticket: Any = None

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs of the bundle's model by name. Raises RuntimeError without a model."""
        if self._model is None:
            raise RuntimeError("this function has no model; ctx.run needs one")
        return self._model.run(inputs, self._ticket or self._model.ticket())


class HandlerEngine:
    """`predict` as an engine; its inputs are those of the manifest, or else the model's."""

    def __init__(self, path: Path, context: Context, rules: dict[str, InputRule]) -> None:
        """Import the handler and call its `load`. Raises LoadError with the handler's error."""
        self._context = context
        self._model = context._model
        self._failures = Failures(path.parent)
        module = _import(path, self._failures)
        self._predict = _function(module, "predict(inputs, ctx)", 2)
        declared = declared_signature(rules)
        if declared is None and self._model is None:
            raise LoadError("a function without a model must declare its inputs in function.toml")
        self.signature = declared or _require(self._model).signature
        if hasattr(module, "load"):
            load = _function(module, "load(ctx)", 1)
            try:
                context.state = load(context)
            except BaseException as error:
                before = "handler.py load(ctx) raised "
                raise LoadError(str(self._failures.failed(error, before))) from error

    @property
    def session(self) -> SessionName:
        """The session of the model, "none" without a model."""
        return self._model.session if self._model else "none"

    @property
    def upgrade(self) -> SessionUpgrade | None:
        """The upgrade of the model, if any."""
        return self._model.upgrade if self._model else None

    @property
    def model(self) -> Engine | None:
        """The engine of the bundle's model, None without a model."""
        return self._model

    def trace(self, traceparent: str) -> None:
        """Set the trace of the next run."""
        self._context.traceparent = traceparent

    def ticket(self) -> Any:
        """Return the model's ticket: a handler can be stopped only while its model runs."""
        return self._model.ticket() if self._model else None

    def run(self, inputs: dict[str, Any], ticket: Any) -> dict[str, Any]:
        """Return the result of `predict`, outputs by name. Raises HandlerFailed with the handler's
        error, NeverAnswers for a coroutine or generator, TypeError for what else is no dict."""
        self._context._ticket = ticket
        try:
            outputs = self._predict(inputs, self._context)
        except BaseException as error:
            if is_own(error):
                raise
            raise self._failures.failed(error) from error
        if kind := _kind_of_result(outputs):
            raise NeverAnswers(f"handler.py predict {_refusal(kind)}")
        if not isinstance(outputs, dict):
            raise TypeError(f"predict must return a dict of outputs, got {type(outputs).__name__}")
        return dict(outputs)  # every access to a subclass would run the handler's code

    def stop(self, ticket: Any) -> None:
        """Stop the model's run, if one is in progress."""
        if self._model is not None:
            self._model.stop(ticket)


_PYTHON_HINT: Final = "with [python] in place of [runtime] it streams, and may be async"
_PACKAGES_HINT: Final = "; [python] in function.toml gives a handler packages of its own"


def _import(path: Path, failures: Failures) -> ModuleType:
    spec = importlib.util.spec_from_file_location("handler", path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["handler"] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        before = f"importing {path.name} raised "
        hint = _PACKAGES_HINT if isinstance(error, ModuleNotFoundError) else ""
        raise LoadError(f"{failures.failed(error, before)}{hint}") from error
    return module


def _function(module: ModuleType, form: str, parameters: int) -> Callable[..., Any]:
    """Return the function that `form` names. Raises LoadError if the module does not define it."""
    name = form.partition("(")[0]
    function = getattr(module, name, None)
    if not callable(function):
        raise LoadError(f"handler.py must define {form}, got {_instead(module, name)}")
    if kind := _kind_of_function(function):
        raise LoadError(f"handler.py {name} {_refusal(kind)}")
    try:
        inspect.signature(function).bind(*range(parameters))
    except TypeError as error:
        raise LoadError(f"handler.py {name} must take {parameters} arguments: {error}") from error
    return function  # type: ignore[no-any-return]  # callable() does not narrow to Callable


def _instead(module: ModuleType, name: str) -> str:
    """Return what a module has instead of the function `name`."""
    if hasattr(module, name):
        return f"{name} of type {type(getattr(module, name)).__name__[:NAME_MAX]}"
    own = (key for key, one in vars(module).items() if inspect.isfunction(one))
    shown = ", ".join(key[:NAME_MAX] for key in islice(own, FUNCTIONS_SHOWN))
    return f"a file without it, which defines {shown or 'no function'}"


def _kind_of_function(function: Callable[..., Any]) -> str:
    if inspect.iscoroutinefunction(function):
        return "coroutine"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "generator"
    return ""


def _kind_of_result(outputs: object) -> str:
    """Return "coroutine" or "generator" for a result that has not been computed, else ""."""
    if inspect.iscoroutine(outputs):
        outputs.close()  # else Python warns that it was never awaited
        return "coroutine"
    if inspect.isgenerator(outputs) or inspect.isasyncgen(outputs):
        return "generator"
    return "" if isinstance(outputs, dict) or not inspect.isawaitable(outputs) else "coroutine"


def _refusal(kind: str) -> str:
    if kind == "coroutine":
        return f"is a coroutine (async): expected a plain function; {_PYTHON_HINT}"
    return f"is a generator (yield): expected a plain function; {_PYTHON_HINT}"


def _require(model: Engine | None) -> Engine:
    assert model is not None
    return model
