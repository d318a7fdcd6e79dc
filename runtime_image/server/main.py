"""Main program of a sidecar: handshake, the server's start, serving, and the server's end."""

from __future__ import annotations

import gc
import json
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtime_image.contract.control import PROBED_S, Hello, Loaded, LoadFailed
from runtime_image.contract.enrolment import FETCHED_FILE, FetchedFile
from runtime_image.contract.errors import LoadError
from runtime_image.contract.health import Health
from runtime_image.contract.link import Flag, Kind
from runtime_image.contract.parks import Life, LifeState, life_of
from runtime_image.contract.samples import Sampled, SampleVerdict, golden_from_json
from runtime_image.contract.server import OVER_MEMORY, ServerSpec
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.handshake import read_server_bind
from runtime_image.link.record import RecordRefused, read_record
from runtime_image.proc import read_text
from runtime_image.replica.loop import Loop
from runtime_image.replica.manager_link import NoManager, hello_of
from runtime_image.replica.opening import open_links
from runtime_image.replica.worker import end_process
from runtime_image.server import process_tree
from runtime_image.server.golden_asks import GoldenAsks, outcome
from runtime_image.server.health import HealthMonitor
from runtime_image.server.links import Links
from runtime_image.server.parks.engine import ParkedEngine
from runtime_image.server.parks.host_memory import HostMemoryPeak, shortage
from runtime_image.server.parks.parking import COMMANDS, Parking, Unserved
from runtime_image.server.processes import Folders, ServerProcesses
from runtime_image.server.start import WATCH_S, ServerStart

if TYPE_CHECKING:
    from runtime_image.replica.entrance import Enrolment
    from runtime_image.replica.fetching import Fetched, Fetcher

EXIT_FAILED: Final = 1
EXIT_ORPHANED: Final = 70
"""Exit code of a sidecar without a manager for `orphan_s`, as of any replica."""
FAILED_S: Final = 5.0
"""Seconds that a sidecar whose server did not start waits for its release, so that the manager
reads LOAD_FAILED before it sees the exit."""
REASON_MAX: Final = 4000


def main(run_dir: str, first_line_s: float, enrolment: Enrolment | None = None) -> int:
    """Run the sidecar of `run_dir` and return its exit code; see `runtime_image.replica.main`."""
    try:
        sidecar = Sidecar(Path(run_dir), first_line_s, enrolment)
    except RecordRefused as error:
        say(str(error))
        return error.exit_code
    except NoManager as error:
        say(str(error))
        return EXIT_ORPHANED
    except (LinkError, OSError) as error:
        say(str(error))
        return EXIT_FAILED
    return sidecar.run()


def say(text: str) -> None:
    """Write the line that is shown as the reason of an exit."""
    print(f"fngate replica: {text}", flush=True)  # noqa: T201 - the log is its standard output


def note(text: str) -> None:
    """Write one line to the log."""
    print(f"fngate: {text}", flush=True)  # noqa: T201 - see above


