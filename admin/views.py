"""Answers of the admin API about what the server has: each is a Struct of `admin.documents`.

A function that would only copy members has none here: `struct_of` copies them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from admin.documents import functions as f
from admin.documents.deploys import OperationResult, OperationRow, PythonCalls
from admin.documents.hosts import HostRow
from admin.documents.server import DeviceRow, ReplicaRow
from gateway.http.connected import Connected, Connections
from gateway.openapi.descriptions import python_calls
from gateway.problem_document import PartialProblem
from pool_manager.builds import SUFFIX
from pool_manager.core.eviction import RESIDENCY_S, server_stay_s
from pool_manager.core.ledger import Charge
from pool_manager.core.state import Device, Replica, State
from pool_manager.host import HostView
from pool_manager.parked import PoolParks
from pool_manager.reports import Occupancy
from registry.batching import rows_of, summary
from registry.builds import Build, BuildState, Outside
from registry.catalog import Deployed
from registry.compilation import TargetState
from registry.exchange import PoolEndpoints, PoolState
from registry.model.bundles import Bundle
from registry.model.operations import Operation
from registry.model.profiles import Profile
from registry.model.revisions import Interface
from registry.model.servers import ServerSettings
from registry.spec import optimised_of, park_hint
from registry.store.keys import KeyRing
from runtime_image.codecs.request import content_types
from runtime_image.contract.samples import Answer

S = TypeVar("S", bound=msgspec.Struct)


def struct_of(kind: type[S], thing: object) -> S:
    """Return a Struct with the members that it shares with `thing`, a data class or a Struct: a key
    without its hash. Raises msgspec.ValidationError for a member
    of another type."""
    return msgspec.convert(thing, kind, from_attributes=True, str_keys=True)


def operation_row(operation: Operation) -> OperationRow:
    """Return an operation without the request that created it, whose it was and what that allowed.

    Its end is as the release stored it that ran it, maybe years ago: members of its result or its
    error that this release cannot read are left out.
    """
    try:
        return struct_of(OperationRow, operation)
    except msgspec.ValidationError:
        result = _readable(OperationResult, operation.result)
        error = _readable(PartialProblem, operation.error)
        return struct_of(OperationRow, replace(operation, result=result, error=error))


def _readable(kind: type[msgspec.Struct], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of `data` that fit `kind`, which requires none."""
    found = {}
    for name, value in data.items():
        with suppress(msgspec.ValidationError):
            msgspec.convert({name: value}, kind, str_keys=True)
            found[name] = value
    return found


def pool_state(shown: PoolEndpoints) -> PoolState:
    """Return the state of a pool; one whose revision was removed a moment ago is cold."""
    return shown.state if shown.state != "gone" else "cold"


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


def park_row(deployed: Deployed, parks: PoolParks | None, boot_s: float) -> f.ParkRow | None:
    """Return the parks of a function, None for one without the table [park] whose replicas are all
    awake. `boot_s` is the Unix time at monotonic 0."""
    parked = parks.parked if parks is not None else ()
    if not (can_park(deployed) or parked):
        return None
    shown = [
        replace(
            one,
            since_s=round(boot_s + one.since_s, 1),
            ends_s=None if one.ends_s is None else round(boot_s + one.ends_s, 1),
            residue_mib=round(one.residue_mib, 1),
            host_mib=round(one.host_mib, 1),
        )
        for one in parked
    ]
    rows = [struct_of(f.ParkedRow, one) for one in shown]
    return f.ParkRow(off=park_off(deployed, parks), wake_ms=wake_ms(parks), parked=rows)


def wake_ms(parks: PoolParks | None) -> int | None:
    """Return the milliseconds until a parked replica serves, None if they are not known."""
    return round(parks.wake_s * 1e3) if parks is not None and parks.wake_s else None


_SHOWN_FIRST: Final = ("building", "waiting", "given_up", "failed", "done")


def first_shown(states: Sequence[TargetState]) -> TargetState:
    """Return the state that stands for all types of device: one that is not done, if any."""
    return min(states, key=lambda one: _SHOWN_FIRST.index(_shown(one)))


def _shown(one: TargetState) -> BuildState:
    """Return the state of a build; one without its compiled model is to be repeated."""
    if one.compiled is not None:
        return "done"
    return "waiting" if one.build.state == "done" else one.build.state


def build_row(one: TargetState | str, estimate_s: float | None) -> f.BuildRow:
    """Return the state of a build as lists have it. A text is the reason why nothing is
    compiled."""
    if isinstance(one, str):
        return f.BuildRow(state="unavailable", reason=one, began_s=None, estimate_s=None)
    state = _shown(one)
    return f.BuildRow(
        state=state,
        reason=one.build.reason,
        began_s=one.build.began_s if state == "building" else None,
        estimate_s=None if estimate_s is None else round(estimate_s, 1),
    )


