"""The process: the main thread loads the handler and runs `predict`, another one the event loop."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from python_runner.calls import Calls, problem_answer, refuse
from python_runner.connections import OK, Connection, Request, Server
from python_runner.description import describe
from python_runner.handlers import Context, Handler, import_handler, optional, read_handler
from python_runner.heads import foreign
from python_runner.imports import Imports
from python_runner.leading import LeadingWorker
from python_runner.settings import BadSettings, Settings, read_settings
from python_runner.workers import Deadlines, Worker, Workers
from runtime_image.contract import problems
from runtime_image.contract.errors import LoadError
from runtime_image.contract.tracebacks import Tracebacks

ARGUMENTS_MAX: Final = 2
PACKAGES_HINT: Final = "requirements.txt or pyproject.toml beside it names the packages"
USAGE: Final = 2
"""Exit code: the arguments or the settings cannot be used."""
NOT_LOADED: Final = 1
"""Exit code: the handler cannot be imported, or its `load` raised an exception."""
HUNG: Final = 124
"""Exit code: `predict` took longer than `timeout_s` and cannot be stopped. As of timeout(1)."""
HUNG_S: Final = 0.5
"""Seconds in which the answer about it leaves."""
_MIB: Final = 1024 * 1024
_ROOT: Final = Path(__file__).parent.parent


class Front:
    """The event loop in its thread, with the server. Requests wait until `open`."""

    def __init__(self, settings: Settings, tracebacks: Tracebacks) -> None:
        self.loop = asyncio.new_event_loop()
        self.workers: Workers | None = None
        self._settings = settings
        self._tracebacks = tracebacks
        self._calls: Calls | None = None
        self._held: dict[Connection, Request] = {}
        self._description: Any = None
        self._failed: OSError | None = None
        self._up = threading.Event()
        self._signals, self._wakeup = socket.socketpair()
        self._signalled = False
        self._is_hung = False

    def start(self) -> None:
        """Start the thread; return when it listens. Raises OSError."""
        for end in (self._signals, self._wakeup):
            end.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGINT):
            # The loop acts on it, even while the main thread computes.
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._run, name="http", daemon=True).start()
        self._up.wait()
        if self._failed is not None:
            raise self._failed

    def open(self, handler: Handler, imports: Imports) -> Workers:
        """Begin to answer; return the threads, of which the first one is the caller's."""
        made = asyncio.run_coroutine_threadsafe(self._open(handler, imports), self.loop)
        return made.result()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(), self.loop)
        self.loop.run_forever()  # until the main thread leads
        assert self.workers is not None
        assert isinstance(self.workers.main, LeadingWorker)
        self.workers.main.follow()

    async def _serve(self) -> None:
        body_max = int(self._settings.body_mib * _MIB)
        self._server = Server(self._answer, refuse, body_max)
        self.loop.add_reader(self._signals, self._drain)
        try:
            await self._server.listen(self._settings.listen)
        except OSError as error:
            self._failed = error
            return
        finally:
            self._up.set()
        await self._server.drained.wait()
        if self._is_hung:
            os._exit(HUNG)
        if self.workers is None:
            os._exit(0)  # it still loads
        self.workers.main.stop()
        await asyncio.Event().wait()  # background tasks of the handler go on until the end

    async def _open(self, handler: Handler, imports: Imports) -> Workers:
        count = 1 if handler.is_async else handler.concurrency
        deadlines = Deadlines(self._settings.timeout_s)
        main = LeadingWorker(self.loop) if handler.leads else Worker(self.loop)
        workers = Workers(main, count, deadlines, self._hung)
        self._calls = Calls(handler, self._settings, workers, deadlines, self._tracebacks)
        self._description = lambda: describe(handler, imports)
        self.workers = workers
        self._keep_watch()
        held, self._held = self._held, {}
        for connection, request in held.items():
            connection.serve(request)
        return workers

    def _answer(self, request: Request, connection: Connection) -> Coroutine[Any, Any, None] | None:
        if self._calls is None:
            self._held[connection] = request
            connection.leaving = lambda: self._held.pop(connection, None) is not None
            return None
        path = request.head.path
        if self._settings.local_only and (text := foreign(request.head, self._settings.listen)):
            connection.answer(*problem_answer(problems.BAD_REQUEST, text, {}, {}))
        elif path == self._settings.ready:
            connection.answer(OK, {"content-type": "text/plain"}, b"ready\n")
        elif path == self._settings.description:
            connection.answer(*self._described())
        else:
            if self._settings.log_calls:
                connection.status = 0
                connection.told = partial(_tell, request, connection, time.monotonic())
            return self._calls.answer(request, connection)
        return None

    def _described(self) -> tuple[int, dict[str, str], bytes]:
        try:
            return OK, {"content-type": "application/json"}, self._description()
        except Exception as error:  # noqa: BLE001 - hints are code of the handler
            return problem_answer(problems.FUNCTION_FAILED, str(error), {}, {})

    def _drain(self) -> None:
        """A signal: accept nothing more. At the second one, end at once."""
        with suppress(BlockingIOError):
            number = self._signals.recv(16)[0]
            if self._signalled:
                os._exit(128 + number)
            self._signalled = True
            self._server.drain()

    def _hung(self, thread: int) -> None:
        """End the process after saying where it hangs: no thread can be stopped from outside."""
        frame = sys._current_frames().get(thread)
        where = "" if frame is None else self._tracebacks.stack(frame)
        text = f"predict took longer than {self._settings.timeout_s:g} s and is here:\n{where}"
        _say(f"{text}the process ends with code {HUNG}\n")
        # A call that came now would be lost with the process: another replica can have it.
        self._is_hung = True
        self._server.drain()
        self.loop.call_later(HUNG_S, os._exit, HUNG)

    def _keep_watch(self) -> None:
        """End the process, with all stacks, if this loop stops turning: code that holds the GIL, or
        blocks in an `async def`."""
        pause_s = min(max(self._settings.timeout_s / 2, 1.0), 30.0)
        faulthandler.dump_traceback_later(self._settings.timeout_s + 2 * pause_s, exit=True)
        self.loop.call_later(pause_s, self._keep_watch)


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM; return the exit code."""
    if not 1 <= len(arguments) <= ARGUMENTS_MAX:
        _say("expected the file with the settings, and perhaps where to listen\n")
        return USAGE
    try:
        settings = read_settings(Path(arguments[0]), *arguments[1:])
    except BadSettings as error:
        _say(f"{error}\n")
        return USAGE
    faulthandler.enable()
    path = Path(settings.handler).absolute()
    tracebacks = Tracebacks(path.parent, _ROOT)
    front = Front(settings, tracebacks)
    try:
        front.start()
    except OSError as error:
        _say(f"{settings.listen}: {error.strerror or error}\n")
        return USAGE
    imports = Imports(str(path.parent))
    handler = _load(path, settings, front, tracebacks, imports)
    front.open(handler, imports).main.run()
    return 0


def _load(
    path: Path, settings: Settings, front: Front, tracebacks: Tracebacks, imports: Imports
) -> Handler:
    """Import the handler and call its `load`. Ends the process if that fails."""
    context = Context(path.parent, settings.device, settings.threads)
    doing = f"importing {path.name}"
    try:
        with imports.measured():
            module = import_handler(path)
            doing = path.name
            handler = read_handler(module, settings, context)
            if (load := optional(module, "load")) is not None:
                doing = f"{path.name} load(ctx)"
                loaded = load(context)
                if asyncio.iscoroutine(loaded):
                    loaded = asyncio.run_coroutine_threadsafe(loaded, front.loop).result()
                context.state = loaded
    except LoadError as error:
        _end(f"{error}\n")
    except BaseException as error:  # noqa: BLE001 - it is the handler's, whatever it is
        whole = ""
        with suppress(BaseException):  # the exception's methods are code of the handler
            whole = tracebacks.whole(error)
        told = tracebacks.told(error)
        if isinstance(error, ModuleNotFoundError):
            told = f"{told}; {PACKAGES_HINT}"
        _end(f"{whole}{doing} raised {told}\n")
    return handler


def _tell(request: Request, connection: Connection, began_s: float) -> None:
    """Say what came of a call."""
    took = f"{(time.monotonic() - began_s) * 1e3:.1f} ms"
    head, status = request.head, connection.status or "no answer"
    left = ", the client left" if connection.is_gone else ""
    _say(f"{head.method} {ascii(head.path[:200])[1:-1]} {status} {took}{left}\n")


def _end(text: str) -> None:
    _say(f"{text}the process ends with code {NOT_LOADED}\n")
    with suppress(BaseException):
        sys.stdout.flush()
    os._exit(NOT_LOADED)  # threads of the handler cannot hold it up


def _say(text: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
