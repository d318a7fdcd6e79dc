"""Contents of replica records and bind requests, memory caps. No I/O."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Final, TypeVar

from pool_manager.core import events
from pool_manager.core.commands import Assign, Launch
from pool_manager.driver import MEMORY_KILL
from pool_manager.ports import Binding
from pool_manager.settings import PoolSettings
from registry.errors import DriverError
from runtime_image.contract import model as models
from runtime_image.contract import server as servers
from runtime_image.contract.control import (
    BindRequest,
    ReplicaRecord,
)
from runtime_image.contract.enrolment import FetchedFile
from runtime_image.contract.link import VERSION
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.server import ServerSpec

StartT = TypeVar("StartT", Launch, Assign)

BUNDLES: Final = 4
"""Least cap of a replica, in sizes of its bundle."""
CANDIDATE_BUNDLES: Final = 4
"""Added where candidates of other precision are made: files in a container's /tmp count, too."""
NO_NETWORK: Final = re.compile(
    "(name resolution|name does not resolve|name or service not known|getaddrinfo|eai_again"
    "|failed to resolve|could not resolve|no such host|network is unreachable|enetunreach)",
    re.IGNORECASE,
)
"""What programs and libraries print that find no network (gai_strerror(3), Go, Node, curl)."""
EGRESS_ADVICE: Final = (
    ' (it has no network: network = "egress" in [server] or [python] gives it the host\'s)'
)
HANDLER_ADVICE: Final = (
    " (handlers have no network: deploy with the files that it loads; network = "
    '"egress" is for [server] and [python])'
)
SPARE_MIB = {"cpu": 1024, "cuda": 8192}
"""Host memory added to a cap, by device kind: for larger inputs, and for CUDA's libraries."""


def unbound(command: Launch, device_kind: str, settings: PoolSettings, now: float) -> ReplicaRecord:
    """Return the record of a standby, with a new token; `now` is CLOCK_MONOTONIC seconds.

    What its host decides is missing (`ReplicaHost.complete`). The standby has no memory cap yet:
    not every driver can raise a cap later.
    """
    return ReplicaRecord(
        id=command.id,
        token=token_hex(32),
        role="standby",
        namespace="",
        bound="",
        model_dir="",
        devices=command.devices,
        device_kind=device_kind,
        engine="onnx",
        threads=settings.threads_per_slot,
        orphan_s=settings.orphan_s,
        memory_mib=0,
        launched_s=now,
        link=VERSION,
    )


def start_phases(
    record: ReplicaRecord, stated: Mapping[str, float], now: float
) -> dict[str, float]:
    """Return the phases of a start on another host up to the greeting at `now`.

    That host's clock is another one: the sum is what passed here since the launch. `stated` are the
    replica's own, of which the duration of its imports counts as far as there was time for it.
    """
    passed_ms = max(0.0, now - record.launched_s) * 1e3
    import_ms = min(stated.get("import", 0.0), passed_ms)
    start_ms = round(passed_ms - import_ms, 3)
    return {**record.phases, "start": start_ms, "import": round(import_ms, 3)}


def load_phases(
    record: ReplicaRecord, stated: Mapping[str, float], bound_s: float, now: float
) -> dict[str, float]:
    """Return the phases of a start on another host up to LOADED at `now`; BIND was sent at
    `bound_s`. The sum of `bind`, `fetch` and `load` is what passed here."""
    left_ms = max(0.0, now - bound_s) * 1e3
    phases = dict(record.phases)
    for name in ("load", "fetch"):
        if name == "load" or name in stated:
            phases[name] = round(min(stated.get(name, 0.0), left_ms), 3)
            left_ms -= phases[name]
    return {**phases, "bind": round(max(0.0, left_ms), 3)}


def waited(command: StartT, seconds: float) -> StartT:
    """Return the command with the time in the start queue added to its phase `place`, if any."""
    if "place" not in command.phases:
        return command
    place_ms = round(command.phases["place"] + seconds * 1e3, 3)
    return replace(command, phases={**command.phases, "place": place_ms})


def bound(
    record: ReplicaRecord,
    command: Launch | Assign,
    binding: Binding,
    device_kind: str,
    memory_mib: int,
) -> ReplicaRecord:
    """Return the record of a standby bound to a model; `memory_mib` is its cap, 0 for none."""
    return replace(
        record,
        role=command.role,
        namespace=binding.namespace,
        bound=command.pool,
        devices=command.devices,
        device_kind=device_kind,
        engine=_engine(binding.spec),
        memory_mib=memory_mib,
        phases=command.phases,
    )


def _engine(spec: ModelSpec | ServerSpec) -> str:
    if isinstance(spec, ServerSpec):
        return servers.ENGINE
    return "onnx" if spec.model else "python"


