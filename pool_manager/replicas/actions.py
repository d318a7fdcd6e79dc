"""The machine's commands on single replicas, as calls of the launcher and of control links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pool_manager.core import commands
from pool_manager.core.machine import Machine
from pool_manager.core.state import UNKNOWN, ParkSpec, limit_s
from pool_manager.ports import Binding
from pool_manager.replicas.control import Control
from pool_manager.replicas.launcher import Launcher


class ReplicaActions:
    """Actions of one manager; `bindings` are by pool key."""

    def __init__(
        self, machine: Machine, launcher: Launcher, bindings: Mapping[str, Binding]
    ) -> None:
        self._machine = machine
        self._launcher = launcher
        self._bindings = bindings

    def table(self) -> dict[type, Callable[[Any], None]]:
        """Return the action of each type of command."""
        return {
            commands.Launch: self._launch,
            commands.Assign: self._assign,
            commands.Bind: self._bind,
            commands.Drain: self._to_control(lambda link, c: link.drain(c.if_idle_s)),
            commands.Quiesce: self._to_control(lambda link, _: link.quiesce()),
            commands.Resume: self._to_control(lambda link, _: link.resume()),
            commands.Park: self._to_engine(
                lambda link, c, park: link.park(c.if_idle_s, limit_s(park.sleep_s))
            ),
            commands.Unpark: self._to_engine(
                lambda link, _, park: link.unpark(limit_s(park.wake_s))
            ),
            commands.Verify: self._to_engine(
                lambda link, _, park: link.verify(limit_s(park.verify_s))
            ),
            commands.KeepLearnt: self._to_control(lambda link, c: link.keep_learnt(c.learnt)),
            commands.StopBatching: self._to_control(lambda link, _: link.stop_batching()),
            commands.Terminate: lambda c: self._launcher.terminate(c.id),
            commands.Release: lambda c: self._launcher.release(c.id),
            commands.Abandon: lambda c: self._launcher.abandon(c.id),
        }

    def _launch(self, command: commands.Launch) -> None:
        device = self._machine.first_device(command.devices)
        binding = self._bindings[command.pool].on(device) if command.role != "standby" else None
        kind = device.kind if device is not None else "cpu"
        self._launcher.launch(command, binding, kind)

    def _assign(self, command: commands.Assign) -> None:
        device = self._machine.first_device(command.devices)
        assert device is not None, "a standby is given a model on known devices"
        self._launcher.assign(command, self._bindings[command.pool].on(device), device.kind)

    def _bind(self, command: commands.Bind) -> None:
        replica = self._machine.replica(command.id)
        device = self._machine.first_device(replica.devices) if replica is not None else None
        self._launcher.bind(command, self._bindings[command.pool].on(device))

    def _to_engine(self, send: Callable[[Control, Any, ParkSpec], None]) -> Callable[[Any], None]:
        """Return the action of a command about a park, whose limit follows from the trial's."""

        def action(command: Any) -> None:
            replica, control = self._machine.replica(command.id), self._launcher.control(command.id)
            if replica is not None and control is not None:
                send(control, command, self._machine.pools[replica.pool].spec.park or UNKNOWN)

        return action

    def _to_control(self, send: Callable[[Control, Any], None]) -> Callable[[Any], None]:
        """Return the action of a command that is sent to its replica, if its link is open."""

        def action(command: Any) -> None:
            if control := self._launcher.control(command.id):
                send(control, command)

        return action
