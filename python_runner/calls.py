"""One call, from its request to its answer."""

from __future__ import annotations

import asyncio
import inspect
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from python_runner.answers import Stream, Writer
from python_runner.bodies import Given, read_body
from python_runner.connections import OK, Connection, Request
from python_runner.handlers import Handler, trace
from python_runner.heads import BadHttp
from python_runner.settings import Settings
from python_runner.workers import Batcher, Deadlines, Raised, Worker, Workers
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

    async def answer(self, request: Request, connection: Connection) -> None:
        """Answer a call."""
        head, page = request.head, self._handler.page
        if head.path != "/":
            text = f"expected the path /, got {head.path[:200]}"
            connection.send(*problem_answer(problems.UNKNOWN, text, {}, {}))
            return
        if page is not None and head.method in ("GET", "HEAD"):
            connection.send(OK, _PAGE, page)
            return
        if head.method != "POST":
            allowed = ["POST"] if page is None else ["GET", "HEAD", "POST"]
            text = f"expected {' or '.join(allowed)}, got {head.method[:20]}"
            fields = {"allow": ", ".join(allowed)}
            connection.send(
                *problem_answer(problems.METHOD_NOT_ALLOWED, text, {"allow": allowed}, fields)
            )
            return
        try:
            if "traceparent" in head.fields:
                trace.set(head.fields["traceparent"])
            given = read_body(request, self._handler)
            del request
            await self._call(given, head.fields.get("accept", ""), connection)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and connection.is_gone:
                raise
            connection.send(*self.failure(error))

    async def _call(self, given: Given, accept: str, connection: Connection) -> None:
        if self._batcher is not None:
            result = await self._batcher.submit(given.arguments)
        elif self._handler.is_async:
            result = self._run(given.arguments)
        else:
            run = self._traced(self._run)
            worker, result = await self._workers.place(run, given.arguments)
            try:
                await self._answer(result, worker, given, accept, connection)
            finally:
                worker.calls -= 1
            return
        await self._answer(result, self._workers.main, given, accept, connection)

    async def _answer(
        self, result: Any, worker: Worker, given: Given, accept: str, connection: Connection
    ) -> None:
        """Write what `predict` returned; `worker` pulls the values of a plain generator."""
        if inspect.isawaitable(result):
            result = await self._in_time(result)
        is_dict = type(result) is dict  # as most are
        if not is_dict and isinstance(result, AsyncIterator):
            await self._stream(_AsyncValues(result, self._in_time), accept, connection)
        elif not is_dict and isinstance(result, Iterator):
            values = _Values(result, self._workers, worker, self._traced)
            await self._stream(values, accept, connection)
        else:
            answer = self._writer.write(result, given, accept)
            connection.send(OK, answer.fields, answer.body)

    def _run(self, arguments: Any) -> Any:
        """Call `predict`."""
        handler = self._handler
        more = {"ctx": handler.context} if handler.parameters.takes_context else {}
        if handler.parameters.whole:
            return handler.predict(inputs=arguments, **more)
        return handler.predict(**arguments, **more)

    def _traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that knows the trace of this call in another thread, too."""
        value = trace.get()

        def run(*arguments: Any) -> Any:
            trace.set(value)
            return function(*arguments)

        return run

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
            results = await self._workers.run(self._run, arguments)
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
        self, values: _Values | _AsyncValues, accept: str, connection: Connection
    ) -> None:
        """Write a stream to its end, and end the generator."""
        stream = Stream(accept, self._settings.output)
        try:
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
        while (value := await values.next()) is not _END:
            if not stream.has_begun:
                part = stream.begin(value)
                connection.begin(stream.fields)
            else:
                part = stream.part(value)
            connection.write(part)
            del part, value  # of a slow reader's stream, only the transport has one
            await connection.room()
        if not stream.has_begun:
            stream.begin("")
            connection.begin(stream.fields)
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


class _Values:
    """The values of a generator, pulled in the thread that began it."""

    def __init__(
        self,
        values: Iterator[Any],
        workers: Workers,
        worker: Worker,
        traced: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self._values = values
        self._workers = workers
        self._worker = worker
        self._next = traced(lambda: next(values, _END))

    async def next(self) -> Any:
        """Return the next value, or _END. Raises what the generator raises."""
        return await self._workers.run_on(self._worker, self._next)

    async def close(self) -> None:
        """End the generator: GeneratorExit where it stands, unless it is at its end."""
        close = getattr(self._values, "close", None)
        if close is not None:
            # Also when this task is being cancelled: the job is in the queue by then.
            await asyncio.shield(self._workers.run_on(self._worker, close))


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
