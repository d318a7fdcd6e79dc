"""ONNX Runtime: one model, on CPU or on one GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime as ort

from runtime_image.contract import dtypes
from runtime_image.contract.control import SessionName
from runtime_image.contract.errors import LoadError
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec
from runtime_image.engines.base import Stopped
from runtime_image.engines.bound_run import run_bound
from runtime_image.engines.improvement import Improvement
from runtime_image.engines.sessions import open_session


class OnnxEngine:
    """A session over one .onnx file. Inputs and outputs are NumPy arrays by name.

    The session may be exchanged for another one of the same model: a run that is going on ends
    with the one it began with.
    """

    def __init__(
        self,
        path: Path,
        *,
        device_kind: str,
        threads: int,
        optimise: bool = True,
        prepack: bool = True,
        before_work: Callable[[], None] | None = None,
    ) -> None:
        """`optimise` and `prepack` as in `SessionPlan`, `before_work` as in `open_session`.

        Raises LoadError with ONNX Runtime's reason, or when the device's provider is missing.
        """
        try:
            self._session = open_session(
                str(path),
                device_kind,
                threads,
                optimise=optimise,
                prepack=prepack,
                before_work=before_work,
            )
        except LoadError as error:
            from runtime_image.engines.advice import explained

            # The engine's words without the folder of this one replica.
            reason = str(error).replace(f"{path.parent}/", "")
            raise LoadError(explained(reason, ort.__version__)) from error.__cause__
        self.signature = Signature(
            "tensors",
            tuple(_spec("input", node) for node in self._session.get_inputs()),
            tuple(_spec("output", node) for node in self._session.get_outputs()),
        )
        self.session: SessionName = "original"
        self.improvement: Improvement | None = None
        self.has_run = False
        self._outputs = [spec.name for spec in self.signature.outputs]
        self._is_bound = device_kind == "cuda"
        self._in_use: Any = None

    @property
    def is_running(self) -> bool:
        """Whether a run is going on."""
        return self._in_use is not None

    def ticket(self) -> Any:
        """Run options; setting `terminate` on them stops the run between two graph nodes."""
        return ort.RunOptions()

    def run(self, inputs: dict[str, Any], ticket: Any) -> dict[str, Any]:
        """Arrays by output name. Raises Stopped, or ONNX Runtime's error."""
        session = self._in_use = self._session
        try:
            if self._is_bound:
                return run_bound(session, "cuda", self._outputs, inputs, ticket)
            values = session.run(self._outputs, inputs, ticket)
        except Exception as error:
            if ticket.terminate:
                raise Stopped from error
            raise
        finally:
            del session  # first, for `exchange` tells by the other name whether it is held still
            self._in_use = None
            self.has_run = True
        return dict(zip(self._outputs, values, strict=True))

    def stop(self, ticket: Any) -> None:
        """End the run with these options at the next graph node."""
        ticket.terminate = True

    def exchange(self, better: OnnxEngine, pause: Callable[[], object]) -> None:
        """Run with the session of `better` from the next run on; another thread may run meanwhile.

        Returns when the old session is gone, calling `pause` while a run still goes on with it:
        letting go of one takes milliseconds, which no request is to pay. Raises LoadError where
        `better` is another model.
        """
        if _names(better.signature) != _names(self.signature):
            raise LoadError("its inputs and outputs are not those of the model that serves")
        old, self._session, self.session = self._session, better._session, "fast"
        while self._in_use is old:
            pause()


def _names(signature: Signature) -> list[tuple[str, str]]:
    """Of all inputs and outputs, with types. Of shapes one graph may know more than another."""
    return [(tensor.name, tensor.dtype) for tensor in (*signature.inputs, *signature.outputs)]


def _spec(role: str, node: Any) -> TensorSpec:
    dtype = dtypes.FROM_ONNX.get(node.type)
    if dtype is None:
        from runtime_image.engines.advice import unservable

        raise LoadError(unservable(role, node.name, node.type))
    shape = tuple(size if isinstance(size, int) else DYNAMIC for size in node.shape)
    return TensorSpec(node.name, dtype, shape)
