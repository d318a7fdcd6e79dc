"""Main program of a sidecar: handshake, the server's start, serving, and the server's end."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from runtime_image.contract.control import Hello, Loaded, LoadFailed
from runtime_image.contract.errors import LoadError
from runtime_image.contract.link import Kind
from runtime_image.contract.server import PORT_DEFAULT, ServerSpec
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.handshake import read_server_bind
from runtime_image.link.record import RecordRefused, read_record
from runtime_image.replica.loop import Loop
from runtime_image.replica.manager_link import ManagerLink, connect, hello_of
from runtime_image.seccomp.install import install
from runtime_image.server import libc, listeners, namespaces, process_tree
from runtime_image.server.connecting import Server
from runtime_image.server.elsewhere import SETTLED_S, PortWatch, strangers_of
from runtime_image.server.links import Links
from runtime_image.server.namespaces import Isolation
from runtime_image.server.probe import Probes
from runtime_image.server.processes import Folders, ServerProcesses, plan, uses_socket
from runtime_image.server.readiness import Readiness

EXIT_FAILED: Final = 1
EXIT_ORPHANED: Final = 70
"""Exit code of a sidecar without a manager for `orphan_s`, as of any replica."""
FAILED_S: Final = 5.0
"""Seconds that a sidecar whose server did not start waits for its release, so that the manager
reads LOAD_FAILED before it sees the exit."""
WATCH_S: Final = 1.0
"""Interval between two looks at the memory of the server's processes."""
REASON_MAX: Final = 4000
PORTS: Final = range(20_000, 30_000)
"""Ports of servers in the host's network; below those that the kernel gives to connections."""
PORT_TRIES: Final = 50
SPARE_FILES: Final = 256


