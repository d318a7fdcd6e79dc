"""Stand-in for another machine: namespaces of its own, with sshd, dockerd and a disk."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.dockerd import Dockerd, await_ends
from tests.support.engine import connected, engine_url, refuse
from tests.support.fleet.links import Relay, Sink, Wire, addresses
from tests.support.nvml.board import Board, Gpu, build
from tests.support.own_engine import await_condition, make_root, nvidia_stand_ins, sweep, wipe
from tests.support.sshd import PORT, SFTP, Sshd

TOOLS = ("dockerd", "runc", "unshare", "nsenter", "ip", "mkfs.ext4", "losetup", "ssh-keygen")
PREFIX = "fnf-"
"""Prefix of the folder name, followed by the test process's pid."""
INIT = Path(__file__).with_name("init.py")
RUNTIME = Path(__file__).with_name("runtime.py")
WORKER = "worker"
"""Login of a user who is not root but may use the engine."""
WORKER_ID = 24_601
DOCKER_ID = 24_602
END_S = 30.0
COMMAND_S = 60.0
IN_CONTAINERS = "/opt/stand-in"
CAP_SYS_RESOURCE = 24
"""Bit of the capability in /proc/PID/status."""
LIBRARY_FOLDER = "/usr/lib/x86_64-linux-gnu"
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


@dataclass(frozen=True)
class Plan:
    """Properties of a host.

    `disk_mib`: size of the disk of its engine and its homes, sparse on this machine. `gpus`: of its
    stand-in for NVML. `sshd`: lines of sshd_config, which precede the usual ones. `user`: the
    login, root or WORKER. `is_relayed`: the link passes through a Relay. `clock_s`: by how much the
    clock of its containers is ahead. `folders`: writable folders of this machine in all containers,
    by source.
    """

    disk_mib: int = 8192
    gpus: tuple[Gpu, ...] = ()
    sshd: tuple[str, ...] = (SFTP,)
    user: str = "root"
    is_relayed: bool = False
    clock_s: float = 0.0
    folders: Mapping[Path, str] = field(default_factory=dict)


