"""JSON views of the admin API's nouns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from math import inf
from typing import Any, Final, NamedTuple

from admin.rates import ResponseRate
from gateway.http.connected import Connected, Connections
from gateway.openapi.descriptions import python_calls
from pool_manager.builds import SUFFIX
from pool_manager.core.eviction import RESIDENCY_S, server_stay_s
from pool_manager.core.ledger import Charge
from pool_manager.core.pool import PoolForecast
from pool_manager.core.state import Device, Replica, State
from pool_manager.host import HostView
from pool_manager.parked import PoolParks
from pool_manager.reports import Occupancy
from registry.batching import rows_of, summary
from registry.builds import Build, BuildState, Target
from registry.catalog import Deployed
from registry.compilation import TargetState
from registry.exchange import Expected, Load, PoolEndpoints
from registry.model.bundles import Bundle
from registry.model.functions import Function
from registry.model.hosts import SshHost
from registry.model.keys import Key
from registry.model.operations import Operation
from registry.model.profiles import Profile
from registry.model.servers import ServerSettings
from registry.spec import optimised_of, park_hint
from registry.store.keys import KeyRing
from runtime_image.codecs.request import content_types
from runtime_image.contract import signature as signatures
from runtime_image.contract.compiled import ShapeRange
from runtime_image.contract.precision import PrecisionReport
from runtime_image.contract.samples import Answer, SampleVerdict


class Live(NamedTuple):
    """Current state of a function's pool. `pool`: its endpoints, the number of wanted replicas, and
    the start of its state (Unix seconds). `ready_in_ms` is 0 if a replica is ready and None if
    unknown. `sleeps_at_s` (Unix seconds) is from the forecast. `response_rate` covers the last
    minute; `first_bytes` is the same of a server function's first bytes. `golden` is the worst
    verdict of its replicas' golden samples, `trouble` why a ready server does not answer."""

    pool: tuple[PoolEndpoints, int, float]
    load: Load
    expected: Expected
    ready_in_ms: float | None
    response_rate: ResponseRate
    first_bytes: ResponseRate
    forecast: PoolForecast
    sleeps_at_s: float | None
    golden: SampleVerdict
    trouble: str
    park: dict[str, Any] | None = None
    """Its parks, as `park_json` returns them."""


def function_json(deployed: Deployed, live: Live) -> dict[str, Any]:
    """Return one function as `fnctl ls` lists it. `phase` is the phase of a waking function,
    `awaited` what its server is waited for, None while that is not worth telling. `trouble`: why a
    ready server does not answer, "" while all do."""
    function, expected, response_rate = deployed.function, live.expected, live.response_rate
    shown, wanted, since_s = live.pool
    return {
        "name": function.name,
        "oip_name": function.oip_name,
        "revision": deployed.revision.ref,
        "engine": deployed.revision.engine,
        "state": shown.state,
        "reason": shown.reason,
        "phase": live.forecast.phase if shown.state == "waking" else None,
        "awaited": _awaited(live) if shown.state == "waking" else None,
        "ready": len(shown.replicas),
        "wanted": wanted,
        "held": live.load.queued,
        "in_flight": live.load.in_flight,
        "rate": response_rate.rate,
        "p50_ms": response_rate.p50_ms,
        "p95_ms": response_rate.p95_ms,
        "first_byte_p50_ms": live.first_bytes.p50_ms,
        "first_byte_p95_ms": live.first_bytes.p95_ms,
        "min": function.scaling.min,
        "max": function.scaling.max,
        "idle_s": function.scaling.idle_s,
        "labels": function.labels,
        "devices": list(live.forecast.devices),
        "since_s": since_s,
        "sleeps_at_s": live.sleeps_at_s,
        "cold_start_ms": round(expected.p50_s * 1e3, 1) if expected.samples else None,
        "ready_in_ms": _rounded(live.ready_in_ms),
        "created_s": function.created_s,
        "golden": live.golden,
        "trouble": live.trouble,
        "park": live.park,
    }