def main(run_dir: str, first_line_s: float) -> int:
    """Run the sidecar of `run_dir` and return its exit code; see `runtime_image.replica.main`."""
    try:
        sidecar = Sidecar(Path(run_dir), first_line_s)
    except RecordRefused as error:
        say(str(error))
        return error.exit_code
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

    def __init__(self, run_dir: Path, first_line_s: float) -> None:
        """`first_line_s` is CLOCK_MONOTONIC at this process's first line of Python."""
        gc.freeze()
        gc.enable()  # disabled in `__main__`
        self._record = read_record(run_dir)
        self._run_dir = run_dir
        self._folders = Folders.below(run_dir)
        self._loop = Loop(time.monotonic)
        self._processes = ServerProcesses(self._loop, exited=self._on_server_exit)
        self._spec: ServerSpec | None = None
        self._server: Server | None = None
        self._readiness: Readiness | None = None
        self._ports: PortWatch | None = None
        self._probes: Probes | None = None
        self._links: Links | None = None
        self._loaded: Loaded | None = None
        self._note = ""
        self._secrets: Mapping[str, str] = {}
        self._isolation = Isolation("", "")
        self._may_restart = False
        self._peak_mib = 0.0
        self._is_ending = self._is_staying = False
        self._exit_code = 0
        self._began_s = 0.0
        self._greeted_s = time.monotonic()
        self._phases = {
            **self._record.phases,
            "start": (first_line_s - self._record.launched_s) * 1e3,
            "import": (self._greeted_s - first_line_s) * 1e3,
        }
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._loop.turn_end = self._turn_end
        frames = self._greet()
        signal.signal(signal.SIGTERM, lambda *_: self._loop.post(partial(self._end, 0)))
        for frame in frames:
            self._handle(frame)

    def _greet(self) -> list[Frame]:
        """Connect to the manager; return frames that came after WELCOME.

        TERM keeps its default action meanwhile: there is no server yet.
        """
        run_dir = self._run_dir
        end, self._listener, frames = connect(run_dir, self._hello())
        self._listener.set_inheritable(False)
        self._manager = ManagerLink(
            self._loop,
            run_dir,
            end,
            orphan_s=self._record.orphan_s,
            hello=self._hello,
            on_frame=self._handle,
            orphaned=partial(self._end, EXIT_ORPHANED),
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

    def _hello(self) -> Hello:
        return hello_of(self._record, self._phases, self._loaded)

    # The manager

    def _handle(self, frame: Frame) -> None:
        if frame.kind is Kind.PING:
            busy_ms = self._links.busy_ms() if self._links is not None else 0
            self._manager.send(pack(Kind.PONG, aux=busy_ms))
        elif frame.kind is Kind.BIND:
            self._bind(frame)
        elif frame.kind in (Kind.DRAIN, Kind.QUIESCE, Kind.RESUME):
            self._drain(frame)
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
        try:
            if self._spec.is_apart:
                self._await_server(self._spec)
            else:
                self._secrets = request.get("secrets", {})
                self._start(self._spec)
        except (OSError, ValueError) as error:
            self._fail(f"cannot start the server: {error}")

    # The start

    def _start(self, spec: ServerSpec) -> None:
        """Enter the namespaces, which needs calls that the filter refuses, and one thread; then
        start the server."""
        self._folders.create()
        port = spec.port or PORT_DEFAULT
        shared, no_namespace = self._isolation = namespaces.isolate(spec.network, port)
        # Somebody else may listen on a port that was free a moment ago.
        self._may_restart = bool(shared) and not spec.port and not uses_socket(spec)
        if shared:
            port = spec.port or _free_port()
        self._launch(spec, port)
        if no_namespace and not shared:
            note(f"the server has no PID namespace of its own: {no_namespace}")
        _raise_file_limit(spec.concurrency)
        self._loop.after(WATCH_S, self._watch)

    def _launch(self, spec: ServerSpec, port: int) -> None:
        """Start the server at a port, and probe it.

        The filter is inherited by children for good, and belongs to the sidecar only: so it is
        installed after the server was started, and where another start may follow, once it is
        ready.
        """
        is_shared, has_namespace = bool(self._isolation.network), not self._isolation.processes
        socket_path = self._folders.socket if uses_socket(spec) else None
        self._server = Server(port, socket_path, is_shared=is_shared)
        self._readiness = Readiness(spec.ready, spec.start_s, self._began_s)
        self._ports = PortWatch(
            self._loop, self._server, self._readiness, log=note, missed=self._on_missed
        )
        model_dir = Path(self._record.model_dir)
        view: Callable[[], None] = (
            (lambda: None)
            if is_shared
            else partial(
                namespaces.limit_view,
                model_dir,
                self._run_dir,
                self._folders.root,
                has_processes=has_namespace,
            )
        )
        own = dict(os.environ)  # noqa: TID251 - what the driver passes on to servers
        self._processes.start(
            plan(spec, model_dir, self._folders, port, own, self._secrets),
            view,
            has_namespace=has_namespace,
        )
        if is_shared and socket_path is None:
            shared = self._isolation.network
            self._note = f"local users can reach the server at port {port}: {shared}"
            note(self._note)
        self._probe(self._server, self._readiness)

    def _await_server(self, spec: ServerSpec) -> None:
        """Probe a server that the driver starts in this container's network. The driver also ends
        it and caps its memory: this process neither sees nor signals another one."""
        self._server = Server(spec.port or PORT_DEFAULT, None, is_shared=False)
        self._readiness = Readiness(spec.ready, spec.start_s, self._began_s)
        self._ports = PortWatch(
            self._loop, self._server, self._readiness, log=note, missed=self._on_missed
        )
        self._probe(self._server, self._readiness)
        _raise_file_limit(spec.concurrency)

    def _probe(self, server: Server, readiness: Readiness) -> None:
        # From here on no process of this user may read the sidecar's memory, which has the token.
        libc.prctl(libc.PR_SET_DUMPABLE, 0)
        if not self._may_restart:
            install()
        self._probes = Probes(self._loop, server, readiness, log=note, ended=self._on_probed)

    def _restarts(self) -> bool:
        """Whether the server, which has exited, is started again: somebody took its port."""
        assert self._server is not None
        assert self._probes is not None
        own = listeners.sockets_of(self._processes.running())
        at_port = [one for one in listeners.listeners() if one.port == self._server.port]
        if all(one.inode in own for one in at_port):
            return False
        self._may_restart = False
        self._probes.cancel()
        taken = f"another process listens on port {self._server.port}"
        self._processes.end_to_restart(partial(self._restart, taken))
        return True

    def _restart(self, why: str) -> None:
        assert self._spec is not None
        if self._is_ending:
            return
        try:
            port = _free_port()
            note(f"{why}: the server is started again, at port {port}")
            self._launch(self._spec, port)
        except (OSError, ValueError) as error:
            self._fail(f"cannot start the server: {error}")

    def _on_probed(self) -> None:
        assert self._spec is not None
        assert self._readiness is not None
        if self._is_ending:
            return
        if not self._readiness.is_ready:
            self._fail(self._why_not_ready(f"not ready within {self._spec.start_s:g} s"))
            return
        self._secrets = {}
        if self._may_restart:
            self._may_restart = False
            install()
        self._measure()
        if strangers := strangers_of(self._spec):
            self._note = strangers
            note(strangers)
        load_ms = (self._loop.clock() - self._began_s) * 1e3
        if self._record.role == "trial":
            threading.Thread(target=self._try_samples, args=(load_ms,), daemon=True).start()
        else:
            self._serve(load_ms, None)

    def _why_not_ready(self, what: str) -> str:
        assert self._ports is not None
        is_apart = self._spec is not None and self._spec.is_apart
        return self._ports.why_not(what, None if is_apart else self._processes.running())

    def _on_missed(self) -> None:
        """Fail a trial whose server answers at another port only. A start of a server that has been
        tried fails later: it may be busy with something that does not show."""
        if self._record.role == "trial":
            self._fail(self._why_not_ready(f"not ready, and idle for {SETTLED_S:g} s"))

    def _try_samples(self, load_ms: float) -> None:
        """Run the samples of a trial, in a thread, so that the loop still answers PING."""
        from runtime_image.server.trial import run_samples  # its imports take as long as a start

        assert self._spec is not None
        assert self._server is not None
        try:
            shown = run_samples(self._spec, self._server, Path(self._record.model_dir))
        except LoadError as error:
            self._loop.post(partial(self._fail, str(error), stage=error.stage))
        except Exception as error:  # noqa: BLE001 - a thread's error would be lost
            self._loop.post(partial(self._fail, repr(error), stage="sample"))
        else:
            self._loop.post(partial(self._serve, load_ms, shown))

    def _serve(self, load_ms: float, samples: list[dict[str, Any]] | None) -> None:
        """Report that the server is ready and, unless this is a trial, serve."""
        if self._is_ending:
            return
        assert self._spec is not None
        assert self._server is not None
        self._measure()
        loaded: Loaded = {
            "revision": self._spec.revision,
            "limit": 0,
            "marks_started": True,
            "phases": {**self._phases, "load": load_ms},
            "memory_mib": self._peak_mib,
            "session": "none",
        }
        if samples is not None:
            loaded["report"] = self._report(load_ms, samples)
        else:
            loaded["limit"] = self._spec.concurrency
            self._links = Links(
                self._loop,
                self._listener,
                self._server,
                self._spec,
                first_open=lambda: self._manager.send(pack(Kind.FIRST_RUN)),
                not_idle=lambda ms: self._manager.send(pack(Kind.NOT_IDLE, aux=ms)),
                stop=partial(self._end, 0),
            )
        self._loaded = loaded
        self._manager.send(pack(Kind.LOADED, body=json.dumps(loaded).encode()))

    def _report(self, load_ms: float, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a trial's `Report` as JSON."""
        return {
            "signature": {"kind": "http", "inputs": [], "outputs": []},
            "load_ms": load_ms,
            "memory_mib": self._peak_mib,
            "latency_ms": {},
            "batchable": False,
            "why_not": "",
            "batch_max": 1,
            "profiled": True,
            "note": self._note,
            "sample_outputs": {"requests": samples},
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
        # The exact sum costs more, and is not above the plain one.
        if cap and process_tree.resident_mib(processes) > cap:
            used = process_tree.private_mib(processes)
            if used > cap:
                self._lose(f"the server used {used:.0f} MiB of memory, its cap is {cap} MiB")
                return
        if self._ports is not None:
            self._ports.look(processes)
        self._loop.after(WATCH_S, self._watch)

    # The end

    def _on_server_exit(self) -> None:
        if self._is_ending:
            return
        what = f"the server {self._processes.said_exit()}"
        if self._may_restart and self._restarts():
            return
        if self._loaded is not None or self._readiness is None:
            self._lose(what)
        elif self._readiness.is_ready:
            self._fail(f"{what} while it answered the samples", stage="sample")
        else:
            hint = " (it must stay in the foreground)" if what.endswith("code 0") else ""
            self._fail(self._why_not_ready(f"{what} before it was ready{hint}"))

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
        if self._probes is not None:
            self._probes.cancel()
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


def _free_port() -> int:
    """Return a port of PORTS at which nobody listens now. Raises OSError if there is none."""
    for _ in range(PORT_TRIES):
        port = PORTS[int.from_bytes(os.urandom(4)) % len(PORTS)]
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            try:
                sock.bind(("0.0.0.0", port))  # noqa: S104 - closed again, never listens
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {PORTS.start} to {PORTS.stop - 1}")


def _raise_file_limit(concurrency: int) -> None:
    """Allow a duplicate of every connection, as far as the hard limit goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = concurrency + SPARE_FILES
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
