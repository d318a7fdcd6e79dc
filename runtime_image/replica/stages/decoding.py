"""The first stage: bodies of requests into inputs, ready to be joined."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from runtime_image.codecs.accept import SHORT, AnswerForm
from runtime_image.codecs.arrays import DTYPES, to_arrays
from runtime_image.codecs.plain.reading import PlainReader, is_plain, plain_reader
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract.errors import FUNCTION_FAILED, RequestError
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.signature import Signature
from runtime_image.link.meta import RequestMeta
from runtime_image.replica.batching import violates
from runtime_image.replica.intake import Job

Refuse = Callable[[Job, RequestError | None], None]
"""Called with None for a job that was cancelled."""


@dataclass(slots=True, eq=False)
class Decoded:
    """One request as the engine may take it. Those of one `shape` may run together.

    The inputs are `lists`, one per input of the signature, where the body was plain JSON, else
    `arrays` by name. `decode_us` is what decoding took, for all that were decoded together.
    """

    job: Job
    rows: int
    shape: Hashable
    lists: tuple[list[Any], ...] | None
    arrays: dict[str, Any] | None = None
    answer: AnswerForm = SHORT
    id: str = ""
    decode_us: int = 0


class Decoder:
    """Decodes requests for one model; any thread may use it."""

    def __init__(self, signature: Signature, spec: ModelSpec, clock: Callable[[], float]) -> None:
        self._signature = signature
        self._rules = spec.inputs
        self._is_batched = spec.batch_max > 1
        self._equal_axes = spec.equal_axes
        self._clock = clock
        self._plain = self._plain_reader()
        # Only tensors are views of the body; everything else is decoded into objects of its own.
        self._keeps_inputs = bool(spec.handler) and signature.kind == "tensors"
        self._last_meta: tuple[RequestMeta | None, bool] = None, False
        # As `_shape` would tell of such arrays.
        self._plain_shape = tuple(
            (tensor.name, DTYPES.get(tensor.dtype), tensor.shape[1:])
            for tensor in (signature.inputs if self._is_batched else ())
        )

    def _plain_reader(self) -> PlainReader | None:
        """None, too, where fixed axes are not as the proof supposes: every request runs alone."""
        shapes = {tensor.name: tensor.shape for tensor in self._signature.inputs}
        if self._is_batched and violates(shapes, self._equal_axes):
            return None
        return plain_reader(self._signature)

    @property
    def reader(self) -> PlainReader | None:
        """What makes arrays of lists."""
        return self._plain

    def decode(self, jobs: list[Job], refuse: Refuse) -> list[Decoded]:
        """The requests that can be run; `refuse` is told of each other one."""
        began = self._clock()
        decoded: list[Decoded] = []
        for job in jobs:
            if job.cancelled:
                refuse(job, None)
                continue
            item = self._read(job) or self._parsed(job, refuse)
            if item is not None:
                decoded.append(item)
        decode_us = int((self._clock() - began) * 1e6)
        for item in decoded:
            item.decode_us = decode_us
        return decoded

    def _read(self, job: Job) -> Decoded | None:
        """A request of the commonest form, None for any other."""
        body = job.body
        if self._plain is None or type(body) is not bytes or not self._is_plain(job.meta):
            return None
        try:
            lists = self._plain.read(body)
        except Exception:  # noqa: BLE001 - `_parsed` says what is wrong
            return None
        if lists is None:
            return None
        rows = len(lists[0]) if self._is_batched else 1
        return Decoded(job, rows, self._plain_shape, lists)

    def _is_plain(self, meta: RequestMeta) -> bool:
        # Nearly always the very one of the request before: the link keeps what it has parsed.
        last, answer = self._last_meta
        if meta is not last:
            answer = is_plain(meta.content_type, meta.accept, meta.json_length)
            self._last_meta = meta, answer
        return answer

    def _parsed(self, job: Job, refuse: Refuse) -> Decoded | None:
        """A request of any form; what is wrong with it is told."""
        meta = job.meta
        head = RequestHead(
            meta.content_type, meta.accept, meta.json_length if meta.json_length >= 0 else None
        )
        try:
            parsed = parse(head, self._body(job), self._signature, self._rules)
            arrays = to_arrays(parsed, self._signature, self._rules)
        except RequestError as error:
            refuse(job, error)
            return None
        except Exception as error:  # noqa: BLE001 - a decoder's surprise is this request's alone
            text = f"the input could not be decoded: {error!r}"
            refuse(job, RequestError(FUNCTION_FAILED, text))
            return None
        rows = int(next(iter(arrays.values())).shape[0]) if self._is_batched else 1
        return Decoded(job, rows, self._shape(arrays), None, arrays, parsed.answer, parsed.id)

    def _body(self, job: Job) -> memoryview:
        """What a handler gets of the gateway's memory is a copy: it may keep its inputs."""
        if isinstance(job.body, memoryview) and self._keeps_inputs:
            return memoryview(bytes(job.body))
        return memoryview(job.body)

    def _shape(self, arrays: dict[str, Any]) -> Hashable:
        if not self._is_batched:
            return ()
        return tuple((name, array.dtype, array.shape[1:]) for name, array in arrays.items())