class Sidecar:
    """One sidecar: connects to its manager, starts its server, serves, drains, ends it, exits."""

    def __init__(
        self, run_dir: Path, first_line_s: float, enrolment: Enrolment | None = None
    ) -> None:
        """`first_line_s` is CLOCK_MONOTONIC at this process's first line of Python, or at the end
        of its enrolment."""
        gc.freeze()
        gc.enable()  # disabled in `__main__`
        self._record = enrolment.record if enrolment is not None else read_record(run_dir)
        self._run_dir = run_dir
        self._loop = Loop(time.monotonic)
        self._processes = ServerProcesses(self._loop, exited=self._on_server_exit)
        self._spec: ServerSpec | None = None
        self._start: ServerStart | None = None
        self._links: Links | None = None
        self._health: HealthMonitor | None = None
        self._is_asked = False
        """Whether the manager knows HEALTH."""
        self._golden: GoldenAsks | None = None
        self._parking: Parking | None = None
        self._fetcher: Fetcher | None = None
        self._dial = 0
        self._loaded: Loaded | None = None
        self._peak_mib = self._began_s = 0.0
        self._is_ending = self._is_staying = False
        self._exit_code = 0
        self._greeted_s = time.monotonic()
        self._phases = {**self._record.phases, "import": (self._greeted_s - first_line_s) * 1e3}
        if not self._record.data:  # else another machine's clock
            self._phases["start"] = (first_line_s - self._record.launched_s) * 1e3
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._loop.turn_end = self._turn_end
        frames = self._greet(enrolment)
        signal.signal(signal.SIGTERM, lambda *_: self._loop.post(partial(self._end, 0)))
        for frame in frames:
            self._manager.deliver(frame)

    def _greet(self, enrolment: Enrolment | None) -> list[Frame]:
        """Connect to the manager; return frames that came after WELCOME.

        TERM keeps its default action meanwhile: there is no server yet.
        """
        self._gpus = enrolment.gpus if enrolment is not None else None
        self._manager, self._listener, frames, self._guard, self._connect = open_links(
            self._loop,
            self._run_dir,
            self._record,
            hello=self._hello,
            on_frame=self._handle,
            orphaned=partial(self._end, EXIT_ORPHANED),
            enrolment=enrolment,
        )
        return frames

    def run(self) -> int:
        """Serve until drained, orphaned, terminated, or the server's end; return the exit code."""
        self._loop.run()
        return self._exit_code

    def _turn_end(self) -> None:
        if self._links is not None:
            self._links.turn_end()
        self._manager.flush()

    def _hello(self, dial: int) -> Hello:
        self._dial = dial
        loaded = self._loaded
        if loaded is not None and self._health is not None:
            loaded = self._health.recalled(loaded)
        if loaded is not None and self._parking is not None:
            parking = self._parking
            loaded = {**loaded, "life": parking.state, "has_slept": parking.has_slept}
        return hello_of(self._record, self._phases, loaded, dial, self._gpus)

    # The manager

    def _handle(self, frame: Frame) -> None:
        if frame.kind is Kind.PING:
            self._is_asked = bool(frame.flags & Flag.HEALTH)
            busy_ms = self._links.busy_ms() if self._links is not None else 0
            self._manager.send(pack(Kind.PONG, aux=busy_ms))
        elif frame.kind is Kind.BIND:
            self._bind(frame)
        elif frame.kind in (Kind.DRAIN, Kind.QUIESCE, Kind.RESUME):
            self._drain(frame)
        elif frame.kind is Kind.SAMPLE:
            self._sample()
        elif frame.kind in COMMANDS:
            self._change_life(frame)
        elif frame.kind is Kind.LEARNT and self._health is not None:
            self._health.keep_learnt(frame)
        elif frame.kind not in (Kind.WELCOME, Kind.BATCHING_OFF):
            raise LinkError(f"unexpected {frame.kind.name} on the control link")

    def _drain(self, frame: Frame) -> None:
        if self._links is None:
            if frame.kind is not Kind.RESUME:
                self._end(0)
        elif frame.kind is Kind.DRAIN:
            self._links.drain(frame.aux)
        elif frame.kind is Kind.QUIESCE:
            self._links.quiesce()
        else:
            self._links.resume()
            if self._parking is not None:
                self._parking.repeat(self._dial)

    def _sample(self) -> None:
        """Ask the golden sample, and send what it showed, unless the manager has become another one
        meanwhile, which has not asked."""
        dial = self._dial

        def done(found: Sampled) -> None:
            if dial == self._dial and not self._is_ending:
                self._manager.send(pack(Kind.SAMPLED, body=json.dumps(found).encode()))

        is_awake = self._parking is None or self._parking.state is LifeState.READY
        if self._golden is None or self._links is None:
            done(outcome(SampleVerdict.NONE, "it does not serve"))
        elif not is_awake:
            done(outcome(SampleVerdict.NONE, "it is parked"))
        else:
            self._golden.begin(done, waits=self._links.has_one_busy_slot)

    # Parks

    def _change_life(self, frame: Frame) -> None:
        """Handle PARK, UNPARK and VERIFY."""
        if self._parking is not None:
            self._parking.handle(frame, self._dial)
        else:
            self._tell_life(life_of(COMMANDS[frame.kind], "it cannot be parked", 0.0), self._dial)

    def _tell_life(self, life: Life, dial: int) -> None:
        """Send what became of a command, unless the manager has become another one meanwhile, which
        has not told it."""
        if dial == self._dial and not self._is_ending:
            # Optional, as PROBED.
            body = json.dumps(life).encode()
            self._manager.send(pack(Kind.LIFE, flags=Flag.OPTIONAL, body=body))

    def _on_quiet(self) -> None:
        """Park the server, unless its golden sample is being asked: a sleep would cut that off."""
        assert self._links is not None
        assert self._parking is not None
        if self._golden is not None and self._golden.is_asking:
            self._links.serve()
            self._manager.send(pack(Kind.NOT_IDLE))
        else:
            self._parking.on_quiet(self._dial)

    def _bind(self, frame: Frame) -> None:
        """Start the server. A second BIND, of a manager that connected meanwhile, is ignored."""
        if self._spec is not None or self._is_ending:
            return
        self._began_s = self._loop.clock()
        try:
            request, self._spec = read_server_bind(frame)
        except LinkError as error:
            self._fail(str(error), stage="load")
            return
        bind_ms = max(0.0, self._began_s - self._greeted_s) * 1e3
        self._phases = {**request["phases"], **self._phases, "bind": bind_ms}
        self._record = replace(
            self._record,
            role=request["role"],
            bound=request["bound"],
            memory_mib=request["memory_mib"],
        )
        files, secrets = request.get("files", []), request.get("secrets", {})
        if files:
            self._fetch(files, secrets)
        else:
            self._begin(self._spec, secrets)

    def _fetch(self, files: list[FetchedFile], secrets: Mapping[str, str]) -> None:
        """Fetch the server's files in a thread, so that the loop still answers PING; then start
        it."""
        from runtime_image.replica.fetching import fetcher  # only replicas that dial in

        def run(fetch: Fetcher) -> None:
            try:
                fetched = fetch.fetch(files)
            except LoadError as error:
                self._loop.post(partial(self._fail, str(error), stage=error.stage))
            except BaseException as error:  # noqa: BLE001 - a thread's error would be lost
                end_process(error)
            else:
                self._loop.post(partial(self._on_fetched, fetched, thread, secrets))

        try:
            self._fetcher = fetcher(self._connect, Path(self._record.model_dir))
        except LoadError as error:
            self._fail(str(error), stage=error.stage)
            return
        thread = threading.Thread(target=run, args=(self._fetcher,), name="fetch", daemon=True)
        thread.start()

    def _on_fetched(
        self, fetched: Fetched, thread: threading.Thread, secrets: Mapping[str, str]
    ) -> None:
        thread.join()  # it is about to end; only a process of one thread enters namespaces
        if self._is_ending or self._spec is None:
            return
        if fetched.files:
            self._phases["fetch"] = fetched.ms
        if self._spec.is_apart:
            (self._run_dir / FETCHED_FILE).touch()
        self._began_s = self._loop.clock()
        self._begin(self._spec, secrets)

    def _begin(self, spec: ServerSpec, secrets: Mapping[str, str]) -> None:
        """Start the server, or await it; its files are there."""
        try:
            self._start = ServerStart(
                self._loop,
                spec,
                self._processes,
                Folders.below(self._run_dir),
                Path(self._record.model_dir),
                is_trial=self._record.role == "trial",
                log=note,
                ready=self._on_ready,
                failed=self._fail,
            )
            if spec.is_apart:
                self._start.await_server()
            else:
                self._start.begin(secrets)
                self._loop.after(WATCH_S, self._watch)
        except (OSError, ValueError) as error:
            self._fail(f"cannot start the server: {error}")
        else:
            self._loop.after(PROBED_S, self._tell_probed)

    # The start

    def _tell_probed(self) -> None:
        """Tell the manager every PROBED_S what the probes of the start meet."""
        probed = self._start.probed() if self._start is not None and not self._is_ending else None
        if probed is None:
            return
        body = json.dumps(probed).encode()
        # Optional: a manager of an earlier version, which has adopted this sidecar, skips it.
        self._manager.send(pack(Kind.PROBED, flags=Flag.OPTIONAL, body=body))
        self._loop.after(PROBED_S, self._tell_probed)

    def _on_ready(self) -> None:
        """Try the samples of a trial, or serve."""
        self._measure()
        load_ms = (self._loop.clock() - self._began_s) * 1e3
        if self._record.role == "trial":
            threading.Thread(target=self._try_samples, args=(load_ms,), daemon=True).start()
        else:
            self._serve(load_ms, None)

    def _try_samples(self, load_ms: float) -> None:
        """Run the samples of a trial, in a thread, so that the loop still answers PING."""
        # Its imports take as long as a start.
        from runtime_image.server.trial import (
            checks_host,
            describe_calls,
            learn_golden,
            run_samples,
        )

        assert self._spec is not None
        assert self._start is not None
        files = Path(self._record.model_dir)
        try:
            found: dict[str, Any] = {
                "checks_host": checks_host(self._spec, self._start.server),
                **describe_calls(self._spec, self._start.server),
            }
            shown = run_samples(self._spec, self._start.server, files)
            found |= learn_golden(self._spec, self._start.server, files, load_ms)
        except LoadError as error:
            self._loop.post(partial(self._fail, str(error), stage=error.stage))
        except Exception as error:  # noqa: BLE001 - a thread's error would be lost
            self._loop.post(partial(self._fail, repr(error), stage="sample"))
        else:
            found["sample_outputs"] = {"requests": shown}
            self._loop.post(partial(self._serve, load_ms, found))

    def _serve(self, load_ms: float, found: dict[str, Any] | None) -> None:
        """Report that the server is ready and, unless this is a trial, serve. `found` are members
        of a trial's report, None for any other role."""
        if self._is_ending:
            return
        assert self._spec is not None
        assert self._start is not None
        self._measure()
        loaded: Loaded = {
            "revision": self._spec.revision,
            "limit": 0,
            "marks_started": True,
            "phases": {**self._phases, "load": load_ms},
            "memory_mib": self._peak_mib,
            "session": "none",
        }
        if found is not None:
            parkable = self._park_in_trial(self._spec, self._start, found)
            report = self._report(load_ms, self._start.note)
            loaded["report"] = {**report, **found, **parkable}
        else:
            loaded["limit"] = self._spec.concurrency
            self._open(self._spec, self._start)
        if self._parking is not None:
            loaded["life"] = self._parking.state
        self._loaded = loaded
        self._manager.send(pack(Kind.LOADED, body=json.dumps(loaded).encode()))

    def _open(self, spec: ServerSpec, start: ServerStart) -> None:
        """Serve."""
        files = Path(self._record.model_dir)
        self._golden = GoldenAsks(self._loop, spec.golden, start.server, files)
        self._links = Links(
            self._loop,
            self._listener,
            start.server,
            spec,
            first_open=lambda: self._manager.send(pack(Kind.FIRST_RUN)),
            not_idle=lambda ms: self._manager.send(pack(Kind.NOT_IDLE, aux=ms)),
            stop=partial(self._end, 0),
            suspect=self._suspect,
            parked=self._on_quiet,
            greeting=self._record.greeting,
            guard=self._guard,
        )
        self._health = HealthMonitor(
            self._loop,
            start.server,
            spec,
            start.path,
            self._links,
            processes=None if spec.is_apart else self._processes.running,
            tell=self._tell_health,
        )
        if spec.park is not None and spec.golden is not None:
            engine = ParkedEngine(spec.park, start.server, files, spec.golden)
            if engine.why_not:
                note(f"the server is not parked: {engine.why_not}")
            else:
                self._parking = Parking(
                    self._loop, engine, self._links, self._health, self._tell_life
                )

    def _park_in_trial(
        self, spec: ServerSpec, start: ServerStart, found: dict[str, Any]
    ) -> dict[str, str]:
        """Let the manager park the server of a trial, which has learnt its golden sample. Return
        why it cannot, as `no_park` of the report; {} if it can, or if no park is wanted."""
        if spec.park is None:
            return {}
        if "golden" not in found:
            return {"no_park": f"it has no golden sample: {found.get('no_golden', '')}"}
        golden = golden_from_json(found["golden"])
        engine = ParkedEngine(spec.park, start.server, Path(self._record.model_dir), golden)
        if engine.why_not:
            return {"no_park": engine.why_not}
        unserved = Unserved(self._on_trial_quiet)
        peak = None if spec.is_apart else HostMemoryPeak(self._private_mib)
        self._parking = Parking(self._loop, engine, unserved, unserved, self._tell_life, peak)
        return {}

    def _on_trial_quiet(self) -> None:
        assert self._parking is not None
        self._parking.on_quiet(self._dial)

    def _private_mib(self) -> float:
        """Return what the server's processes hold now. In any thread. The plain sum counts where
        the exact one cannot be read: a server may have changed its user."""
        processes = self._processes.running()
        return process_tree.private_mib(processes) or process_tree.resident_mib(processes)

    def _suspect(self) -> None:
        if self._health is not None:
            self._health.suspect()

    def _tell_health(self, health: Health) -> None:
        if self._is_asked:
            body = json.dumps(health).encode()
            self._manager.send(pack(Kind.HEALTH, body=body, flags=Flag.OPTIONAL))

    def _report(self, load_ms: float, note: str) -> dict[str, Any]:
        """Return the measurements of a trial's `Report` as JSON."""
        return {
            "signature": {"kind": "http", "inputs": [], "outputs": []},
            "load_ms": load_ms,
            "memory_mib": self._peak_mib,
            "latency_ms": {},
            "batchable": False,
            "why_not": "",
            "batch_max": 1,
            "profiled": True,
            "note": note,
        }

    # Memory

    def _measure(self) -> list[process_tree.Process]:
        processes = self._processes.running()
        self._peak_mib = max(self._peak_mib, process_tree.resident_mib(processes, is_peak=True))
        return processes

    def _watch(self) -> None:
        """End a server over its memory. The kernel's limit is per process; this sum is not."""
        if self._is_ending:
            return
        processes = self._measure()
        cap = self._record.memory_mib
        is_tried = self._record.role == "trial" and self._parking is not None
        # Nothing is known before of what a sleep takes.
        if is_tried and (short := shortage(read_text("/proc/meminfo"))):
            self._lose(short)
            return
        # The exact sum costs more, and is not above the plain one.
        if cap and process_tree.resident_mib(processes) > cap:
            used = process_tree.private_mib(processes)
            if used > cap:
                self._lose(f"the server used {used:.0f} MiB {OVER_MEMORY} {cap} MiB")
                return
        if self._start is not None:
            self._start.look(processes)
        self._loop.after(WATCH_S, self._watch)

    # The end

    def _on_server_exit(self) -> None:
        if self._is_ending:
            return
        what = f"the server {self._processes.said_exit()}"
        if self._start is not None and self._start.restarts():
            return
        if self._loaded is not None or self._start is None:
            self._lose(what)
        elif self._start.is_ready:
            self._fail(f"{what} while it answered the samples", stage="sample")
        else:
            hint = " (it must stay in the foreground)" if what.endswith("code 0") else ""
            self._fail(self._start.why_not(f"{what} before it was ready{hint}"))

    def _lose(self, reason: str) -> None:
        """End without grace: the server is gone or must go. The reason is the log's last line."""
        if self._loaded is None:
            self._fail(reason)
        else:
            self._end(EXIT_FAILED, reason, grace_s=0.0)

    def _fail(self, reason: str, *, stage: str = "start") -> None:
        """Report a failed start, and end the server."""
        if self._is_ending:
            return
        failure: LoadFailed = {"stage": stage, "reason": reason[:REASON_MAX]}
        self._manager.send(pack(Kind.LOAD_FAILED, body=json.dumps(failure).encode()))
        self._end(EXIT_FAILED, reason[:REASON_MAX].replace("\n", " "), grace_s=0.0, stay_s=FAILED_S)

    def _end(
        self, code: int, reason: str = "", *, grace_s: float | None = None, stay_s: float = 0.0
    ) -> None:
        """Shut what is open, end the server, then exit with `code`. The first call counts; a
        later one ends a stay of `stay_s` seconds."""
        if self._is_staying:
            self._loop.stop()
        if self._is_ending:
            return
        self._is_ending = True
        self._exit_code = code
        if self._fetcher is not None:
            self._fetcher.cancel()
        if self._start is not None:
            self._start.cancel()
        if self._health is not None:
            self._health.close()
        if self._links is not None:
            self._links.close()
            self._links = None
        if grace_s is None:
            grace_s = self._spec.stop_grace_s if self._spec is not None else 0.0
        self._processes.end(grace_s, partial(self._ended, reason, stay_s))

    def _ended(self, reason: str, stay_s: float) -> None:
        if reason:
            say(reason)
        if stay_s:
            self._is_staying = True
            self._loop.after(stay_s, self._loop.stop)
        else:
            self._loop.stop()