class Host:
    """A host. All methods block. After `remove` no process, mount, network or file of it is left;
    without it, all but the files end with the test process.

    `address`: the login, as for `fnctl host add`; `identity`: file of the private key; `host_key`:
    the public key it shows; `engine_url`: its engine, for this machine's tests; `board`: its GPUs.
    The engine's socket on the host is the usual one, /var/run/docker.sock.
    """

    def __init__(self, name: str, plan: Plan) -> None:
        self.name = name
        self.plan = plan
        device, here, self.ip = addresses()
        self.root = make_root(PREFIX)
        self.root.chmod(0o711)
        self._sink = Sink(f"{device}x", self.ip)
        self._wire = (
            Relay(device, here, self.ip) if plan.is_relayed else Wire(device, here, self.ip)
        )
        self._holder: subprocess.Popen[bytes] | None = None
        self._init = 0
        self._make_files()
        self.sshd = Sshd(self.root / "sshd", host=self.ip, port=PORT, user=plan.user)

    @property
    def address(self) -> str:
        """Return the login, `USER@IP`."""
        return f"{self.plan.user}@{self.ip}"

    @property
    def identity(self) -> Path:
        """Return the file of the private key that the host accepts."""
        return self.sshd.identity

    @property
    def host_key(self) -> str:
        """Return the public key that the host shows, a line of OpenSSH."""
        return self.sshd.host_key

    @property
    def engine_url(self) -> str:
        """Return the URL of the host's engine for programs of this machine, past SSH."""
        return f"unix://{self.root}/docker.sock"

    @property
    def link(self) -> Relay:
        """Return the link, which must be a relay."""
        assert isinstance(self._wire, Relay), "the host has no relay: Plan(is_relayed=True)"
        return self._wire

    @property
    def is_running(self) -> bool:
        """Return whether the host is switched on."""
        return self._holder is not None

    @property
    def home(self) -> Path:
        """Return the login's home folder, as the host names it."""
        return Path("/home", self.plan.user)

    def start(self) -> None:
        """Switch the host on; return when sshd listens and the engine answers."""
        assert self._holder is None, f"{self.name} runs already"
        here = ["unshare", "--fork", "--pid", "--mount-proc", "--net", "--mount", "--uts", "--ipc"]
        words = [str(self.root), self.name, str(WORKER_ID)]
        log = self.root / "init.log"
        with log.open("wb") as errors:
            self._holder = subprocess.Popen(
                [*here, "--propagation=slave", sys.executable, "-I", "-S", str(INIT), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"held\n", f"{self.name}: {log.read_text()}"
        holder = self._holder.pid
        self._init = int(Path(f"/proc/{holder}/task/{holder}/children").read_text())
        self.sshd.enter = self.enter
        self.dockerd = Dockerd(self.root, self.enter, self._options(), self._path())
        self._wire.connect(self._init)
        self.sshd.start(*self.plan.sshd)
        self.dockerd.start()

    def stop(self) -> None:
        """Cut the host's power: all its processes are killed. The disk remains."""
        holder, self._holder = self._holder, None
        if holder is None:
            return
        if self._init:
            os.kill(self._init, signal.SIGKILL)
        holder.communicate()
        self._init = 0
        self._wire.disconnect()
        self.sshd.stop()
        self.dockerd.forget()
        await_condition(self._is_detached, f"{self.name}: its disk is still in use")
        sweep(self.root)
        shutil.rmtree(self.root / "exec", ignore_errors=True)
        for name in ("pid", "docker.sock"):
            (self.root / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """End the host and remove its files."""
        self.stop()
        self._sink.close()
        wipe(self.root)

    @property
    def enter(self) -> list[str]:
        """Return the command prefix that runs a program on the host."""
        return ["nsenter", f"--target={self._init}", "--pid", "--net", "--mount", "--uts", "--ipc"]

    @property
    def seen_here(self) -> str:
        """Return the path of the host's root folder for programs of this machine."""
        return f"/proc/{self._init}/root"

    def run(self, *command: str) -> str:
        """Run a command on the host as root; return its output."""
        done = subprocess.run(
            [*self.enter, *command],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=COMMAND_S,
            cwd="/",
        )
        return done.stdout

    def processes(self, program: str) -> list[int]:
        """Return the pids, as this machine counts them, of the host's processes of a program."""
        found = []
        with suppress(FileNotFoundError):
            mine = Path(f"/proc/{self._init}/ns/pid").readlink()
            for folder in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    is_here = (folder / "ns/pid").readlink() == mine
                    if is_here and (folder / "exe").readlink().name == program:
                        found.append(int(folder.name))
        return found

    def sessions(self) -> list[int]:
        """Return the processes of SSH connections."""
        listening = self.sshd.listener
        return [pid for pid in self.processes("sshd") if pid != listening]

    def kill_sessions(self) -> int:
        """Kill all SSH connections, but not the listening sshd; return how many processes."""
        killed: set[int] = set()
        # Until none is left, because one that starts meanwhile has the connection, too.
        while sessions := self.sessions():
            for pid in sessions:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await_ends(sessions)
            killed.update(sessions)
        return len(killed)

    def load(self, *images: str) -> None:
        """Copy images by tag from the shared engine, not by SSH."""
        with connected(engine_url()) as shared, connected(self.engine_url) as own:
            for image in images:
                own.images.load(shared.api.get_image(image))

    def containers(self) -> list[dict[str, Any]]:
        """Return what `docker ps --all` lists."""
        with connected(self.engine_url) as own:
            found: list[dict[str, Any]] = own.api.containers(all=True)
        return found

    def free_mib(self) -> int:
        """Return the free space of the disk."""
        return int(self.run("stat", "-f", "-c", "%a", "/home")) * 4 // 1024

    def fill_disk(self, leave_mib: int = 0) -> Callable[[], None]:
        """Fill the disk up but for `leave_mib`; return the function that frees it again."""
        size = max(0, self.free_mib() - leave_mib)
        self.run("fallocate", "--length", f"{size}MiB", "/home/filler")
        return functools.partial(self.run, "rm", "/home/filler")

    def files(self) -> list[str]:
        """Return the paths of all files and sockets of the login's `~/.fngate`, relative to it."""
        base = self.home / ".fngate"
        found = self.run("find", str(self.home), "-path", f"{base}/*", "-not", "-type", "d")
        return sorted(str(Path(line).relative_to(base)) for line in found.splitlines())

    def _is_detached(self) -> bool:
        listed = ["losetup", "--associated", str(self.root / "disk.img")]
        return not subprocess.run(listed, check=True, capture_output=True).stdout

    def _make_files(self) -> None:
        for folder in ("disk", "data", "etc", "nvml", "bin"):
            (self.root / folder).mkdir()
        image = self.root / "disk.img"
        with image.open("wb") as file:
            file.truncate(self.plan.disk_mib << 20)
        # Without a journal, because the disk never outlives this machine's kernel.
        options = [
            "-q",
            "-F",
            "-m",
            "0",
            "-O",
            "^has_journal",
            "-E",
            "lazy_itable_init=1,nodiscard",
        ]
        subprocess.run(["mkfs.ext4", *options, str(image)], check=True, capture_output=True)
        self._make_users()
        self.board = Board(self.root / "nvml/board")
        self.board.add(*self.plan.gpus)
        if self.plan.gpus:
            program = self.root / "bin/nvidia-smi"
            program.write_text("#!/bin/sh\necho NVIDIA Stand-in, 580.1\n")
            program.chmod(0o755)

    def _changes(self) -> dict[str, Any]:
        """Return what the runtime changes in containers."""
        changes: dict[str, Any] = {"folders": {str(k): v for k, v in self.plan.folders.items()}}
        if self.plan.gpus:
            library = build(self.root / "bin")
            changes["gpu"] = {
                "environment": {"FN_STANDIN_NVML": f"{IN_CONTAINERS}/nvml/board"},
                "mounts": {
                    str(library): f"{LIBRARY_FOLDER}/{library.name}",
                    str(self.root / "nvml"): f"{IN_CONTAINERS}/nvml",
                },
            }
        if self.plan.clock_s:
            if not FAKETIME.exists():
                refuse(f"another clock needs {FAKETIME}: apt-get install libfaketime")
            changes["environment"] = {
                "LD_PRELOAD": f"{IN_CONTAINERS}/{FAKETIME.name}",
                "FAKETIME": f"{self.plan.clock_s:+g}",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
            changes["mounts"] = {str(FAKETIME): f"{IN_CONTAINERS}/{FAKETIME.name}"}
        return changes

    def _make_users(self) -> None:
        """Write the host's users: root with a home on its disk, and WORKER."""
        users = Path("/etc/passwd").read_text().splitlines()
        others = [line for line in users if not line.startswith("root:")]
        mine = [
            "root:x:0:0:root:/home/root:/bin/bash",
            f"{WORKER}:x:{WORKER_ID}:{WORKER_ID}::/home/{WORKER}:/bin/bash",
        ]
        groups = Path("/etc/group").read_text().splitlines()
        kept = [line for line in groups if not line.startswith("docker:")]
        own = [f"{WORKER}:x:{WORKER_ID}:", f"docker:x:{DOCKER_ID}:{WORKER}"]
        texts = {
            "passwd": [*mine, *others],
            "group": [*kept, *own],
            "shadow": ["root:*:1::::::", f"{WORKER}:*:1::::::"],
        }
        for name, lines in texts.items():
            (self.root / "etc" / name).write_text("\n".join([*lines, ""]))

    def _path(self) -> str:
        return os.pathsep.join([str(self.root / "bin"), os.environ["PATH"]])

    def _options(self) -> list[str]:
        options = ["--live-restore=true"]
        if self.plan.gpus:
            options += nvidia_stand_ins(self.root / "bin")
        if self.plan.gpus or self.plan.clock_s or self.plan.folders or not _can_raise_limits():
            options += stand_in_runtime(self.root / "bin", self._changes())
        return options


def _can_raise_limits() -> bool:
    """Return whether this machine's root may raise limits above its own."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> CAP_SYS_RESOURCE & 1)
    return False


def stand_in_runtime(folder: Path, changes: dict[str, Any]) -> tuple[str, ...]:
    """Return dockerd's options for an engine that changes its containers: see runtime.py."""
    file = folder / "changes.json"
    file.write_text(json.dumps(changes))
    wrapper = folder / "runc-stand-in"
    python = f"{Path(sys.executable).resolve()} -I -S"
    wrapper.write_text(f'#!/bin/sh\nexec {python} {RUNTIME} {file} "$@"\n')
    wrapper.chmod(0o755)
    return ("--add-runtime", f"stand-in={wrapper}", "--default-runtime=stand-in")