def can_park(deployed: Deployed) -> bool:
    """Return whether a revision has the table [park]."""
    server = deployed.revision.server
    return server is not None and server.park is not None


def park_off(deployed: Deployed, parks: PoolParks | None) -> str:
    """Return why replicas of a revision are stopped and not parked, "" if they are parked.

    (1) It has no table [park].
    (2) Its trial has not parked it.
    (3) Its trial has shown that it does not sleep, or wake, as it should.
    (4) Too many have gone wrong since.
    """
    ref = deployed.revision.ref
    profile = deployed.profile.park if deployed.profile is not None else None
    if not can_park(deployed):  # (1)
        return f"{ref} has no table [park]"
    if profile is None:  # (2)
        return f"the trial of {ref} has not parked it: fnctl deploy --measure"
    if not profile.works:  # (3)
        return f"the trial of {ref} has shown: {profile.reason or 'it does not work'}"
    return parks.off if parks is not None else ""  # (4)


def park_json(deployed: Deployed, parks: PoolParks | None, boot_s: float) -> dict[str, Any] | None:
    """Return the parks of a function, None for one without the table [park] whose replicas are all
    awake. `boot_s` is the Unix time at monotonic 0."""
    parked = parks.parked if parks is not None else ()
    if not (can_park(deployed) or parked):
        return None
    wake_s = parks.wake_s if parks is not None else 0.0
    return {
        "off": park_off(deployed, parks),
        "wake_ms": round(wake_s * 1e3) if wake_s else None,
        "parked": [
            {
                "id": one.id,
                "devices": list(one.devices),
                "since_s": round(boot_s + one.since_s, 1),
                "ends_s": None if one.ends_s is None else round(boot_s + one.ends_s, 1),
                "residue_mib": round(one.residue_mib, 1),
                "host_mib": round(one.host_mib, 1),
                "why": one.why,
            }
            for one in parked
        ],
    }


def _awaited(live: Live) -> str | None:
    return str(live.forecast.awaited) if live.forecast.awaited else None


_SHOWN_FIRST: Final = ("building", "waiting", "given_up", "failed", "done")


def first_shown(states: Sequence[TargetState]) -> TargetState:
    """Return the state that stands for all types of device: one that is not done, if any."""
    return min(states, key=lambda one: _SHOWN_FIRST.index(_shown(one)))


def _shown(one: TargetState) -> BuildState:
    """Return the state of a build; one without its compiled model is to be repeated."""
    if one.compiled is not None:
        return "done"
    return "waiting" if one.build.state == "done" else one.build.state


def build_row(one: TargetState | str, estimate_s: float | None) -> dict[str, Any] | None:
    """Return the state of a build as lists have it, None for a function that is not compiled. A
    text is the reason why nothing is compiled. `began_s` in Unix seconds, null if it has not
    begun."""
    if one == "":
        return None
    if isinstance(one, str):
        return {"state": "unavailable", "reason": one, "began_s": None, "estimate_s": None}
    state = _shown(one)
    return {
        "state": state,
        "reason": one.build.reason,
        "began_s": one.build.began_s if state == "building" else None,
        "estimate_s": None if estimate_s is None else round(estimate_s, 1),
    }


