"""The check of large bodies in a process of its own: `python -m gateway.cold_checks.check_process`.

JSON becomes up to twenty times its size as Python objects, and takes a second for 30 MB, during
which its parser lets no other thread run. The child process takes one body at a time, in an
anonymous file, over a Unix socket that is its standard input; its address space, its time and its
priority are bounded. It ends after IDLE_S without a body, and with the server.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from gateway.replies import Body
from runtime_image.codecs import request
from runtime_image.codecs.request import RequestHead
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature

MODULE: Final = "gateway.cold_checks.check_process"
LIMIT_S: Final = 5.0
"""Max seconds of one check."""
IDLE_S: Final = 60.0
MEMORY_MAX: Final = 1280 * 1024 * 1024
"""Max bytes of the child's address space: twenty times the largest usual body."""
NICENESS: Final = 10
ALARM_S: Final = 10
"""Seconds after which a check ends the child by itself, should the server be gone."""
PIECE: Final = 1024 * 1024
"""Bytes that are copied at once, without the interpreter's lock."""
ANSWER_MAX: Final = 128 * 1024
_LENGTH_BYTES: Final = 4


class Question(msgspec.Struct):
    """What a body is checked against: headers of its request, and signature of the revision."""

    content_type: str
    accept: str
    json_length: int | None
    signature: Signature
    inputs: dict[str, InputRule]


class Content(NamedTuple):
    """A body to be checked. `descriptor`: of the file that begins with it, open as long as `body`
    exists; -1 without a file."""

    body: Body
    descriptor: int = -1


class Unchecked(Exception):
    """The body could not be checked within the limits; the text is the reason."""


def check(question: Question, body: Body) -> None:
    """Raise RequestError if a body does not fit."""
    head = RequestHead(question.content_type, question.accept, question.json_length)
    parsed = request.parse(head, memoryview(body), question.signature, question.inputs)
    request.check_finite(parsed, question.inputs)


class CheckProcess:
    """The server's side of the child process. One thread calls `check`, any thread `abort` and
    `close`.

    `child` is None until the first check, and after the end.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self.child: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._is_closed = self._is_aborted = False

    def check(self, question: Question, content: Content) -> None:
        """Check one body; blocks for LIMIT_S and the start of a process at most.

        Raises RequestError if it does not fit, and Unchecked if the check took too long, needed too
        much memory, or the child died. The next check starts another child.
        """
        if self._is_aborted or (self.child is not None and self.child.poll() is not None):
            self._end()
            self._is_aborted = False
        try:
            asked = _in_memory(question, content)
        except OSError as error:
            raise Unchecked(f"no room for a copy of the body: {error}") from None
        try:
            answer = self._asked(asked, content.descriptor)
        except TimeoutError:
            self._end()
            raise Unchecked(f"the check took longer than {self._limit_s:g} s") from None
        except (OSError, EOFError) as error:
            self._end()
            raise Unchecked(f"the process of the check ended: {error}") from None
        finally:
            os.close(asked)
        if "unchecked" in answer:
            self._end()
            raise Unchecked(str(answer["unchecked"]))
        if "error" in answer:
            raise RequestError.from_json(answer["error"])

    def abort(self) -> None:
        """Give up the check that runs, so that it raises Unchecked now; the next one starts another
        child. To be called before that one begins."""
        self._is_aborted = True
        link = self._link
        if link is not None:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the child for good."""
        self._is_closed = True
        self._end()

    def _asked(self, asked: int, own: int) -> dict[str, Any]:
        link = self._link or self._start()
        descriptors = [asked] if own < 0 else [asked, own]
        socket.send_fds(link, [b"?"], descriptors)
        data = link.recv(ANSWER_MAX)
        if not data:
            raise EOFError("no answer")
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _start(self) -> socket.socket:
        if self._is_closed:
            raise EOFError("the server is shutting down")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(self._limit_s)
        with theirs:
            # With -P, a folder named gateway in the working directory is not imported.
            self.child = subprocess.Popen(
                (sys.executable, "-P", "-m", MODULE),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._link = ours
        return ours

    def _end(self) -> None:
        child, self.child = self.child, None
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        if child is not None:
            child.kill()
            child.wait()


def _in_memory(question: Question, content: Content) -> int:
    """Return the descriptor of an anonymous file with the question, the body's length, and the body
    unless that has its own file."""
    # Of JSON, because header values may have lone surrogates.
    head = json.dumps([msgspec.to_builtins(question), len(content.body)]).encode()
    asked = os.memfd_create("fngate-check", os.MFD_CLOEXEC)
    try:
        os.write(asked, len(head).to_bytes(_LENGTH_BYTES, "little") + head)
        view, at = memoryview(content.body if content.descriptor < 0 else b""), 0
        while at < len(view):
            at += os.write(asked, view[at : at + PIECE])
    except BaseException:
        os.close(asked)
        raise
    return asked


def _answer(asked: int, own: int | None) -> dict[str, Any]:
    """Check a body, and return the result as plain data. `own`: the body's own file, None if it
    follows the question."""
    with mmap.mmap(asked, 0, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
        start = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
        fields, length = json.loads(bytes(view[_LENGTH_BYTES:start]))
        question = msgspec.convert(fields, Question)
        if own is None:
            return _checked(question, view[start:])
        with mmap.mmap(own, length, prot=mmap.PROT_READ) as file, memoryview(file) as body:
            return _checked(question, body)


def _checked(question: Question, body: memoryview) -> dict[str, Any]:
    with body:
        try:
            check(question, body)
        except RequestError as error:
            return {"error": error.to_json()}
        except MemoryError:
            return {"unchecked": f"the check needs more than {MEMORY_MAX >> 20} MiB"}
        return {}


def main() -> None:
    """Run the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's business
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    gc.disable()  # nothing that is parsed has circles, and a collection visits every object
    with socket.socket(fileno=sys.stdin.fileno()) as link:
        link.settimeout(IDLE_S)
        while True:
            try:
                _, descriptors, _, _ = socket.recv_fds(link, 16, 2)
            except TimeoutError:
                return
            if not descriptors:
                return
            signal.alarm(ALARM_S)
            answer = _answer(descriptors[0], descriptors[1] if descriptors[1:] else None)
            for descriptor in descriptors:
                os.close(descriptor)
            signal.alarm(0)
            link.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
