"""The life of a server that can be parked, as its manager tells it.

Calls and samples run in a thread, so that PINGs are answered meanwhile; one command at a time. No
exchange is opened after a wake before the server has answered its golden samples right.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from runtime_image.contract.link import Kind
from runtime_image.contract.parks import (
    AFTER,
    DURING,
    IDLE_LEAST,
    Life,
    LifeCommand,
    LifeState,
    life_of,
    limit_s,
)
from runtime_image.contract.samples import GoldenSample
from runtime_image.link.frames import Frame, LinkError
from runtime_image.replica.loop import Loop
from runtime_image.server.parks.engine import (
    ParkedEngine,
    ParkFailed,
    samples_after,
    samples_before,
    sleep,
    wake,
)
from runtime_image.server.parks.host_memory import HostMemoryPeak

COMMANDS: Final = {
    Kind.PARK: LifeCommand.PARK,
    Kind.UNPARK: LifeCommand.UNPARK,
    Kind.VERIFY: LifeCommand.VERIFY,
}
"""The frames that a manager tells a life by."""
BEFORE: Final = {
    LifeCommand.PARK: LifeState.READY,
    LifeCommand.UNPARK: LifeState.PARKED,
    LifeCommand.VERIFY: LifeState.VERIFYING,
}
"""The life in which a command is carried out."""


class Exchanges(Protocol):
    """The exchanges of the server."""

    def park(self, if_idle_ms: int) -> None:
        """Open none from now on; `Parking.on_quiet` follows unless one is open."""

    def serve(self) -> None:
        """Open them again."""


class Readings(Protocol):
    """The readings of how the server fares."""

    def rest(self) -> None:
        """Take none until `resume`."""

    def resume(self) -> None:
        """Take them again."""


class Unserved:
    """The exchanges and the readings of a trial, which has none: it is quiet at once."""

    def __init__(self, on_quiet: Callable[[], None]) -> None:
        """`on_quiet` calls `Parking.on_quiet`."""
        self._on_quiet = on_quiet

    def park(self, if_idle_ms: int) -> None:  # noqa: ARG002 - as of Exchanges
        """Go on: no exchange is open."""
        self._on_quiet()

    def serve(self) -> None:
        """Do nothing."""

    def rest(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""


class Parking:
    """The life of one server that can be parked. Runs in the sidecar's loop."""

    def __init__(
        self,
        loop: Loop,
        engine: ParkedEngine,
        exchanges: Exchanges,
        readings: Readings,
        tell: Callable[[Life, int], None],
        peak: HostMemoryPeak | None = None,
    ) -> None:
        """`tell` is called with the outcome of each command, and with the number of the manager's
        connection over which it was told last. `peak` measures the first sleep and its wake."""
        self._loop = loop
        self._engine = engine
        self._exchanges = exchanges
        self._readings = readings
        self._tell = tell
        self._peak = peak
        self.state = LifeState.READY
        self.has_slept = False
        """Whether its engine was put to sleep at any time."""
        self._dial = 0
        """The manager's connection that has told the last command."""
        self._limit_s = 0.0
        """Seconds that a call of this command may take."""
        self._command: LifeCommand | None = None
        """What is being carried out."""
        self._last: Life | None = None
        """The outcome of the command before."""
        self._prefix: GoldenSample | None = None
        """The long prompt, with its answer before the first park."""

    def handle(self, frame: Frame, dial: int) -> None:
        """Handle PARK, UNPARK or VERIFY of the manager's connection `dial`. Raises LinkError.

        A manager that has lost its link, and a new one, tell the command again that belongs to the
        life in HELLO: it is carried out once, and what becomes of it is told to who told it last.
        """
        try:
            self._limit_s = limit_s(frame.aux)
            if_idle_ms = IDLE_LEAST.unpack(frame.body)[0] if frame.kind is Kind.PARK else 0
        except (ValueError, struct.error) as error:
            raise LinkError(f"malformed {frame.kind.name}: {error}") from error
        command, self._dial = COMMANDS[frame.kind], dial
        if self._command is not None:
            return
        is_over = self._last is not None and bool(self._last["problem"])
        if self.state is not BEFORE[command] or is_over:
            if self._last is not None:
                self._tell(self._last, dial)
        elif command is LifeCommand.PARK:
            self._exchanges.park(if_idle_ms)
        else:
            self._begin(command)

    def repeat(self, dial: int) -> None:
        """Tell once more what became of the last command, if the server does not take exchanges
        because of it: RESUME revokes no sleep, and a manager may take it for one that serves."""
        if self._last is not None and self.state is not LifeState.READY and self._command is None:
            self._tell(self._last, dial)

    def on_quiet(self, dial: int) -> None:
        """Handle the end of the last exchange after PARK: ask the samples, and put the engine to
        sleep. `dial` is the manager's connection now: another manager has not told it."""
        if dial == self._dial:
            self._readings.rest()
            self._begin(LifeCommand.PARK)
        else:
            self._exchanges.serve()

    def _begin(self, command: LifeCommand) -> None:
        self._command, self.state = command, DURING[command]
        self.has_slept = self.has_slept or command is LifeCommand.PARK
        work = partial(self._work, command, self._limit_s)
        threading.Thread(target=work, name=str(command), daemon=True).start()

    def _work(self, command: LifeCommand, most_s: float) -> None:
        problem, took_ms, prefix, host_mib = "", 0.0, self._prefix, None
        try:
            if command is LifeCommand.PARK:
                prefix = samples_before(self._engine, prefix, most_s)
                if self._peak is not None:
                    self._peak.begin()
                took_ms = sleep(self._engine, most_s)
            elif command is LifeCommand.UNPARK:
                took_ms = wake(self._engine, most_s)
                if self._peak is not None:
                    host_mib = self._peak.end()
            else:
                took_ms = samples_after(self._engine, prefix, most_s)
        except ParkFailed as failed:
            problem = str(failed)
        except Exception as error:  # noqa: BLE001 - a thread's error would be lost
            problem = f"it could not be done: {error!r}"
        life = life_of(command, problem, took_ms, host_mib)
        self._loop.post(partial(self._over, command, life, prefix))

    def _over(self, command: LifeCommand, life: Life, prefix: GoldenSample | None) -> None:
        self._command, self._prefix, self._last = None, prefix, life
        if not life["problem"]:
            self.state = AFTER[command]
        if self.state is LifeState.READY:
            self._readings.resume()
            self._exchanges.serve()
        self._tell(life, self._dial)