def build_json(
    one: TargetState | str, estimate_s: float | None, now_s: float
) -> dict[str, Any] | None:
    """Return all about the build of a function for one type of device, None for a function that is
    not compiled. `elapsed_s` of a build that is done is how long it took."""
    row = build_row(one, estimate_s)
    if row is None:
        return None
    target, build, compiled = (
        (None, Build(), None) if isinstance(one, str) else (one.target, one.build, one.compiled)
    )
    elapsed_s = compiled.build_s if compiled else None
    if row["began_s"] is not None:
        elapsed_s = max(0.0, now_s - row["began_s"])
    return {
        **row,
        "attempts": build.attempts,
        "elapsed_s": None if elapsed_s is None else round(elapsed_s, 1),
        "compiler": target.compiler if target else None,
        "device_type": target.device_kind if target else None,
        "host": target.device.host if target else "",
        "device_model": target.device.model if target else "",
        "ranges": [_range_json(range) for range in target.ranges] if target else [],
        "outside": _outside(target) if target else None,
        "form": compiled.model.form if compiled else None,
        "parity": list(compiled.parity if compiled else build.parity),
        "samples": compiled.samples if compiled else 0,
        "ordinary_ms": compiled.ordinary_ms if compiled else {},
        "compiled_ms": compiled.compiled_ms if compiled else {},
        "load_ms": compiled.load_ms if compiled else None,
        "memory_mib": compiled.memory_mib if compiled else None,
        "made_s": compiled.made_s if compiled else None,
    }


def _range_json(one: ShapeRange) -> dict[str, Any]:
    shapes = {"smallest": one.smallest, "usual": one.usual, "largest": one.largest}
    return {"input": one.input, **{end: list(shape) for end, shape in shapes.items()}}


def _outside(target: Target) -> str:
    return "ordinary" if target.keeps_ordinary else "refuse"


def scaling_json(function: Function) -> dict[str, Any]:
    """Return the scaling after a change."""
    return {"name": function.name, **asdict(function.scaling)}


def call_json(deployed: Deployed) -> dict[str, Any]:
    """Return how a function's revision with the traffic is called and run. `inputs` and `output`
    are the additions of function.toml to the signature; `sample` is the sample's source."""
    revision = deployed.revision
    exchange = deployed.function.exchange
    return {
        "signature": signatures.to_json(revision.signature),
        "content_types": content_types(revision.signature, revision.inputs),
        "inputs": {name: asdict(rule) for name, rule in revision.inputs.items()},
        "output": asdict(revision.output),
        "batching": asdict(revision.batching),
        "device": asdict(revision.device),
        "sample": "manifest" if revision.sample else "zeros",
        **(python_calls(revision.interface) if revision.is_python else {}),
        **server_json(revision.server),
        **({"exchange": asdict(exchange)} if exchange else {}),
    }


def neighbours(deployed: Deployed, devices: Iterable[Device]) -> str:
    """Return what a replica on several GPUs means for other functions on the host with the most
    whole GPUs of `devices`, with the start that the trial measured; "" for a replica on one
    device."""
    count, profile = deployed.revision.device.count, deployed.profile
    if count == 1:
        return ""
    whole = Counter(one.host for one in devices if one.kind == "cuda" and not one.is_slice)
    there = max(whole.values(), default=count)
    load_s = profile.load_ms / 1e3 if profile is not None else 0.0
    end = "stops, and starts anew"
    if profile is not None and profile.park is not None and profile.park.works:
        load_s, end = profile.park.wake_s + profile.park.verify_s, "sleeps, and wakes"
    stay_s = server_stay_s(load_s) if deployed.revision.server is not None else RESIDENCY_S
    taken = (
        f"it takes {count} of the {there} GPUs of a host, and functions on the others run on"
        if count < there
        else f"it takes all {there} GPUs of a host: no other function runs on a GPU there meanwhile"
    )
    return (
        f"{taken}. A call for another that needs one of them waits until it has been ready for"
        f" {stay_s:.0f} s and its open requests have ended; then it {end} at its next call"
    )


def server_json(server: ServerSettings | None) -> dict[str, Any]:
    """Return the settings of a server under `server`; {} for a model function. Of its variables
    only the names: their values may be secrets, which the scope `read` does not show."""
    if server is None:
        return {}
    return {"server": {**asdict(server), "env": sorted(server.env)}}


