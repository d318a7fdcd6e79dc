"""The start of a server: its process, or a wait for one that the driver starts, until it is ready.

A server that the sidecar starts may find its port taken, where it shares the host's network. It is
then started once more, at another port.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from runtime_image.contract.control import Probed
from runtime_image.contract.server import PORT_DEFAULT, ServerSpec
from runtime_image.replica.loop import Loop
from runtime_image.seccomp.install import install
from runtime_image.server import libc, listeners, namespaces, view
from runtime_image.server.connecting import Server
from runtime_image.server.elsewhere import PortWatch, strangers_of
from runtime_image.server.namespaces import Isolation
from runtime_image.server.probe import Probes
from runtime_image.server.process_tree import Process
from runtime_image.server.processes import Folders, Launch, ServerProcesses, plan, uses_socket
from runtime_image.server.readiness import Readiness

PORTS: Final = range(20_000, 30_000)
"""Ports of servers in the host's network; below those that the kernel gives to connections."""
PORT_TRIES: Final = 50
SPARE_FILES: Final = 256
WATCH_S: Final = 1.0
"""Interval between two looks at the server's processes and listeners."""


class ServerStart:
    """One start. `server` is where it is reached, `note` what a trial's report says about it."""

    def __init__(  # noqa: PLR0913 - the sidecar's parts that a start needs
        self,
        loop: Loop,
        spec: ServerSpec,
        processes: ServerProcesses,
        folders: Folders,
        model_dir: Path,
        *,
        is_trial: bool,
        log: Callable[[str], None],
        ready: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        """One of `ready()` and `failed(reason)` is called once, unless `cancel` or `restarts` comes
        first. A trial also fails as soon as the server is found at another port. Raises ValueError
        if the specification has no proper path to probe."""
        self._loop = loop
        self._spec = spec
        self._processes = processes
        self._folders = folders
        self._model_dir = model_dir
        self._is_trial = is_trial
        self._log = log
        self._ready = ready
        self._failed = failed
        self._secrets: Mapping[str, str] = {}
        self._isolation = Isolation("", "", "")
        self._may_restart = False
        self._is_over = False
        self._began_s = loop.clock()
        self.note = ""
        self._begin_probes(spec.port or PORT_DEFAULT, None)

    def _begin_probes(
        self, port: int, socket_path: Path | None, *, is_shared: bool = False
    ) -> None:
        """Set where the server is expected. No probe is sent yet."""
        self.server = Server(port, socket_path, is_shared=is_shared, name=self._spec.host)
        self._readiness = Readiness(self._spec.ready, self._spec.start_s, self._began_s)
        self._ports = PortWatch(
            self._loop,
            self.server,
            self._readiness,
            is_apart=self._spec.is_apart,
            log=self._log,
            missed=self._on_missed,
        )
        self._probes: Probes | None = None

    @property
    def path(self) -> str:
        """Path of the readiness probe."""
        return self._readiness.path

    @property
    def is_ready(self) -> bool:
        """Whether the server has answered."""
        return self._readiness.is_ready

    def begin(self, secrets: Mapping[str, str]) -> None:
        """Start the server; `secrets` are values by variable. Enters the namespaces, which needs
        calls that the filter refuses, and one thread. Raises OSError, ValueError."""
        spec, self._secrets = self._spec, secrets
        self._folders.create()
        port = spec.port or PORT_DEFAULT
        self._isolation = namespaces.isolate(spec.network, port)
        shared, no_namespace, no_mounts = self._isolation
        # Somebody else may listen on a port that was free a moment ago.
        self._may_restart = bool(shared) and not spec.port and not uses_socket(spec)
        if shared:
            port = spec.port or _free_port()
        self._launch(port)
        if no_namespace and not shared:
            self._log(f"the server has no PID namespace of its own: {no_namespace}")
        if no_mounts:
            self._log(f"the server can reach the sockets below /run: {no_mounts}")
        _raise_file_limit(spec.concurrency)

    def await_server(self) -> None:
        """Probe a server that the driver starts in this container's network. The driver also ends
        it and caps its memory: this process neither sees nor signals another one."""
        self._probe()
        _raise_file_limit(self._spec.concurrency)
        self._loop.after(WATCH_S, self._watch_ports)

    def cancel(self) -> None:
        """Stop probing, without a call of `ready` or `failed`."""
        self._is_over = True
        if self._probes is not None:
            self._probes.cancel()

    def probed(self) -> Probed | None:
        """Return what the probes last met, None once the start is over."""
        if self._is_over:
            return None
        last, now = self._readiness.last, self._loop.clock()
        seconds = max(0.0, now - self._readiness.last_since_s)
        return {
            "path": self._readiness.path,
            "status": last.status,
            "answer": last.text,
            "seconds": seconds,
        }

    def look(self, processes: list[Process]) -> None:
        """Look once where the server listens, by its processes; for a call every WATCH_S."""
        self._ports.look(processes)

    def _watch_ports(self) -> None:
        """Look every WATCH_S where a server listens whose processes are not seen."""
        if not self._is_over:
            self._ports.look(None)
            self._loop.after(WATCH_S, self._watch_ports)

    def why_not(self, what: str) -> str:
        """Return why the start failed: `what` happened, what was expected and what came."""
        return self._ports.why_not(what, None if self._spec.is_apart else self._processes.running())

    def _launch(self, port: int) -> None:
        """Start the server at a port, and probe it.

        The filter is inherited by children for good, and belongs to the sidecar only: so it is
        installed after the server was started, and where another start may follow, once it is
        ready.
        """
        is_shared, has_namespace = bool(self._isolation.network), not self._isolation.processes
        socket_path = self._folders.socket if uses_socket(self._spec) else None
        self._begin_probes(port, socket_path, is_shared=is_shared)
        own = dict(os.environ)  # noqa: TID251 - what the driver passes on to servers
        launch = plan(self._spec, self._model_dir, self._folders, port, own, self._secrets)
        enter = partial(self._enter, launch, is_alone=not is_shared, has_namespace=has_namespace)
        self._processes.start(launch, enter, has_namespace=has_namespace)
        if is_shared and socket_path is None:
            shared = self._isolation.network
            self.note = f"local users can reach the server at port {port}: {shared}"
            self._log(self.note)
        self._probe()

    def _enter(self, launch: Launch, *, is_alone: bool, has_namespace: bool) -> None:
        """Limit what the new process of the server sees, as far as the kernel permits it."""
        if self._isolation.files:
            return
        root = self._folders.root
        needs = view.needed(launch.arguments, launch.environment, has_network=not is_alone)
        view.limit_view(
            self._model_dir,
            root.parent,
            root,
            needs,
            is_alone=is_alone,
            read_only=map(Path, self._spec.read_only),
        )
        if has_namespace:
            view.mount_proc()

    def _probe(self) -> None:
        # From here on no process of this user may read the sidecar's memory, which has the token.
        libc.prctl(libc.PR_SET_DUMPABLE, 0)
        if not self._may_restart:
            install()
        self._probes = Probes(
            self._loop, self.server, self._readiness, log=self._log, ended=self._on_probed
        )

    def restarts(self) -> bool:
        """Whether the server, which has exited, is started again: somebody took its port."""
        if not self._may_restart:
            return False
        own = listeners.sockets_of(self._processes.running())
        at_port = [one for one in listeners.listeners() if one.port == self.server.port]
        if all(one.inode in own for one in at_port):
            return False
        self._may_restart = False
        if self._probes is not None:
            self._probes.cancel()
        taken = f"another process listens on port {self.server.port}"
        self._processes.end_to_restart(partial(self._restart, taken))
        return True

    def _restart(self, why: str) -> None:
        if self._is_over:
            return
        try:
            port = _free_port()
            self._log(f"{why}: the server is started again, at port {port}")
            self._launch(port)
        except (OSError, ValueError) as error:
            self._end(f"cannot start the server: {error}")

    def _on_probed(self) -> None:
        if self._is_over:
            return
        if not self.is_ready:
            self._end(self.why_not(f"not ready within {self._spec.start_s:g} s"))
            return
        self._is_over = True
        self._secrets = {}
        if self._may_restart:
            self._may_restart = False
            install()
        if strangers := strangers_of(self._spec):
            self.note = strangers
            self._log(strangers)
        self._ready()

    def _on_missed(self, what: str) -> None:
        """Fail a trial whose server answers at another port only. A start of a server that has been
        tried fails later: it may be busy with something that does not show."""
        if self._is_trial and not self._is_over:
            self._end(self.why_not(what))

    def _end(self, reason: str) -> None:
        self.cancel()
        self._failed(reason)


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
    """Allow two descriptors for every connection, as far as the hard limit goes: its duplicate, or
    both ends of what is relayed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * concurrency + SPARE_FILES
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
