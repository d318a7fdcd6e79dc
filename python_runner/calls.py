"""One call, from its request to its answer."""

from __future__ import annotations

import asyncio
import inspect
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CoroutineType
from typing import Any, Final

import msgspec

from python_runner.answers import Answer, Stream, Writer
from python_runner.bodies import Given, read_body
from python_runner.connections import OK, Connection, Request
from python_runner.handlers import Handler, trace
from python_runner.heads import BadHttp
from python_runner.settings import Settings
from python_runner.workers import Batcher, Deadlines, Job, Raised, Worker, Workers
from runtime_image.contract import problems
from runtime_image.contract.errors import FUNCTION_FAILED, RequestError
from runtime_image.contract.problems import Problem
from runtime_image.contract.tracebacks import Tracebacks

TRACEBACK: Final = "fn-traceback"
"""Field of an answer with the traceback, in base64. It is for the gateway, which cuts it."""
TRACEBACK_MAX: Final = 6 * 1024
"""Max bytes of the traceback in the field; its end says the most."""
_PAGE: Final = {"content-type": "text/html; charset=utf-8", "cache-control": "no-cache"}
_END: Final = object()


def problem_answer(
    problem: Problem, detail: str, more: Mapping[str, Any], fields: Mapping[str, str]
) -> tuple[int, dict[str, str], bytes]:
    """Return status, fields and body of a problem document."""
    body = _encoded(problems.document(problem, detail, more))
    return problem.status, {"content-type": problems.CONTENT_TYPE, **fields}, body


def refuse(error: BadHttp) -> tuple[int, Mapping[str, str], bytes]:
    """Return the answer to what is no request."""
    return problem_answer(error.problem, str(error), {}, {})


