"""Types of the events of `GET /events` and of the logs of a function.

The data of an event is the JSON of one of these Structs, named by the stream's `event` line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from admin.documents.deploys import OperationRow
from admin.documents.functions import FailureRow, FunctionRow, ReplicaLog
from admin.documents.hosts import HostRow
from admin.documents.server import DeviceRow, ReplicaRow
from gateway.openapi.answers import Readiness
from registry.model.history import ColdStart


class ServerFacts(msgspec.Struct):
    """What does not change while a server runs."""

    version: str
    """Version of fngate."""
    driver: str
    """Driver of its replicas, such as "process" or "docker"."""
    workers: int
    """Number of gateway processes."""
    started_s: float
    """When it started, in Unix seconds."""


class ResetEvent(msgspec.Struct):
    """A snapshot begins: what was known before no longer counts."""

    reason: str
    """Why it comes: "from the beginning", or "too old" for an event that is no longer kept."""
    server: ServerFacts
    """The server."""


class HostsEvent(msgspec.Struct):
    """New state of hosts, of a snapshot or after a change."""

    items: list[HostRow]
    """The whole row of each."""


class DevicesEvent(msgspec.Struct):
    """New state of devices, of a snapshot or after a change."""

    items: list[DeviceRow]
    """The whole row of each."""


class FunctionsEvent(msgspec.Struct):
    """New state of functions, of a snapshot or after a change."""

    items: list[FunctionRow]
    """The whole row of each."""


class ReplicasEvent(msgspec.Struct):
    """New state of replicas, of a snapshot or after a change."""

    items: list[ReplicaRow]
    """The whole row of each."""


class GoneEvent(msgspec.Struct):
    """What no longer exists."""

    functions: list[str]
    """Names of functions."""
    replicas: list[str]
    """Ids of replicas."""
    devices: list[str] | UnsetType = UNSET
    """Ids of devices, if it is about devices."""
    hosts: list[str] | UnsetType = UNSET
    """Names of hosts, if it is about hosts."""


class ReadyEvent(msgspec.Struct):
    """A snapshot is complete."""


class DecisionEvent(msgspec.Struct):
    """A decision of the pool manager with its reason."""

    function: str
    """Name of the function, "" for standbys."""
    revision: str
    """Revision as NAME@NUMBER, "" for standbys."""
    at_s: float
    """Unix seconds."""
    text: str
    """The decision in words."""


class ErrorEvent(FailureRow):
    """Requests of a function that failed alike within a second, unless by a mistake of the
    client."""

    function: str
    """Name of the function."""


HostChange = Literal["added", "joining", "up", "unreachable", "draining", "gone", "removed"]


class HostEvent(msgspec.Struct):
    """A change of the state of a host, or of the reason of it."""

    host: str
    """Name of the host."""
    change: HostChange
    """What has happened, or its new state."""
    at_s: float
    """Unix seconds."""
    reason: str
    """Why, "" for no reason to tell."""
    text: str
    """The change with its reason in words."""


class BeatEvent(msgspec.Struct):
    """Totals of the server, once a second."""

    at_s: float
    """Unix seconds by the server's clock."""
    held: int
    """Requests that wait for a replica."""
    in_flight: int
    """Requests that a replica has."""
    rate: float
    """Answers per second, over the last ten seconds."""
    readyz: Readiness
    """What `GET /readyz` answers."""


class EndEvent(msgspec.Struct):
    """A replica has ended: no more lines of it follow."""

    replica: str
    """Id of the replica."""


ServerEvent = (
    ResetEvent
    | HostsEvent
    | DevicesEvent
    | FunctionsEvent
    | ReplicasEvent
    | GoneEvent
    | ReadyEvent
    | DecisionEvent
    | ColdStart
    | ErrorEvent
    | HostEvent
    | OperationRow
    | BeatEvent
)
"""Data of an event of `GET /events`."""

LogEvent = ReplicaLog | EndEvent
"""Data of an event of a function's logs."""

SERVER_EVENTS: Final[Mapping[str, type[ServerEvent]]] = {
    "reset": ResetEvent,
    "hosts": HostsEvent,
    "devices": DevicesEvent,
    "functions": FunctionsEvent,
    "replicas": ReplicasEvent,
    "gone": GoneEvent,
    "ready": ReadyEvent,
    "decision": DecisionEvent,
    "cold_start": ColdStart,
    "error": ErrorEvent,
    "host": HostEvent,
    "operation": OperationRow,
    "beat": BeatEvent,
}
"""Types of the events of `GET /events` by name, those of a snapshot in their order."""

LOG_EVENTS: Final[Mapping[str, type[LogEvent]]] = {"lines": ReplicaLog, "end": EndEvent}
"""Types of the events of a function's logs by name."""


def _by_name(title: str, text: str, kinds: Mapping[str, Any]) -> type[msgspec.Struct]:
    return msgspec.defstruct(title, list(kinds.items()), namespace={"__doc__": text})


_TEXT: Final = "Server-sent events: data of each, which is one line of JSON, by the event's name."
ServerEvents: Final = _by_name("ServerEvents", _TEXT, SERVER_EVENTS)
"""All events of `GET /events`, as the OpenAPI document shows them."""
LogEvents: Final = _by_name("LogEvents", _TEXT, LOG_EVENTS)
"""All events of a function's logs, as the OpenAPI document shows them."""