def revision_json(deployed: Deployed, bundle: Bundle) -> dict[str, Any]:
    """Return one revision as `fnctl show` lists it. `traffic`: calls by plain name reach it;
    `batch_max`: max rows of one run, as measured and as its settings allow; `batching`: the same in
    words, or the reason for no batching."""
    revision = deployed.revision
    return {
        "number": revision.number,
        "oip_version": revision.oip_version,
        "traffic": deployed.function.revision == revision.number,
        "bundle": revision.bundle,
        "engine": revision.engine,
        "compilation": asdict(revision.compilation) if revision.compilation else None,
        "model": revision.model,
        "handler": revision.handler,
        "size": bundle.size,
        "created_s": revision.created_s,
        "signature": signatures.to_json(revision.signature),
        "profile": profile_json(deployed.profile),
        "batch_max": rows_of(revision, deployed.profile),
        "batching": summary(revision, deployed.profile),
        **({"predict": revision.interface.predict} if revision.interface else {}),
        **server_json(revision.server),
        **({"why_not_golden": _why_not_golden(deployed)} if revision.server else {}),
        **({"park_hint": park_hint(revision.server, revision.device)} if revision.server else {}),
    }


def _why_not_golden(deployed: Deployed) -> str:
    """Return why a server's revision has no golden sample, "" if it has one."""
    server, profile = deployed.revision.server, deployed.profile
    if server is None or (profile is not None and profile.golden is not None):
        return ""
    measured = profile.why_not_golden if profile is not None else ""
    return server.why_not_golden or measured or "its trial learnt none: fnctl deploy --measure"


def profile_json(profile: Profile | None) -> dict[str, Any] | None:
    """Return the measurements of the deploy. Of a server's engine only the name, without the digest
    that the profile is stored under; of a golden sample's answer only the head."""
    if profile is None:
        return None
    if golden := profile.golden:
        right = Answer(golden.sample.answer.status, golden.sample.answer.content_type)
        shown = replace(golden, sample=replace(golden.sample, answer=right))
        profile = replace(profile, golden=shown)
    return {
        **asdict(profile),
        "engine": profile.engine.partition(":")[0],
        "latency_ms": {str(k): v for k, v in profile.latency_ms.items()},
    }


def precision_json(deployed: Deployed) -> PrecisionReport | None:
    """Return the candidates of other precision that a revision's trial measured, None without."""
    found = optimised_of(deployed)
    return found.table if found else None


def operation_json(operation: Operation) -> dict[str, Any]:
    """Return an operation without the request that created it, whose it was and what that
    allowed."""
    data = asdict(operation)
    del data["request"], data["party"], data["scopes"]
    return data


def key_json(key: Key) -> dict[str, Any]:
    """Return a key without its secret or hash."""
    return {
        "id": key.id,
        "scopes": list(key.scopes),
        "note": key.note,
        "created_s": key.created_s,
        "priority": key.priority,
    }


def connections_json(found: Connections, ring: KeyRing) -> dict[str, Any]:
    """Return who is connected to a server function, and in words whether that keeps it awake."""
    return {
        "connected": [_connected_json(one, ring) for one in found.items],
        "closed": [_connected_json(one, ring) for one in found.closed],
        "connections": {"counting": found.counting, "free": found.free},
        "awake": _awake(found),
        "last": None if found.last is None else _connected_json(found.last, ring),
    }


def _connected_json(one: Connected, ring: KeyRing) -> dict[str, Any]:
    return {
        "key": one.key_id,
        "note": note_of(one.key_id, ring),
        "kind": one.kind,
        "since_s": one.since_s,
        "path": one.path,
        "counts": one.counts,
    }


def note_of(id: str, ring: KeyRing) -> str:
    """Return the note of the key with this id, "" for none."""
    key = ring.with_id(id)
    return key.note if key else ""


def _awake(found: Connections) -> str:
    if found.counting:
        one = found.counting == 1
        return f"{found.counting} open exchange{' keeps' if one else 's keep'} it awake"
    return "what is open does not keep it awake" if found.free else ""