def build_detail(one: TargetState | str, estimate_s: float | None, now_s: float) -> f.BuildDetail:
    """Return all about the build of a function for one type of device."""
    row = build_row(one, estimate_s)
    target, build, compiled = (
        (None, Build(), None) if isinstance(one, str) else (one.target, one.build, one.compiled)
    )
    elapsed_s = compiled.build_s if compiled else None
    if row.began_s is not None:
        elapsed_s = max(0.0, now_s - row.began_s)
    outside: Outside | None = None
    if target is not None:
        outside = "ordinary" if target.keeps_ordinary else "refuse"
    return f.BuildDetail(
        **msgspec.structs.asdict(row),
        attempts=build.attempts,
        elapsed_s=None if elapsed_s is None else round(elapsed_s, 1),
        compiler=target.compiler if target else None,
        device_type=target.device_kind if target else None,
        host=target.device.host if target else "",
        device_model=target.device.model if target else "",
        ranges=list(target.ranges) if target else [],
        outside=outside,
        form=compiled.model.form if compiled else None,
        parity=list(compiled.parity if compiled else build.parity),
        samples=compiled.samples if compiled else 0,
        ordinary_ms=compiled.ordinary_ms if compiled else {},
        compiled_ms=compiled.compiled_ms if compiled else {},
        load_ms=compiled.load_ms if compiled else None,
        memory_mib=compiled.memory_mib if compiled else None,
        made_s=compiled.made_s if compiled else None,
    )


def function_detail(deployed: Deployed, row: f.FunctionRow) -> f.FunctionDetail:
    """Return what is told of a function and of its revision with the traffic, in one Struct with
    its row. All else is empty: builds, revisions, cold starts, and what follows from others."""
    function, revision = deployed.function, deployed.revision
    optimised = optimised_of(deployed)
    detail = f.FunctionDetail(
        **{**msgspec.structs.asdict(row), "build": None},
        builds=[],
        limits=function.limits,
        spread=function.scaling.spread,
        file_hosts=function.scaling.file_hosts,
        preemptible=function.scaling.is_preemptible,
        aliases=list(function.aliases),
        signature=revision.signature,
        content_types=content_types(revision.signature, revision.inputs),
        inputs=revision.inputs,
        output=revision.output,
        batching=revision.batching,
        device=revision.device,
        precision=optimised.table if optimised else None,
        sample="manifest" if revision.sample else "zeros",
        revisions=[],
        previous=None,
        cold_starts=[],
        example="",
        neighbours="",
        exchange=function.exchange or UNSET,
    )
    if revision.server is not None:
        detail.server = server_of(revision.server)
    if not revision.is_python:
        return detail
    return msgspec.structs.replace(detail, **msgspec.structs.asdict(calls_of(revision.interface)))


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


def server_of(server: ServerSettings) -> f.Server:
    """Return the settings of a server. Of its variables only the names: their values may be
    secrets, which the scope `read` does not show."""
    names = f.Server.__struct_fields__
    members = {name: getattr(server, name) for name in names if name != "env"}
    return f.Server(**members, env=sorted(server.env))


def calls_of(interface: Interface | None) -> PythonCalls:
    """Return how a Python function is called."""
    return msgspec.convert(python_calls(interface), PythonCalls)


def revision_row(deployed: Deployed, bundle: Bundle) -> f.RevisionRow:
    """Return one revision as `fnctl show` lists it."""
    revision = deployed.revision
    row = f.RevisionRow(
        number=revision.number,
        oip_version=revision.oip_version,
        traffic=deployed.function.revision == revision.number,
        bundle=revision.bundle,
        engine=revision.engine,
        compilation=revision.compilation,
        model=revision.model,
        handler=revision.handler,
        size=bundle.size,
        created_s=revision.created_s,
        signature=revision.signature,
        profile=shown_profile(deployed.profile),
        batch_max=rows_of(revision, deployed.profile),
        batching=summary(revision, deployed.profile),
    )
    if revision.interface is not None:
        row.predict = revision.interface.predict
    if revision.server is not None:
        row.server = server_of(revision.server)
        row.why_not_golden = _why_not_golden(revision.server, deployed.profile)
        row.park_hint = park_hint(revision.server, revision.device)
    return row


def _why_not_golden(server: ServerSettings, profile: Profile | None) -> str:
    """Return why a server's revision has no golden sample, "" if it has one."""
    if profile is not None and profile.golden is not None:
        return ""
    measured = profile.why_not_golden if profile is not None else ""
    return server.why_not_golden or measured or "its trial learnt none: fnctl deploy --measure"


