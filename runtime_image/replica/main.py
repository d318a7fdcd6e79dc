"""Main program of a replica: record, handshake, loading, serving; and its control link."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runtime_image.contract.compiled import UpgradeResult
from runtime_image.contract.control import BatchingOff, Hello, Loaded, LoadFailed
from runtime_image.contract.enrolment import FetchedFile
from runtime_image.contract.errors import LoadError, describe
from runtime_image.contract.link import BUSY_MASK, REFUTATION_MAX, Kind
from runtime_image.contract.model import PREPARES, ModelSpec
from runtime_image.engines.base import Engine
from runtime_image.engines.loading import load_engine
from runtime_image.engines.upgrade import SessionUpgrade, log_line, resident_mib
from runtime_image.link.frames import Frame, LinkError, Piece, pack
from runtime_image.link.handshake import read_bind
from runtime_image.link.record import RecordRefused, read_record
from runtime_image.replica.loop import Loop
from runtime_image.replica.manager_link import NoManager, hello_of
from runtime_image.replica.opening import open_links
from runtime_image.replica.serving import Serving
from runtime_image.replica.upgrading import Upgrades, read_upgrade
from runtime_image.replica.worker import Worker, end_process

if TYPE_CHECKING:
    from runtime_image.replica.entrance import Enrolment
    from runtime_image.replica.fetching import Fetched, Fetcher

REPORT_SENT_S = 5.0
"""Seconds that a trial waits until its report is sent, before it prepares the model."""
EXIT_ORPHANED = 70
"""Exit code of a replica without a manager for `orphan_s` (sysexits.h: EX_SOFTWARE)."""

GARBAGE_MAX = 20_000
"""Object count between two garbage collections for models without a handler: a full batch makes
some thousand objects, without cycles."""


def main(run_dir: str, first_line_s: float, enrolment: Enrolment | None = None) -> int:
    """Run the replica of `run_dir` and return its exit code.

    1 if the manager refused the replica or is gone, or its device is missing. 70 if no manager on
    another machine ever answered. A code from
    `link/record.py` if the record is unusable.
    """
    try:
        replica = Replica(Path(run_dir), first_line_s, enrolment)
    except RecordRefused as error:
        print(f"fngate replica: {error}", flush=True)  # noqa: T201 - the log is its standard output
        return error.exit_code
    except NoManager as error:
        print(f"fngate replica: {error}", flush=True)  # noqa: T201 - the log is its standard output
        return EXIT_ORPHANED
    except (LinkError, LoadError, OSError) as error:
        print(f"fngate replica: {error}", flush=True)  # noqa: T201 - the log is its standard output
        return 1
    try:
        return replica.run()
    except BaseException as error:  # noqa: BLE001 - a handler's SystemExit(0) is not a clean exit
        end_process(error)


class Replica:
    """One replica process: connects to its manager, loads its model, serves, drains, exits.

    A standby has imported the libraries and waits for BIND.
    """

    def __init__(
        self, run_dir: Path, first_line_s: float, enrolment: Enrolment | None = None
    ) -> None:
        """`first_line_s` is CLOCK_MONOTONIC at this process's first line of Python, or at the end
        of its enrolment."""
        self._record = enrolment.record if enrolment is not None else read_record(run_dir)
        self._was_standby = self._record.role == "standby"
        self._gpus = enrolment.gpus if enrolment is not None else None
        self._import()
        self._loop = Loop(time.monotonic)
        self._worker = Worker()
        self._serving: Serving | None = None
        self._upgrade: SessionUpgrade | None = None
        self._upgrades: Upgrades | None = None
        self._fetcher: Fetcher | None = None
        self._loaded: Loaded | None = None
        self._is_bound = False
        self._may_batch = True
        self._loaded_sent: threading.Event | None = None
        self._exit_code = 0
        self._greeted_s = time.monotonic()
        self._phases = dict(self._record.phases)
        if not self._was_standby:  # no caller waits for a standby's start
            if not self._record.data:  # else another machine's clock
                self._phases["start"] = (first_line_s - self._record.launched_s) * 1e3
            self._phases["import"] = (self._greeted_s - first_line_s) * 1e3
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # TERM keeps its default action until the loop exists: a Python handler that runs just
        # before the blocking wait for WELCOME could not interrupt it.
        self._manager, self._listener, frames, self._guard, self._connect = open_links(
            self._loop,
            run_dir,
            self._record,
            hello=self._hello,
            on_frame=self._handle,
            orphaned=self._on_orphaned,
            enrolment=enrolment,
        )
        self._loop.turn_end = self._turn_end if self._guard is None else self._guarded_turn_end
        signal.signal(signal.SIGTERM, lambda *_: self._loop.post(self._terminate))
        for frame in frames:
            self._manager.deliver(frame)

    def _import(self) -> None:
        """Import the slow libraries; counted as the import phase."""
        if self._was_standby:
            from runtime_image.engines.loading import preload

            preload(self._record.device_kind)
        elif self._record.engine == "onnx":
            with suppress(ImportError):  # the load reports it
                import onnxruntime  # noqa: F401 - imported ahead of the load
        # These objects live as long as the process: exclude them from later collections.
        gc.freeze()
        gc.enable()  # disabled in `__main__`

    def run(self) -> int:
        """Serve until drained, orphaned or terminated; return the exit code."""
        self._loop.run()
        if self._serving is not None:
            self._serving.part()
        if self._is_building():
            os._exit(self._exit_code)
        return self._exit_code

    def _is_building(self) -> bool:
        """Whether ONNX Runtime may be building a session: an orderly exit of the process would free
        memory that is in use. Prevents further building."""
        upgrades = [one.abandon() for one in (self._upgrade, self._upgrades) if one is not None]
        return any(upgrades) or self._record.role == "build"

    def _guarded_turn_end(self) -> None:
        """Start nothing after the lease is over, even if it was accepted before."""
        assert self._guard is not None
        self._guard()
        self._turn_end()

    def _turn_end(self) -> None:
        if self._serving is not None:
            self._serving.turn_end()
        self._manager.flush()
        if self._loaded_sent is not None:
            self._loaded_sent.set()
            self._loaded_sent = None

    def _hello(self, dial: int) -> Hello:
        """Return HELLO for a manager that knows nothing of this replica yet."""
        if self._serving is not None:
            self._serving.runs.repeat()
        return hello_of(self._record, self._phases, self._loaded, dial, self._gpus)

    def _handle(self, frame: Frame) -> None:
        if frame.kind is Kind.PING:
            self._manager.send(self._pong())
        elif frame.kind is Kind.BIND:
            self._bind(frame)
        elif frame.kind is Kind.DRAIN:
            self._drain(frame.aux)
        elif frame.kind is Kind.BATCHING_OFF:
            self._stop_batching()
        elif frame.kind is Kind.UPGRADE:
            self._upgrade_to(frame)
        elif frame.kind is not Kind.WELCOME:
            raise LinkError(f"unexpected {frame.kind.name} on the control link")

    def _pong(self) -> list[Piece]:
        """Return PONG with the model's total run time, and its runs if there were any since the
        last one."""
        if self._serving is None:
            return pack(Kind.PONG)
        busy_ms = int(self._serving.busy_s() * 1e3) & BUSY_MASK
        return pack(Kind.PONG, body=self._serving.runs.report(), aux=busy_ms)

    def _bind(self, frame: Frame) -> None:
        """Start to load. A second BIND, sent by a manager that connected meanwhile, is ignored."""
        if self._is_bound:
            return
        began = self._loop.clock()
        try:
            request, spec = read_bind(frame)
            self._check_bound(request["bound"])
        except LinkError as error:
            self._fail({"stage": "load", "reason": str(error)[:4000]})
            return
        self._is_bound = True
        if not self._was_standby:
            since_s = self._greeted_s
        else:
            since_s = began if self._record.data else request["assigned_s"]
        bind_ms = max(0.0, began - since_s) * 1e3
        self._phases = {**request["phases"], **self._phases, "bind": bind_ms}
        self._record = replace(
            self._record,
            role=request["role"],
            namespace=request["namespace"],
            bound=request["bound"],
            devices=tuple(request["devices"]),
            device_kind=request["device_kind"],
            threads=request["threads"],
            memory_mib=request["memory_mib"],
        )
        self._worker.submit(lambda: self._load(spec, request.get("files", []), began))

    def _check_bound(self, bound: str) -> None:
        """Raise LinkError for another function's model: files and limits belong to the first
        one."""
        if self._record.bound not in ("", bound):
            raise LinkError(f"expected BIND to {self._record.bound}, got one to {bound}")

    def _load(self, spec: ModelSpec, files: list[FetchedFile], began: float) -> None:
        """Load the model, whose `files` are fetched first, in the worker thread, so that the loop
        still answers PING."""
        try:
            if files and (fetched := self._fetch(files)).files:
                self._phases["fetch"] = fetched.ms
                began = self._loop.clock()
            engine, spec, loaded = self._loaded_engine(spec, began)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            self._loop.post(partial(self._fail, _failure_of(error)))
            return
        signature = engine.signature
        sent = threading.Event()
        self._loop.post(partial(self._serve, engine, spec, loaded, sent))
        if not loaded.get("report", {}).get(PREPARES):
            return
        if self._record.role == "build":
            from runtime_image.verification.build import build_and_serve

            engines = [engine]
            del engine
            sent.wait(REPORT_SENT_S)
            build_and_serve(self._listener, self._record, spec, engines)
        else:
            from runtime_image.verification.transfer import prepare

            del engine  # frees its memory for the preparation
            # Wait until the report is sent: a preparation may kill the process.
            sent.wait(REPORT_SENT_S)
            prepare(self._listener, self._record, spec, signature, loaded["report"])

    def _fetch(self, files: list[FetchedFile]) -> Fetched:
        """Fetch files to the model folder. Raises LoadError. In any thread but the loop's."""
        from runtime_image.replica.fetching import fetcher  # only replicas that dial in

        if self._fetcher is None:
            self._fetcher = fetcher(self._connect, Path(self._record.model_dir))
        return self._fetcher.fetch(files)

    def _loaded_engine(self, spec: ModelSpec, began: float) -> tuple[Engine, ModelSpec, Loaded]:
        """Return the engine, the spec of what it loaded, and LOADED. Raises LoadError, or any
        error of a handler."""
        folder, kind = Path(self._record.model_dir), self._record.device_kind
        subject = None
        if self._record.role == "trial":
            from runtime_image.verification.subject import begin, report_of  # takes 4 ms

            check_compiler(spec, kind)
            subject = begin(spec, self._record)
            spec, began = subject.spec, self._loop.clock()
        not_compiled: list[str] = []
        engine = load_engine(
            # A build compiles the model alone: a handler may do anything in its `load`.
            replace(spec, handler="", compiled=None) if self._record.role == "build" else spec,
            folder,
            device_kind=kind,
            threads=self._record.threads,
            not_compiled=not_compiled.append,
        )
        load_ms = (self._loop.clock() - began) * 1e3
        loaded: Loaded = {
            "revision": spec.revision,
            "limit": 0,
            "marks_started": True,
            "phases": {**self._phases, "load": load_ms},
            "memory_mib": resident_mib(),
            "session": engine.session,
        }
        if not_compiled:
            loaded["not_compiled"] = not_compiled[0]
        if subject is not None:
            if self._gpus is not None and (seen := self._gpus.now()) is not None:
                loaded["gpus"] = seen
            loaded["report"] = report_of(
                engine, subject, folder, load_ms, kind, self._record.threads
            )
        elif self._record.role == "build":
            loaded["report"] = {PREPARES: True}
        return engine, spec, loaded

    def _fail(self, failure: LoadFailed) -> None:
        self._is_bound = False
        self._manager.send(pack(Kind.LOAD_FAILED, body=json.dumps(failure).encode()))

    def _serve(
        self, engine: Engine, spec: ModelSpec, loaded: Loaded, sent: threading.Event
    ) -> None:
        """Report the load and serve, in the loop. `sent` is set after LOADED has been written."""
        self._loaded_sent = sent
        if self._record.role == "serve":
            self._serving = Serving(
                self._loop,
                self._worker,
                self._listener,
                engine,
                spec,
                on_first_run=lambda us: self._manager.send(pack(Kind.FIRST_RUN, aux=us)),
                on_rows_mixed=self._on_rows_mixed,
                on_exit=self._exit,
                greeting=self._record.greeting,
                guard=self._guard,
            )
            if not self._may_batch:
                self._serving.stop_batching()
            loaded["limit"] = self._serving.intake.limit
            loaded["marks_started"] = self._serving.marks_started
            # The model's objects live as long as the process, too.
            gc.collect()
            gc.freeze()
            if not spec.handler:
                gc.set_threshold(GARBAGE_MAX)
        self._loaded = loaded
        self._manager.send(pack(Kind.LOADED, body=json.dumps(loaded).encode()))
        if self._serving is None:
            return
        self._upgrades = Upgrades(
            engine,
            spec,
            self._record,
            fetch=self._fetch,
            limit_rows=self._serving.limit_rows,
            post=self._loop.post,
            report=self._on_upgraded,
        )
        if engine.upgrade is not None:
            self._upgrade = engine.upgrade
            self._upgrade.start(self._record.memory_mib)

    def _upgrade_to(self, frame: Frame) -> None:
        compiled, files = read_upgrade(frame)
        if self._upgrades is None:
            self._on_upgraded({"session": "none", "reason": "no model is loaded"})
        else:
            self._upgrades.start(compiled, files)

    def _on_upgraded(self, result: UpgradeResult) -> None:
        """Send UPGRADED. A manager that connects later finds the session in HELLO."""
        if self._loaded is not None and result["session"] == "compiled":
            self._loaded["session"] = "compiled"
            self._loaded.pop("not_compiled", None)
        self._manager.send(pack(Kind.UPGRADED, body=json.dumps(result).encode()))

    def _stop_batching(self) -> None:
        self._may_batch = False
        if self._serving is not None:
            self._serving.stop_batching()

    def _on_rows_mixed(self, reason: str) -> None:
        """Send BATCHING_OFF. A manager that connects later finds the reason in HELLO."""
        assert self._loaded is not None, "joined runs exist only after the load"
        log_line(f"batching is off: {reason}")
        message: BatchingOff = {"reason": reason[:REFUTATION_MAX]}
        self._loaded["batching_off"] = message["reason"]
        self._manager.send(pack(Kind.BATCHING_OFF, body=json.dumps(message).encode()))

    def _drain(self, if_idle_ms: int) -> None:
        if self._serving is None:
            self._exit(0)
            return
        idle_ms = int(self._serving.intake.idle_s(self._loop.clock()) * 1e3)
        if idle_ms < if_idle_ms:
            self._manager.send(pack(Kind.NOT_IDLE, aux=idle_ms))
        else:
            self._serving.drain()

    def _on_orphaned(self) -> None:
        """Exit without a manager, after answering the gateways' accepted requests."""
        self._exit_code = EXIT_ORPHANED
        self._terminate()

    def _terminate(self) -> None:
        if self._serving is None:
            self._exit(0)
        else:
            self._serving.drain(hand_back=True)

    def _exit(self, exit_code: int) -> None:
        if self._fetcher is not None:
            self._fetcher.cancel()
        if exit_code:
            # A stuck run cannot be ended from Python; the process must end.
            os._exit(exit_code)
        self._loop.stop()


def check_compiler(spec: ModelSpec, device_kind: str) -> None:
    """Raise LoadError if a trial's owner requires a compiler that cannot be used here."""
    if spec.build is None:
        return
    from runtime_image.engines.compiled import Place

    place = Place(spec, Path(), device_kind, 1)
    try:
        place.timing_key(spec.build.compiler)
    except LoadError as error:
        raise LoadError(
            f'engine = "{spec.build.compiler}": {error}; with engine = "auto" the model is served'
            " without it"
        ) from error


def _failure_of(error: BaseException) -> LoadFailed:
    """Return the failure report of a load; `error` may come from a handler."""
    if isinstance(error, LoadError):
        return {"stage": error.stage, "reason": describe(error, str)[:4000]}
    return {"stage": "load", "reason": describe(error)[:4000]}
