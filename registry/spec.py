"""Derives what a replica runs from a revision and its profile: a model, or a server. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any, Final

from registry.batching import rows_of
from registry.catalog import Deployed
from registry.model.bundles import BundleFile
from registry.model.functions import ExchangeLimits, Health
from registry.model.hosts import LOCAL_HOST
from registry.model.parks import EngineCall, ParkProfile, engine_of, lacking
from registry.model.profiles import Golden, Optimised, Prepared, Profile
from registry.model.revisions import DeviceNeed, Revision
from registry.model.servers import (
    HOST_BY_TRIAL,
    HOST_OF_CLIENT,
    HOST_OF_LOOPBACK,
    ServerSettings,
)
from registry.names import HOST_LABEL
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.parks import ParkHooks
from runtime_image.contract.precision import RULES, Optimisation
from runtime_image.contract.samples import GoldenPlan, SampleRequest
from runtime_image.contract.server import DESCRIPTION, ServerSpec
from runtime_image.contract.signature import Signature

INLINE_BELOW_MS: Final = 0.1
"""A shorter run costs less than passing it to a thread."""

RUNNER_THREADS_MAX: Final = 1024
"""Max calls at once of our server of Python functions."""
_UNNAMED: Final = frozenset({HOST_BY_TRIAL, HOST_OF_CLIENT, HOST_OF_LOOPBACK})
"""Hosts with which probes and samples name the server's address."""
VLLM_COUNTER: Final = "vllm:iteration_tokens_total_count"
"""Moves with each step of vLLM's engine, also within a prefill in parts."""
VLLM_STEP_S: Final = 120.0
_UNCHUNKED: Final = "--no-enable-chunked-prefill"
STEP_S: Final = 900.0
"""Longest time in seconds in which a server that works may not move its counter."""


def replica_spec(deployed: Deployed) -> ModelSpec | ServerSpec:
    """Return the specification that binds a replica to `deployed.revision`. It is parked only if
    the trial's park works: its memory cap has room for a sleep only then."""
    if deployed.revision.server is None:
        return model_spec(deployed)
    spec = server_spec(deployed)
    return spec if park_of(deployed) else replace(spec, park=None)


def server_spec(deployed: Deployed) -> ServerSpec:
    """Return the specification of a server function. Raises ValueError for a model function.

    The driver gives command and variables to the container of an image, not the sidecar.
    """
    revision, server = deployed.revision, deployed.revision.server
    if server is None:
        raise ValueError(f"{revision.ref} is no server function")
    exchange = deployed.function.exchange or ExchangeLimits()
    is_apart = server.image is not None
    return ServerSpec(
        revision=revision.ref,
        command=() if is_apart else server.command,
        env={} if is_apart else server.env,
        port=server.port,
        ready=server.ready,
        network=server.network,
        start_s=server.start_s,
        stop_grace_s=server.stop_grace_s,
        max_s=exchange.max_s,
        concurrency=exchange.concurrency,
        samples=server.samples,
        host="" if server.host in _UNNAMED else server.host,
        is_apart=is_apart,
        description=DESCRIPTION if revision.is_python else "",
        golden_plan=golden_plan(revision),
        counter=counter_of(deployed.function.health, server),
        metrics=deployed.function.health.metrics,
        park=park_hooks(server),
    )


def counter_of(health: Health, server: ServerSettings) -> str:
    """Return the metric of a server that rises as long as it works, "" for none."""
    if health.counter is not None:
        return health.counter
    return VLLM_COUNTER if _is_vllm(server) else ""


def step_s_of(health: Health, server: ServerSettings) -> float:
    """Return the longest time in seconds in which a server that computes may show no progress.
    vLLM's prefills come in parts, unless its command says otherwise."""
    if health.step_s is not None:
        return health.step_s
    is_chunked = _is_vllm(server) and _UNCHUNKED not in server.command
    return VLLM_STEP_S if is_chunked else STEP_S


def _is_vllm(server: ServerSettings) -> bool:
    """Whether the words of a command, or an image's name, are vLLM's."""
    return engine_of(server.command, server.image.reference if server.image else "") == "vllm"


def park_hooks(server: ServerSettings) -> ParkHooks | None:
    """Return the calls with which a sidecar parks a server; None if it does not."""
    park = server.park
    if park is None:
        return None
    check = _engine_request(park.check) if park.check else None
    calls = _engine_request(park.sleep), _engine_request(park.wake), check
    return ParkHooks(*calls, is_private=bool(park.engine))