def host_json(view: HostView) -> dict[str, Any]:
    """Return one host without its settings, which only the scope `admin` shows. Null means
    unknown."""
    return {
        "name": view.name,
        "address": view.address,
        "state": view.state,
        "reason": view.reason,
        "since_s": round(view.since_s, 3),
        "labels": view.labels,
        "driver": view.driver,
        "engine_version": view.engine_version,
        "rtt_ms": None if view.rtt_ms is None else round(view.rtt_ms, 2),
        "agent": view.agent,
        "cpu_slots": view.cpu_slots,
        "gpus": view.gpus,
        "replicas": view.replicas,
        "disk_free_mib": _rounded(view.disk_free_mib),
        "cached_files": view.cached_files,
        "cached_mib": round(view.cached_mib or 0.0, 3),
        "images": len(view.images),
        "clock_offset_s": None if view.clock_offset_s is None else round(view.clock_offset_s, 3),
        "transfer": view.transfer,
    }


def host_settings_json(host: SshHost) -> dict[str, Any]:
    """Return the stored settings of a host."""
    return {
        "address": host.address,
        "labels": host.labels,
        "host_key": host.host_key,
        "identity": host.identity,
        "engine": host.engine,
        "cpu_slots": host.cpu_slots,
        "gpus": host.gpus,
        "files_mib": host.files_mib,
        "draining": host.is_draining,
        "added_s": host.added_s,
    }


def occupancy_json(occupancy: Occupancy, busy: float | None) -> dict[str, Any]:
    """Return one device. `memory_mib` is the memory available to replicas, `charged_mib` the part
    charged to them. `used_mib` is the GPU's usage by any process, as its driver reports it; CPU
    slots have none. `busy` is the share of the last seconds in which a model ran. Null means
    unknown."""
    device, gpu = occupancy.device, occupancy.gpu
    return {
        "id": device.id,
        "host": device.host,
        "kind": device.kind,
        "name": gpu.name if gpu else None,
        "index": gpu.index if gpu else None,
        "capability": gpu.capability if gpu else None,
        "driver": gpu.driver if gpu else None,
        "bank": device.bank,
        "memory_mib": round(device.memory_mib),
        "charged_mib": round(occupancy.charged_mib),
        "used_mib": _rounded(gpu.used_mib if gpu else None),
        "total_mib": _rounded(gpu.total_mib if gpu else None),
        "foreign_mib": _rounded(gpu.foreign_mib if gpu else None),
        "state": occupancy.state,
        "reason": occupancy.reason,
        "replicas": list(occupancy.replicas),
        "busy": None if busy is None else round(busy, 3),
        "parked": list(occupancy.parked),
        "residue_mib": round(occupancy.residue_mib),
    }


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def replica_json(replica: Replica, since_s: float, charge: Charge) -> dict[str, Any]:
    """Return one replica; `since_s` is the start of its state in Unix seconds, `charge` what it is
    charged. A standby belongs to no function yet. `device` is the first one of `devices`.
    `trouble`: why its server does not answer, "" while it does."""
    left_s = replica.deadline_s - replica.since_s
    is_ending = replica.state is State.PARKED and left_s < inf
    pool = replica.pool.removesuffix(SUFFIX) if replica.role == "build" else replica.pool
    ref = pool.partition("/")[2] if replica.role != "standby" else ""
    return {
        "id": replica.id,
        "pool": replica.pool,
        "function": ref.partition("@")[0],
        "revision": ref,
        "device": replica.first_device,
        "devices": list(replica.devices),
        "host": replica.host,
        "role": replica.role,
        "state": str(replica.state),
        "since_s": round(since_s, 3),
        "adopted": replica.adopted,
        "limit": replica.limit,
        "session": replica.session,
        "memory_mib": round(replica.memory_mib, 1),
        "phases": replica.phases,
        "why": replica.why,
        "trouble": replica.trouble,
        "residue_mib": round(charge.memory_mib, 1) if charge.is_parked else None,
        "host_mib": round(charge.host_mib, 1),
        "ends_s": round(since_s + left_s, 1) if is_ending else None,
    }