def shown_profile(profile: Profile | None) -> Profile | None:
    """Return the measurements of the deploy. Of a server's engine only the name, without the digest
    that the profile is stored under; of a golden sample's answer only the head."""
    if profile is None:
        return None
    if golden := profile.golden:
        right = Answer(golden.sample.answer.status, golden.sample.answer.content_type)
        golden = replace(golden, sample=replace(golden.sample, answer=right))
    return replace(profile, golden=golden, engine=profile.engine.partition(":")[0])


def exchanges_of(found: Connections, ring: KeyRing) -> f.Exchanges:
    """Return who is connected to a server function, and in words whether that keeps it awake."""

    def client(one: Connected) -> f.ConnectedClient:
        note = note_of(one.key_id, ring)
        return f.ConnectedClient(one.key_id, note, one.kind, one.since_s, one.path, one.counts)

    return f.Exchanges(
        connected=[client(one) for one in found.items],
        closed=[client(one) for one in found.closed],
        connections=f.ConnectionCounts(found.counting, found.free),
        awake=_awake(found),
        last=None if found.last is None else client(found.last),
    )


def note_of(id: str, ring: KeyRing) -> str:
    """Return the note of the key with this id, "" for none."""
    key = ring.with_id(id)
    return key.note if key else ""


def _awake(found: Connections) -> str:
    if found.counting:
        one = found.counting == 1
        return f"{found.counting} open exchange{' keeps' if one else 's keep'} it awake"
    return "what is open does not keep it awake" if found.free else ""


def host_row(view: HostView) -> HostRow:
    """Return one host without its settings, which only the scope `admin` shows."""
    return HostRow(
        name=view.name,
        address=view.address,
        state=view.state,
        reason=view.reason,
        since_s=round(view.since_s, 3),
        labels=view.labels,
        driver=view.driver,
        engine_version=view.engine_version,
        rtt_ms=None if view.rtt_ms is None else round(view.rtt_ms, 2),
        agent=view.agent,
        cpu_slots=view.cpu_slots,
        gpus=view.gpus,
        replicas=view.replicas,
        disk_free_mib=whole(view.disk_free_mib),
        cached_files=view.cached_files,
        cached_mib=round(view.cached_mib or 0.0, 3),
        images=len(view.images),
        clock_offset_s=None if view.clock_offset_s is None else round(view.clock_offset_s, 3),
        transfer=view.transfer,
    )


def device_row(occupancy: Occupancy, busy: float | None) -> DeviceRow:
    """Return one device. `busy` is the share of the last seconds in which a model ran."""
    device, gpu = occupancy.device, occupancy.gpu
    return DeviceRow(
        id=device.id,
        host=device.host,
        kind=device.kind,
        name=gpu.name if gpu else None,
        index=gpu.index if gpu else None,
        capability=gpu.capability if gpu else None,
        driver=gpu.driver if gpu else None,
        bank=device.bank,
        memory_mib=round(device.memory_mib),
        charged_mib=round(occupancy.charged_mib),
        used_mib=whole(gpu.used_mib if gpu else None),
        total_mib=whole(gpu.total_mib if gpu else None),
        foreign_mib=whole(gpu.foreign_mib if gpu else None),
        state=occupancy.state,
        reason=occupancy.reason,
        replicas=list(occupancy.replicas),
        busy=None if busy is None else round(busy, 3),
        parked=list(occupancy.parked),
        residue_mib=round(occupancy.residue_mib),
    )


def whole(value: float | None) -> int | None:
    """Return a number rounded to a whole one, None for None."""
    return None if value is None else round(value)


def replica_row(replica: Replica, since_s: float, charge: Charge) -> ReplicaRow:
    """Return one replica; `since_s` is the start of its state in Unix seconds, `charge` what it is
    charged."""
    left_s = replica.deadline_s - replica.since_s
    is_ending = replica.state is State.PARKED and left_s < inf
    pool = replica.pool.removesuffix(SUFFIX) if replica.role == "build" else replica.pool
    ref = pool.partition("/")[2] if replica.role != "standby" else ""
    return ReplicaRow(
        id=replica.id,
        pool=replica.pool,
        function=ref.partition("@")[0],
        revision=ref,
        device=replica.first_device,
        devices=list(replica.devices),
        host=replica.host,
        role=replica.role,
        state=replica.state,
        since_s=round(since_s, 3),
        adopted=replica.adopted,
        limit=replica.limit,
        session=replica.session,
        memory_mib=round(replica.memory_mib, 1),
        phases=replica.phases,
        why=replica.why,
        trouble=replica.trouble,
        residue_mib=round(charge.memory_mib, 1) if charge.is_parked else None,
        host_mib=round(charge.host_mib, 1),
        ends_s=round(since_s + left_s, 1) if is_ending else None,
    )