def park_of(deployed: Deployed) -> ParkProfile | None:
    """Return what is known of the parks of a revision, None if its replicas are not parked."""
    server, profile = deployed.revision.server, deployed.profile
    found = profile.park if profile is not None else None
    return found if found and found.works and server and server.park else None


def park_hint(server: ServerSettings, device: DeviceNeed) -> str:
    """Return which table [park] would fit a server on such devices that has none, "" if none
    would."""
    engine = engine_of(server.command, server.image.reference if server.image else "")
    is_fit = device.kind != "cpu" and server.is_private and not server.why_not_golden
    if server.park or not engine or not is_fit:
        return ""
    flags = " ".join(one.flag for one in lacking(engine, server.command))
    beside = f", with {flags} in the command" if flags else ""
    if device.kind == "any":
        beside += f'{" and" if flags else ", with"} [device] kind = "cuda"'
    return f'[park] engine = "{engine}"{beside} lets it sleep instead of being stopped'


def _engine_request(call: EngineCall) -> SampleRequest:
    headers = {"Content-Type": "application/json"} if call.body else {}
    return SampleRequest(call.path, call.method, headers, call.body)


def golden_plan(revision: Revision) -> GoldenPlan | None:
    """Return what a trial of a revision is to learn a golden sample from, None for nothing."""
    server = revision.server
    if server is None or server.why_not_golden:
        return None
    marked = next((one for one in server.samples if one.golden), None)
    if marked is not None or server.api is None:
        return GoldenPlan(marked)
    return GoldenPlan(base=server.api.base, model=server.api.served_model or revision.name)


def golden_of(deployed: Deployed) -> Golden | None:
    """Return the golden sample of a revision, None without one. Its profile belongs to the bundle
    and to what the server runs by, and may have that of a revision with another API."""
    found = deployed.profile.golden if deployed.profile else None
    return found if found and found.plan == golden_plan(deployed.revision) else None


def runner_settings(deployed: Deployed) -> dict[str, Any]:
    """Return the settings of our server of a Python function, as `python_runner/settings.py` has
    them. Raises ValueError for other functions."""
    revision, server = deployed.revision, deployed.revision.server
    if server is None or server.python is None or not revision.is_python:
        raise ValueError(f"{revision.ref} is no Python function")
    python, limits = server.python, deployed.function.limits
    exchange = deployed.function.exchange or ExchangeLimits()
    output = {"kind": python.kind, "content_type": python.content_type, **asdict(revision.output)}
    return {
        "revision": revision.ref if revision.number else "",
        "handler": revision.handler,
        "page": python.page,
        # Exchanges fill a batch, of which one runs at a time.
        "concurrency": 1 if python.batch_max else min(exchange.concurrency, RUNNER_THREADS_MAX),
        "batch_max": python.batch_max,
        "timeout_s": limits.timeout_s,
        "body_mib": limits.body_mib,
        "inputs": {name: asdict(rule) for name, rule in revision.inputs.items()},
        "output": output,
        "ready": server.ready,
    }


def model_spec(deployed: Deployed) -> ModelSpec:
    """Return the specification of a model function.

    Rows are batched only if `registry.batching` allows it.
    """
    revision, profile = deployed.revision, deployed.profile
    assert revision.engine != "server"
    batch_max = rows_of(revision, profile)
    candidate = candidate_of(deployed)
    return ModelSpec(
        revision=revision.ref,
        engine=revision.engine,
        model=revision.model,
        handler=revision.handler,
        inputs=revision.inputs,
        output=revision.output,
        batching=batch_max > 1,
        batch_max=batch_max,
        batch_wait_ms=revision.batching.wait_ms if batch_max > 1 else 0.0,
        inline=_inline(revision, profile),
        timeout_s=deployed.function.limits.timeout_s,
        sample=revision.sample,
        preparation=prepared.preparation if (prepared := prepared_of(deployed)) else None,
        equal_axes=profile.equal_axes if profile and batch_max > 1 else (),
        may_rerun=may_rerun(deployed),
        oip_name=deployed.function.oip_name,
        oip_version=revision.oip_version,
        optimised=candidate.path if candidate else "",
    )


