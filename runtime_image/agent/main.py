"""Main program of an agent: reports its host's GPUs, memory, disk and clocks to the manager."""

from __future__ import annotations

import gc
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runtime_image.agent.readings import GpuReader, GpuSession, core_count, read_disk, read_memory
from runtime_image.contract.agent import REPORT_S, HostReport, to_json
from runtime_image.contract.control import Hello
from runtime_image.contract.gpus import NoDriver, Snapshot, XidEvent
from runtime_image.contract.link import Kind
from runtime_image.link.frames import Frame, LinkError, pack
from runtime_image.link.record import RecordRefused, read_record
from runtime_image.replica.dialling import UnixDialler
from runtime_image.replica.loop import Loop
from runtime_image.replica.manager_link import NoManager, hello_of
from runtime_image.replica.remote_link import RemoteLink

EXIT_ORPHANED: Final = 70
"""Exit code of an agent without a manager for `orphan_s`, as of any replica."""
SILENT_S: Final = 10.0
"""Seconds after which a driver that does not answer is reported as silent."""


def main(run_dir: str) -> int:
    """Run the agent of `run_dir` and return its exit code; see `runtime_image.replica.main`."""
    try:
        agent = Agent(Path(run_dir), open_session())
    except RecordRefused as error:
        print(f"fngate agent: {error}", flush=True)  # noqa: T201 - the log is its standard output
        return error.exit_code
    except NoManager as error:
        print(f"fngate agent: {error}", flush=True)  # noqa: T201 - the log is its standard output
        return EXIT_ORPHANED
    return agent.run()


class NoBindings:
    """A session without the driver's bindings."""

    def renew(self) -> None:
        """Raise NoDriver."""
        raise NoDriver("the runtime image has no nvidia-ml-py", is_absent=True)

    def read(self) -> Snapshot:
        """Raise NoDriver."""
        raise NoDriver("the runtime image has no nvidia-ml-py", is_absent=True)

    def xids(self) -> list[XidEvent]:
        """Return nothing."""
        return []


def open_session() -> GpuSession:
    """Return a session with the driver; nothing is asked yet."""
    try:
        from runtime_image.gpus.nvml import Nvml
    except ImportError:
        return NoBindings()
    return Nvml()


class Agent:
    """One agent. It outlives its manager by `orphan_s`, as replicas do, and is adopted."""

    def __init__(
        self,
        run_dir: Path,
        session: GpuSession,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - this clock is reported
    ) -> None:
        """Greets the manager, blocking. Raises RecordRefused, NoManager."""
        self._record = read_record(run_dir)
        self._run_dir = run_dir
        self._wall = wall
        self._loop = Loop(time.monotonic)
        self._reports = 0
        self._exit_code = 0
        self._gpus = GpuReader(session, self._loop.clock, self._loop.post, self._report)
        self._link = RemoteLink(
            self._loop,
            UnixDialler(self._record.control),
            self._record.orphan_s,
            hello=self._hello,
            on_frame=self._handle,
            orphaned=self._on_orphaned,
        )
        self._loop.turn_end = self._link.flush
        for frame in self._link.greet():
            self._link.deliver(frame)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._loop.post(self._loop.stop))
        self._tick()

    def run(self) -> int:
        """Report until drained, orphaned or terminated; return the exit code."""
        gc.collect()
        gc.freeze()
        gc.enable()  # disabled in `__main__`
        self._loop.run()
        return self._exit_code

    def _hello(self, dial: int) -> Hello:
        return hello_of(self._record, {}, None, dial)

    def _handle(self, frame: Frame) -> None:
        if frame.kind is Kind.PING:
            self._link.send(pack(Kind.PONG))
            self._gpus.ask()
        elif frame.kind is Kind.DRAIN:
            self._loop.stop()
        else:
            raise LinkError(f"unexpected {frame.kind.name} on the control link of an agent")

    def _tick(self) -> None:
        began_s = self._gpus.began_s
        if began_s is not None and self._loop.clock() - began_s >= SILENT_S:
            self._report()
        self._gpus.ask()
        self._loop.after(REPORT_S, self._tick)

    def _report(self) -> None:
        """Send a report with the last reading of the GPUs."""
        self._reports += 1
        reading, began_s = self._gpus.latest, self._gpus.began_s
        gpus, no_driver = reading.gpus, reading.no_driver
        if began_s is not None and (waited_s := self._loop.clock() - began_s) >= SILENT_S:
            gpus, no_driver = None, f"the NVIDIA driver has not answered for {waited_s:.0f} s"
        memory, disk = read_memory(), read_disk(self._run_dir)
        report = HostReport(
            number=self._reports,
            gpus=gpus,
            no_driver=no_driver,
            is_absent=reading.is_absent and gpus is None and not began_s,
            xids=reading.xids,
            memory_mib=memory.total_mib,
            memory_free_mib=memory.free_mib,
            cores=core_count(),
            disk_mib=disk.total_mib,
            disk_free_mib=disk.free_mib,
            wall_s=self._wall(),
            monotonic_s=time.monotonic(),
        )
        self._link.send(pack(Kind.REPORT, body=json.dumps(to_json(report)).encode()))

    def _on_orphaned(self) -> None:
        self._exit_code = EXIT_ORPHANED
        self._loop.stop()
