"""The replica's data plane: links to gateways, requests in, answers out."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
from collections.abc import Callable

from runtime_image.contract.errors import EXECUTION_TIMEOUT, RequestError
from runtime_image.contract.link import VERSION, Flag, Kind, NotStarted
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.base import Engine
from runtime_image.link.data_listener import DataListener, pack_greeting
from runtime_image.link.frames import Frame, LinkError, Piece, pack
from runtime_image.link.meta import AnswerMeta, pack_answer, unpack_request
from runtime_image.link.socket_end import SocketEnd
from runtime_image.replica.execution import Execution
from runtime_image.replica.intake import Intake, Job
from runtime_image.replica.loop import Loop
from runtime_image.replica.runner import Run, Runner
from runtime_image.replica.shared_memory import SharedMemory
from runtime_image.replica.stages import Answer, Outcome
from runtime_image.replica.worker import Worker

LINKS_MAX = 64
"""Max gateway processes connected at once."""
FINAL_FLUSH_S = 1.0
"""Seconds that a replica waits for gateways to read its last frames: with a stuck run, or over
links to other machines."""
DROPPED_MAX = 256 * 1024
"""Bytes read at once from a link that is ending."""

EXIT_STUCK = 75
"""Exit code of a replica with a stuck run (sysexits.h: EX_TEMPFAIL)."""

# Used for every frame; attribute access on an enum class is slow.
_REQUEST = Kind.REQUEST
_ALONE = int(Flag.ALONE)
_SLAB = int(Flag.SLAB)


class Serving:
    """Serves one loaded engine to every gateway that connects to the data listener."""

    def __init__(  # noqa: PLR0913 - the composition of the replica's parts
        self,
        loop: Loop,
        worker: Worker,
        listener: DataListener,
        engine: Engine,
        spec: ModelSpec,
        *,
        on_first_run: Callable[[int], None],
        on_rows_mixed: Callable[[str], None],
        on_exit: Callable[[int], None],
        greeting: str = "",
        guard: Callable[[], None] | None = None,
    ) -> None:
        """Callbacks: `on_first_run(us)` receives the duration of the first engine run,
        `on_rows_mixed(reason)` why batching was turned off, `on_exit(code)` ends the process.
        `greeting` is the first text on every link, "" for none; `guard` is called before frames are
        handled, and may drain."""
        self._greeting = greeting
        self._guard = guard
        self._loop = loop
        self._listener = listener
        self._spec = spec
        self._links: dict[int, SocketEnd] = {}
        self._next_link = 0
        self._last_meta: tuple[AnswerMeta | None, bytes] = None, b""
        self._on_first_run: Callable[[int], None] | None = on_first_run
        self._on_exit = on_exit
        self._shared = SharedMemory(loop, self._drop)
        self.intake = Intake(limit=max(2, 2 * spec.batch_max), last_end_s=loop.clock())
        runner = Runner(
            engine, spec, loop.clock, lambda reason: loop.post(lambda: on_rows_mixed(reason))
        )
        self.stop_batching = runner.stop_batching
        self.limit_rows = runner.limit_rows
        self.busy_s = runner.busy_s
        """Total run time of the engine in seconds, so far."""
        self.runs = runner.runs
        """Counts of the successful runs."""
        self._execution = Execution(
            loop,
            worker,
            self.intake,
            runner,
            spec,
            started=self._send_started,
            emit=self._emit,
            stuck=self._on_stuck,
        )
        listener.setblocking(False)
        loop.watch(listener, self._accept)

    @property
    def marks_started(self) -> bool:
        """Whether STARTED frames are sent; inline runs are too short for them."""
        return not self._spec.inline

    def drain(self, *, hand_back: bool = False) -> None:
        """Refuse new requests, answer the accepted ones, then exit.

        With `hand_back`, requests that have not started are returned to the gateways.
        """
        if not self.intake.draining:
            self.intake.draining = True
            for link, end in self._links.items():
                end.send(pack(Kind.GOAWAY, aux=self.intake.last_accepted.get(link, 0)))
        if hand_back:
            for job in self.intake.take_all() + self._execution.hand_back():
                self._refuse(job, NotStarted.DRAINING)

    def turn_end(self) -> None:
        """Run the requests of this turn and write all answers. Called once per loop turn."""
        self._execution.pump()
        flushed = [self._flush(link, end) for link, end in list(self._links.items())]
        if self.intake.draining and not self.intake.owed and all(flushed):
            self._on_exit(0)

    def part(self) -> None:
        """End the links to gateways on other machines, after the loop. Waits until they have ended
        theirs, at most FINAL_FLUSH_S: TCP would lose answers that are on their way if a connection
        were closed while requests are unread (RFC 1122 section 4.2.2.13)."""
        if not self._greeting:
            return
        poll, until_s = select.poll(), self._loop.clock() + FINAL_FLUSH_S
        socks = {end.sock.fileno(): end.sock for end in self._links.values()}
        for sock in socks.values():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            poll.register(sock, select.POLLIN)
        while socks and (left_s := until_s - self._loop.clock()) > 0:
            for descriptor, _ in poll.poll(left_s * 1e3):
                if _has_ended(socks[descriptor]):
                    poll.unregister(socks.pop(descriptor))

    def _flush(self, link: int, end: SocketEnd) -> bool:
        """Write as much as the link accepts; return True if nothing is left."""
        try:
            done = end.flush()
        except LinkError:
            self._drop(link)
            return True
        self._loop.want_write(end.sock, not done)
        return done

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._links) >= LINKS_MAX:
            sock.close()
            return
        self._next_link += 1
        link = self._next_link
        end = self._links[link] = SocketEnd(sock, takes_descriptor=True)
        if self._greeting:
            end.send(pack_greeting(self._greeting))
        self._loop.watch(sock, lambda: self._readable(link))

    def _readable(self, link: int) -> None:
        end = self._links.get(link)
        if end is None:  # dropped earlier in this turn
            return
        try:
            frames = end.receive()
            if self._guard is not None:
                self._guard()
            now = self._loop.clock()
            for frame in frames or ():
                if frame.kind is _REQUEST:
                    self._request(link, frame, now)
                else:
                    self._handle(link, frame)
        except LinkError:
            frames = None
        if frames is None:
            self._drop(link)

    def _drop(self, link: int) -> None:
        end = self._links.pop(link)
        self._loop.forget(end.sock)
        end.close()
        self._shared.drop(link)
        self.intake.lose_link(link)
        self._execution.stop_unwanted()

    def _handle(self, link: int, frame: Frame) -> None:
        if frame.kind is Kind.CANCEL:
            self._cancel(link, frame.id)
        elif frame.kind is Kind.FREED:
            self._shared.on_freed(link, frame)
        elif frame.kind is Kind.HELLO:
            self._hello(link, frame)
        else:
            raise LinkError(f"unexpected {frame.kind.name} on a data link")

    def _hello(self, link: int, frame: Frame) -> None:
        if frame.aux != VERSION:
            raise LinkError(f"link version {frame.aux} is not {VERSION}")
        answer = {"revision": self._spec.revision, "limit": self.intake.limit}
        if self._shared.accept(link, self._links[link]):
            answer["slabs"] = True
        self._links[link].send(pack(Kind.HELLO, body=json.dumps(answer).encode(), aux=VERSION))
        if self.intake.draining:
            self._links[link].send(pack(Kind.GOAWAY))

    def _request(self, link: int, frame: Frame, now: float) -> None:
        _, flags, id, timeout_ms, meta, _ = frame
        body: Piece = frame.body
        if flags & _SLAB:
            if (link, id) in self.intake.owed:
                raise LinkError(f"request id {id} is in use")
            body = self._shared.request_body(link, frame)
        is_alone = flags & _ALONE != 0
        job = Job(link, id, unpack_request(meta), body, timeout_ms / 1000, now, is_alone)
        try:
            reason = self.intake.accept(job)
        except KeyError:
            raise LinkError(f"request id {id} is in use") from None
        if reason is not None:
            self._shared.release(job)
            self._links[link].send(pack(Kind.NOT_STARTED, id, aux=reason))

    def _cancel(self, link: int, id: int) -> None:
        job = self.intake.cancel(link, id)
        if job is None:
            return
        if job in self.intake.waiting:
            self.intake.waiting.remove(job)
            self._emit(job, None)
        elif self._execution.withdraw(job):
            self._emit(job, None)
        else:
            self._execution.stop_unwanted()

    def _send_started(self, jobs: list[Job]) -> None:
        """Send STARTED at once, in any thread, because the run may kill this process.

        The loop flushes what the socket does not accept, or detects that the socket is broken.
        """
        ids: dict[int, list[int]] = {}
        for job in jobs:
            ids.setdefault(job.link, []).append(job.id)
        for link, started in ids.items():
            end = self._links.get(link)
            if end is not None:
                end.send(pack(Kind.STARTED, body=struct.pack(f"<{len(started)}I", *started)))
                with contextlib.suppress(LinkError):
                    if end.flush():
                        continue
                self._loop.post(self._flush_later)

    @staticmethod
    def _flush_later() -> None:
        """Do nothing. Posted to wake the loop, which flushes every link at the end of its turn."""

    def _refuse(self, job: Job, reason: NotStarted) -> None:
        self._finish(job, pack(Kind.NOT_STARTED, job.id, aux=reason))

    def _emit(self, job: Job, outcome: Outcome) -> None:
        if job.cancelled or outcome is None:
            self._finish(job, pack(Kind.CANCELLED, job.id))
        elif isinstance(outcome, Answer):
            self._finish(job, self._packed(job, outcome))
        elif isinstance(outcome, NotStarted):
            self._refuse(job, outcome)
        else:
            self._finish(job, pack(Kind.FAILED, job.id, json.dumps(outcome.to_json()).encode()))

    def _packed(self, job: Job, answer: Answer) -> list[Piece]:
        meta, json_length, body, is_first = answer
        if self._on_first_run is not None:
            self._on_first_run(meta.compute_us)
            self._on_first_run = None
        # Consecutive answers of a batch share their meta.
        last, packed = self._last_meta
        if meta is not last:
            packed = pack_answer(meta)
            self._last_meta = meta, packed
        shown, slab = self._shared.put_answer(job.link, body)
        flags = (Flag.FIRST if is_first else 0) | slab
        return pack(Kind.RESPONSE, job.id, shown, meta=packed, flags=flags, aux=json_length)

    def _finish(self, job: Job, frame: list[Piece]) -> None:
        end = self._links.get(job.link)
        if end is not None:
            end.send(frame)
        self._shared.release(job)
        for link in self.intake.finish(job, self._loop.clock()):
            self._links[link].send(pack(Kind.WINDOW))

    def _on_stuck(self, run: Run) -> None:
        """Handle a stopped run that does not end: answer its request, return the rest, exit."""
        timeout = RequestError(
            EXECUTION_TIMEOUT, f"the run did not end after its timeout of {run.timeout_s:g} s"
        )
        running = set(map(id, run.jobs))
        for job in list(self.intake.owed.values()):
            if id(job) not in running:
                self._refuse(job, NotStarted.DRAINING)
            elif len(run.jobs) == 1 and not run.is_cut_short:
                self._emit(job, timeout if run.why_stopped == "timeout" else None)
            else:
                self._refuse(job, NotStarted.BATCH_TIMEOUT)
        for end in self._links.values():
            end.sock.settimeout(FINAL_FLUSH_S)
            with contextlib.suppress(LinkError):
                end.flush()
        self._on_exit(EXIT_STUCK)


def _has_ended(sock: socket.socket) -> bool:
    """Drop what has come; return whether the other side has ended the stream."""
    try:
        return not sock.recv(DROPPED_MAX)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