def host_labels(revision: Revision) -> dict[str, str]:
    """Return the labels that the hosts of a revision must have. Folders that its server mounts and
    its Python packages are this machine's, unless its manifest names other hosts."""
    labels, server = dict(revision.device.host), revision.server
    if server and (server.mounts or server.python) and not labels:
        return {HOST_LABEL: LOCAL_HOST}
    return labels


def may_rerun(deployed: Deployed) -> bool:
    """Return whether a request that had started may run again.

    With `retry: auto` a handler may not: it may have had side effects.
    """
    retry = deployed.function.limits.retry
    return retry == "always" or (retry == "auto" and not deployed.revision.handler)


def prepared_of(deployed: Deployed) -> Prepared | None:
    """Return the prepared files of this revision's model, None if there are none.

    A profile belongs to the bundle, which may contain other models, too.
    """
    prepared = deployed.profile.prepared if deployed.profile else None
    return prepared if prepared and prepared.model == deployed.revision.model else None


def optimised_of(deployed: Deployed) -> Optimised | None:
    """Return the result of a trial with candidates for this revision's model, None without one."""
    found = deployed.profile.optimised if deployed.profile else None
    is_wanted = wanted_precision(deployed.revision) is not None
    return found if is_wanted and found and found.model == deployed.revision.model else None


def candidate_of(deployed: Deployed) -> BundleFile | None:
    """Return the file that is served instead of this revision's model, None for the model."""
    found = optimised_of(deployed)
    return found.file if found else None


def is_outdated(deployed: Deployed) -> bool:
    """Return whether the candidate that serves was chosen by weaker rules than today's."""
    found = optimised_of(deployed)
    return found is not None and found.file is not None and found.table.get("rules", 0) < RULES


def made_files(profile: Profile) -> tuple[BundleFile, ...]:
    """Return the files that a trial made: prepared ones, and the chosen candidate."""
    prepared = profile.prepared.files if profile.prepared else ()
    chosen = profile.optimised.file if profile.optimised else None
    return (*prepared, *((chosen,) if chosen else ()))


def wanted_precision(revision: Revision) -> Optimisation | None:
    """Return what a trial makes candidates by; None if the model is served as it is."""
    wanted = revision.optimise
    return None if wanted is None or wanted.precision == "fp32" else wanted


def profile_engine(revision: Revision) -> str:
    """Return the engine that the revision's profile is stored under.

    The bundle says what a model function runs; with candidates of other precision, the engine is
    followed by a digest of the settings that they are judged by. A server function also runs what
    its command says, and may have no file at all: its engine is followed by a digest of the
    settings that it runs by. Several GPUs are a part of what was measured, so that another number
    has a profile of its own.
    """
    several = {"gpus": revision.device.count} if revision.device.count > 1 else {}
    if revision.server is None:
        wanted = wanted_precision(revision)
        settings = {**(asdict(wanted) if wanted else {}), **several}
        return _with_digest(revision.engine, settings) if settings else revision.engine
    defaults = asdict(ServerSettings(()))
    ran = {key: value for key, value in asdict(revision.server).items() if value != defaults[key]}
    # Without defaults, so that a new field does not separate a profile from its revision.
    ran.pop("paths", None)
    ran.pop("origins", None)
    ran.pop("fields", None)
    ran.pop("api", None)
    ran.pop("found_host", None)
    for sample in ran.get("samples", ()):
        del sample["golden"]
    if "park" in ran:
        del ran["park"]["park_s"]
    return _with_digest(revision.engine, {**ran, **several})


def _with_digest(engine: str, settings: dict[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True)
    return f"{engine}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def settings_equal(a: Revision, b: Revision) -> bool:
    """Return whether deploying `b` over `a` would change nothing.

    No new revision is then needed. Number and time do not affect what runs. The signature follows
    from the rest, and is not known yet at this point of a deploy.
    """
    return _comparable(a) == _comparable(b)


def _comparable(revision: Revision) -> Revision:
    """Return a revision without its number and time, and what only its trial says."""
    server = revision.server and replace(revision.server, found_host=HOST_OF_CLIENT)
    signature = Signature("json", (), ())
    return replace(
        revision, number=0, created_s=0.0, signature=signature, server=server, interface=None
    )


def _inline(revision: Revision, profile: Profile | None) -> bool:
    if profile is None or not profile.profiled or revision.handler:
        return False
    one_row_ms = profile.latency_ms.get(1)
    return one_row_ms is not None and one_row_ms < INLINE_BELOW_MS