def _encoded(document: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:  # lone surrogates in the text of an exception
        import json

        return json.dumps(document).encode()


class Call(msgspec.Struct, frozen=True):
    """One call: what was given, which answer is accepted, its trace, and where to answer."""

    given: Given
    accept: str
    trace: str
    connection: Connection


class Calls:
    """Answers the requests of one handler."""

    def __init__(
        self,
        handler: Handler,
        settings: Settings,
        workers: Workers,
        deadlines: Deadlines,
        tracebacks: Tracebacks,
    ) -> None:
        self._handler = handler
        self._settings = settings
        self._workers = workers
        self._deadlines = deadlines
        self._tracebacks = tracebacks
        self._writer = Writer(handler, settings.output, settings.revision)
        self._batcher: Batcher | None = None
        if handler.batch_max:
            self._batcher = Batcher(self._run_batch, handler.batch_max, handler.concurrency)

    def answer(self, request: Request, connection: Connection) -> Coroutine[Any, Any, None] | None:
        """Answer a call, by the coroutine that is returned, if any."""
        head, page = request.head, self._handler.page
        if head.path != "/":
            text = f"expected the path /, got {head.path[:200]}"
            connection.answer(*problem_answer(problems.UNKNOWN, text, {}, {}))
            return None
        if page is not None and head.method in ("GET", "HEAD"):
            connection.answer(OK, _PAGE, page)
            return None
        if head.method != "POST":
            allowed = ["POST"] if page is None else ["GET", "HEAD", "POST"]
            text = f"expected {' or '.join(allowed)}, got {head.method[:20]}"
            more, fields = {"allow": allowed}, {"allow": ", ".join(allowed)}
            answer = problem_answer(problems.METHOD_NOT_ALLOWED, text, more, fields)
            connection.answer(*answer)
            return None
        try:
            given = read_body(request, self._handler)
        except Exception as error:  # noqa: BLE001 - hints may be code of the handler
            connection.answer(*self.failure(error))
            return None
        fields = head.fields
        call = Call(given, fields.get("accept", ""), fields.get("traceparent", ""), connection)
        if self._batcher is not None or self._handler.is_async:
            return self._answer(call)
        job = Job(partial(self._compute, call), partial(self._computed, call), is_call=True)
        connection.leaving = partial(self._workers.forget, job)
        self._workers.submit(job)
        return None

    async def _answer(self, call: Call, result: Any = None, worker: Worker | None = None) -> None:
        """Answer in the loop: what an `async def` or a batch gives, or `result` of a worker."""
        trace.set(call.trace)
        connection = call.connection
        try:
            if self._batcher is not None:
                result = await self._batcher.submit(call.given.arguments)
            elif worker is None:
                result = self._run(call.given.arguments)
            if type(result) is CoroutineType or inspect.isawaitable(result):
                result = await self._in_time(result)
            if type(result) is dict:
                answer = self._writer.write(result, call.given, call.accept)
                connection.send(OK, answer.fields, answer.body)
            elif isinstance(result, AsyncIterator):
                await self._stream(_AsyncValues(result, self._in_time), call)
            elif isinstance(result, Iterator):
                await self._stream(_Values(result, call.trace, self._workers, worker), call)
            else:
                answer = self._writer.write(result, call.given, call.accept)
                connection.send(OK, answer.fields, answer.body)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and connection.is_gone:
                raise
            connection.send(*self.failure(error))

    def _compute(self, call: Call) -> Any:
        """Run `predict` in a worker; return the answer, or what becomes one in the loop."""
        trace.set(call.trace)
        result = self._run(call.given.arguments)
        if type(result) is not dict:
            if isinstance(result, AsyncIterator) or inspect.isawaitable(result):
                return result
            if isinstance(result, Iterator):
                return self._begun(call, result)
        return self._writer.write(result, call.given, call.accept)

    def _begun(self, call: Call, values: Iterator[Any]) -> _Begun:
        """Return a stream with its first value, which is sent without another turn."""
        stream = Stream(call.accept, self._settings.output)
        try:
            first = next(values, _END)
            part = stream.begin("" if first is _END else first)
        except BaseException:
            _close(values)
            raise
        return _Begun(values, stream, b"" if first is _END else part)

    def _computed(self, call: Call, worker: Worker, value: Any, failed: bool) -> None:
        """Answer, when a worker has computed. A stream goes on in its thread."""
        connection = call.connection
        connection.leaving = None
        is_stream = type(value) is _Begun
        if failed or type(value) is Answer or (connection.is_gone and not is_stream):
            worker.calls -= 1
        if connection.is_gone and not is_stream:
            connection.finish()
        elif failed:
            connection.answer(*self.failure(value))
        elif type(value) is Answer:
            connection.answer(OK, value.fields, value.body)
        elif type(value) is _Begun:
            if not connection.is_gone:
                connection.begin(value.stream.fields, value.part)
            rest = _Values(value.values, call.trace, self._workers, worker)
            connection.answer_by(self._stream(rest, call, value.stream), worker.end_call)
        else:
            connection.answer_by(self._answer(call, value, worker), worker.end_call)

    def _run(self, arguments: Any) -> Any:
        """Call `predict`."""
        handler = self._handler
        more = {"ctx": handler.context} if handler.parameters.takes_context else {}
        if handler.parameters.whole:
            return handler.predict(inputs=arguments, **more)
        return handler.predict(**arguments, **more)

    async def _run_batch(self, batch: list[Any]) -> list[Any]:
        """Return the results of `predict` for several calls at once."""
        parameters = self._handler.parameters
        arguments: Any = batch
        if not parameters.whole:
            arguments = {
                one.name: [given.get(one.name, one.default) for given in batch]
                for one in parameters.named
            }
        if self._handler.is_async:
            results = await self._in_time(self._run(arguments))
        else:
            results = await self._workers.run(partial(self._run, arguments))
        if not isinstance(results, list | tuple) or len(results) != len(batch):
            got = f"{len(results)} results" if isinstance(results, list | tuple) else "no list"
            text = f"predict: expected a list of {len(batch)} results, one per call, got {got}"
            raise RequestError(FUNCTION_FAILED, text)
        return list(results)

    async def _in_time(self, awaitable: Any) -> Any:
        """Return what an awaitable gives, which is cancelled when it is late. Raises
        EXECUTION_TIMEOUT."""
        task = asyncio.current_task()
        assert task is not None
        deadline = self._deadlines.begin(task.cancel)
        try:
            return await awaitable
        except asyncio.CancelledError:
            if not deadline.is_over or task.uncancel():
                raise  # the client has left
            raise self._deadlines.error() from None
        finally:
            self._deadlines.end(deadline)

    async def _stream(
        self, values: _Values | _AsyncValues, call: Call, stream: Stream | None = None
    ) -> None:
        """Write a stream, or the rest of one that has begun, and end the generator."""
        connection = call.connection
        stream = stream or Stream(call.accept, self._settings.output)
        try:
            if not connection.is_gone:
                await self._write(stream, values, connection)
        except BaseException as error:
            if not stream.has_begun or (
                isinstance(error, asyncio.CancelledError) and connection.is_gone
            ):
                raise
            last = stream.failure(self.failure(error)[2])
            if last is None:
                connection.cut()
            else:
                connection.write(last)
                connection.end()
        finally:
            try:
                await values.close()
            except Exception as error:  # noqa: BLE001 - the answer is over, so only the log has it
                self.failure(error)

    async def _write(
        self, stream: Stream, values: _Values | _AsyncValues, connection: Connection
    ) -> None:
        """Write one value after the other, each when the one before it has left."""
        await connection.room()
        while (value := await values.next()) is not _END:
            if not stream.has_begun:
                part = stream.begin(value)
                connection.begin(stream.fields, part)
            else:
                part = stream.part(value)
                connection.write(part)
            del part, value  # of a slow reader's stream, only the transport has one
            await connection.room()
        if not stream.has_begun:
            stream.begin("")
            connection.begin(stream.fields, b"")
        connection.end()

    def failure(self, error: BaseException) -> tuple[int, dict[str, str], bytes]:
        """Return the answer to a failed call, and write the traceback to the log."""
        if isinstance(error, Raised):
            error = error.error
        if type(error) is RequestError:
            problem = problems.OF_REQUEST[error.code]
            data = error.to_json()
            more = {name: value for name, value in data.items() if name not in ("code", "message")}
            return problem_answer(problem, error.message, more, {})
        fields = {}
        with suppress(BaseException):  # the exception's methods are code of the handler
            whole = self._tracebacks.whole(error)
            sys.stderr.write(whole)
            fields = {
                TRACEBACK: b64encode(whole.encode(errors="replace")[-TRACEBACK_MAX:]).decode()
            }
        return problem_answer(problems.FUNCTION_FAILED, self._tracebacks.told(error), {}, fields)


class _Begun(msgspec.Struct, frozen=True):
    """A stream whose first value, `part`, is to be sent."""

    values: Iterator[Any]
    stream: Stream
    part: bytes


def _close(values: Iterator[Any]) -> None:
    """End a generator: GeneratorExit where it stands, unless it is at its end."""
    close = getattr(values, "close", None)
    if close is not None:
        close()


class _Values:
    """The values of a generator, pulled in the thread that began it."""

    def __init__(
        self, values: Iterator[Any], trace_text: str, workers: Workers, worker: Worker | None
    ) -> None:
        self._values = values
        self._workers = workers
        self._worker = worker or workers.main
        self._trace = trace_text

    def _pull(self) -> Any:
        trace.set(self._trace)
        return next(self._values, _END)

    async def next(self) -> Any:
        """Return the next value, or _END. Raises what the generator raises."""
        return await self._workers.run_on(self._worker, self._pull)

    async def close(self) -> None:
        """End the generator."""
        if hasattr(self._values, "close"):
            # Also when this task is being cancelled: the job is in the queue by then.
            await asyncio.shield(self._workers.run_on(self._worker, partial(_close, self._values)))


class _AsyncValues:
    """The values of an async generator."""

    def __init__(self, values: AsyncIterator[Any], in_time: Callable[[Any], Any]) -> None:
        self._values = values
        self._in_time = in_time

    async def next(self) -> Any:
        """Return the next value, or _END. Raises what the generator raises."""
        await asyncio.sleep(0)  # values that wait for nothing leave a turn to the others
        try:
            return await self._in_time(anext(self._values))
        except StopAsyncIteration:
            return _END

    async def close(self) -> None:
        """End the generator."""
        close = getattr(self._values, "aclose", None)
        if close is not None:
            await self._in_time(close())