def cap_mib(binding: Binding, settings: PoolSettings, device_kind: str, devices: int = 1) -> int:
    """Return the cap on a replica's host memory in MiB, 0 for none.

    It is the function's cap, else the server's default. If neither is configured and every replica
    needs a cap: twice the memory measured in the trial, at least BUNDLES times the bundle, plus
    SPARE_MIB. A trial on a GPU measured GPU memory, which still indicates the size of the model; on
    several `devices` each has a process of its own with its part of the model.
    What a server may write to folders in memory is added, and to every cap what its sleep takes
    besides, as its trial has measured; the trial itself has the cap without it.
    """
    park_mib = math.ceil(binding.park_mib)
    if named := binding.memory_mib or settings.memory_mib:
        return named + park_mib
    if not settings.caps_all:
        return 0
    spec = binding.spec
    makes = isinstance(spec, ModelSpec) and spec.optimise is not None
    bundles = BUNDLES + CANDIDATE_BUNDLES * makes
    size_mib = max(2 * binding.measured_mib * devices, bundles * binding.bundle.size / 2**20)
    container = binding.container
    files_mib = container.shm_mib + sum(container.writable.values()) if container else 0
    return round(size_mib) + SPARE_MIB[device_kind] * devices + files_mib + park_mib


def cap_hint(record: ReplicaRecord | None) -> str:
    """Return the hint at a replica's memory cap for the reason of its end, "" without a cap."""
    cap = record.memory_mib if record else 0
    return f" (its memory cap is {cap} MiB)" if cap else ""


def exit_hint(how: str, record: ReplicaRecord | None) -> str:
    """Return the hint for an exit described by `how`: the cap, which may be the reason, unless the
    replica or its server ended itself."""
    is_server = record is not None and record.engine == servers.ENGINE
    if how.endswith("code 0") or (is_server and "exited with code" in how):
        return ""
    return cap_hint(record)


def network_advice(binding: Binding, *, is_contained: bool) -> str:
    """Return the advice for a replica that lacked a network, "" if it has one. `is_contained`: it
    runs in a container; processes but for those of servers have the host's network."""
    if isinstance(binding.spec, ServerSpec):
        return EGRESS_ADVICE if binding.spec.network == "none" else ""
    return HANDLER_ADVICE if is_contained else ""


def lacks_network(lost: events.Lost, tail: Sequence[str]) -> bool:
    """Return whether a replica failed for lack of a network, by its reason, or by its last log
    lines if it refused to start or ended itself."""
    if NO_NETWORK.search(lost.reason):
        return True
    is_own = bool(lost.stage) or ("exited with code" in lost.reason)
    if not is_own or lost.reason.endswith("code 0"):
        return False
    return any(NO_NETWORK.search(line) for line in tail)


def cause_of(how: str, record: ReplicaRecord | None) -> str:
    """Return the cause of an exit described by `how`, as shown to callers; "" for a regular
    exit."""
    if how.endswith("code 0") or how == "exited":
        return ""
    if how.startswith(MEMORY_KILL):
        return f"was killed because it ran out of memory{cap_hint(record)}"
    if record is not None and record.engine == servers.ENGINE and how.startswith("exited"):
        return "ended with its server"  # the code is the sidecar's
    return how


def within_cap(
    event: events.Loaded, record: ReplicaRecord | None, settings: PoolSettings
) -> events.Loaded:
    """Return the event with its memory limited to the replica's cap, because claimed memory is
    denied to other replicas. Only if caps cover all of a replica's memory (`caps_all`)."""
    if record is None or not record.memory_mib or not settings.caps_all:
        return event
    cap = float(record.memory_mib)
    report = dict(event.report)
    if "memory_mib" in report:
        report["memory_mib"] = min(report["memory_mib"], cap)
    return replace(event, memory_mib=min(event.memory_mib, cap), report=report)


DEVICES_SINCE: Final = 10
"""Link version since which BIND has several devices."""
SECRETS_MAX: Final = 384 * 1024
"""Max bytes of the secrets of one server as JSON: a frame of the control link has a limit."""


def variables(binding: Binding, values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a server whose values are secrets; `values` are by secret. Raises
    DriverError if they are too large for a BIND."""
    found = {name: values[secret] for name, secret in binding.secrets.items()}
    if (size := len(json.dumps(found))) > SECRETS_MAX:
        raise DriverError(
            f"server.secrets: expected at most {SECRETS_MAX} bytes as JSON, got {size}"
        )
    return found


def bind_request(
    record: ReplicaRecord,
    spec: ModelSpec | ServerSpec,
    assigned_s: float,
    secrets: Mapping[str, str] | None = None,
    files: Sequence[FetchedFile] = (),
) -> BindRequest:
    """Return the bind request for a replica; `assigned_s` is the time of the decision, `secrets`
    are values by variable, `files` those that the replica is to fetch."""
    assert record.role != "standby", "a standby without a binding cannot be bound"
    request: BindRequest = {
        "spec": servers.to_json(spec) if isinstance(spec, ServerSpec) else models.to_json(spec),
        "bound": record.bound,
        "namespace": record.namespace,
        "role": record.role,
        "devices": list(record.devices),
        "device_kind": record.device_kind,
        "threads": record.threads,
        "memory_mib": record.memory_mib,
        "phases": record.phases,
        "assigned_s": assigned_s,
    }
    if record.link < DEVICES_SINCE:
        request["device"] = next(iter(record.devices), "")
    if secrets:
        request["secrets"] = dict(secrets)
    if files:
        request["files"] = list(files)
    return request
