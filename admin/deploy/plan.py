"""Deploy requests, and their conversion to a draft of function and revision. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple, cast, get_args

from admin.deploy.oip import is_meant, oip_name
from admin.documents.requests import DeployRequest
from pool_manager.core.hosts import HostState
from pool_manager.core.state import Device
from pool_manager.host import HostView
from pool_manager.replicas.trial_parks import PARK
from registry import manifest as manifests
from registry.batching import is_current
from registry.bounded_text import read_json
from registry.builds import DeviceType
from registry.bundles.paths import FILES_MAX, make_bundle
from registry.catalog import Catalog, Deployed
from registry.compilation import wants_trial
from registry.errors import BadBundle, BadManifest, BadRequest, Conflict, Refused, WrongScope
from registry.interface import read_interface
from registry.manifest import Manifest
from registry.model.bundles import Bundle, BundleFile
from registry.model.functions import Function
from registry.model.hosts import LOCAL_HOST, Ability
from registry.model.parks import PARK_S, ParkProfile
from registry.model.profiles import Contention, Golden, Optimised, Prepared, Profile
from registry.model.revisions import Interface, Revision
from registry.model.servers import HOST_OF_CLIENT, PathRules, ServerSettings
from registry.names import HOST_LABEL, check_name
from registry.spec import (
    golden_of,
    golden_plan,
    host_labels,
    is_outdated,
    model_spec,
    profile_engine,
    server_spec,
    wanted_precision,
)
from runtime_image.contract import signature as signatures
from runtime_image.contract.compiled import CompilerName
from runtime_image.contract.contention import ContentionState
from runtime_image.contract.model import EqualAxes, ModelSpec, equal_axes_from_json
from runtime_image.contract.samples import golden_from_json
from runtime_image.contract.server import ServerSpec
from runtime_image.contract.signature import Signature

UNKNOWN_SIGNATURE = Signature("json", (), ())
AXES_MAX = 1000
"""Max axes in the conditions of a batching proof."""
MIB = 1024 * 1024
HERE = (HOST_LABEL, LOCAL_HOST)
"""Label of the server's machine."""
CLAIM: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,251}[a-z0-9])?")
"""Names of mounts that a cluster may have volume claims of."""
SHOWN_HOSTS: Final = 8
"""Max hosts that a refusal names."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Checked deploy. The revision has number 0 and no signature yet. `names_wait_s`: the request
    sets how long calls are held; `names_concurrency`: how many a replica has at once. `is_meant`: a
    deploy by a derived name may change the function."""

    function: Function
    revision: Revision
    bundle: Bundle
    names_wait_s: bool = True
    is_meant: bool = True
    names_concurrency: bool = True

    def trial_spec(
        self, *, prepare: bool, compiler: CompilerName = "tensorrt"
    ) -> ModelSpec | ServerSpec:
        """Return the spec of the trial replica. It always measures batching, as the profile is
        used longer than the present settings. With `prepare` it also writes the prepared files that
        later cold starts load. It makes candidates of other precision if the revision wants them,
        and checks that the compiler is there if the manifest demands one. A
        server's trial runs the server as it is."""
        if self.revision.server:
            return server_spec(Deployed(self.function, self.revision))
        spec = model_spec(Deployed(self.function, self.revision))
        is_unproven = self.revision.batching.mode == "always"
        return replace(
            spec,
            batching=True,
            batch_unproven=is_unproven,
            prepare=prepare,
            optimise=wanted_precision(self.revision),
            build=wants_trial(self.revision, compiler),
        )


def parse_request(body: bytes) -> DeployRequest:
    """Decode the body of a deploy. Raises BadRequest naming the field."""
    return read_json(body, DeployRequest, "the deploy request")


class Asked(NamedTuple):
    """Content of a deploy request: the files without function.toml, and the manifest with the
    request's overrides."""

    bundle: Bundle
    manifest: Manifest


def read_request(name: str, request: DeployRequest) -> Asked:
    """Check the files and the manifest of a request, which takes up to a tenth of a second.

    It needs nothing of the server's state, so that it may run in a thread: its readers are Python,
    and let the event loop run in between. Raises Refused or BadRequest.
    """
    check_name(name)
    # Only a manifest can say that a function needs no file.
    if len(request.files) > FILES_MAX or not (request.files or request.manifest):
        raise BadBundle(f"expected 1 to {FILES_MAX} files, got {len(request.files)}")
    # Without the manifest, so that a changed setting does not change the bundle's digest.
    files = [
        BundleFile(file.path, file.size, file.sha256)
        for file in request.files
        if file.path != manifests.MANIFEST_FILE
    ]
    bundle = make_bundle(files, may_be_empty=True)
    return Asked(bundle, _manifest(name, request, [file.path for file in bundle.files]))


def plan(
    name: str, request: DeployRequest, asked: Asked, catalog: Catalog, now_s: float, idle_s: float
) -> Plan:
    """Check all that can be checked without file contents, and return the plan.

    `asked` is what `read_request` returned. `idle_s` is the idle time of functions that set none.
    Raises Refused, BadRequest or Conflict.
    """
    bundle, manifest = asked
    is_own = is_meant(name, manifest, catalog)
    if request.derived_name and not is_own:
        raise derived_name_taken(name)
    # Before the trial, which may load a large model for nothing.
    if owner := catalog.owner_of(name):
        raise alias_taken(name, owner)
    if manifest.is_python and not request.trust:
        raise Refused(
            f"{manifest.handler} and its packages would run on the server with the rights of the"
            " server's user; pass --trust to allow it"
        )
    if manifest.handler and not request.trust:
        raise Refused(
            "handler.py would run on the server: in a container under the driver docker, else with"
            " the rights of the server's user; pass --trust to allow it"
        )
    if manifest.server and not manifest.server.image and not request.trust:
        raise Refused(
            f"the command {manifest.server.command[0]!r} would run on the server with the rights of"
            " the server's user; pass --trust to allow it"
        )
    revision = _revision(name, manifest, bundle, now_s)
    function = _function(name, manifest, catalog, now_s, idle_s)
    return Plan(
        function,
        revision,
        bundle,
        "limits.wait_s" in manifest.named,
        is_own,
        "limits.concurrency" in manifest.named,
    )


def derived_name_taken(name: str) -> Conflict:
    """Return the error for a name that was derived from a file's name and is in use."""
    return Conflict(
        f"the name {name!r} was derived from the file's name, and a function of that name"
        " exists; pass --name to deploy to it"
    )


def alias_taken(name: str, owner: str) -> Conflict:
    """Return the error for a name that is an alias of the function `owner`."""
    return Conflict(
        f"{name} is an alias of {owner}: choose another name, or remove it: fnctl alias rm {name}",
        detail={"function": owner},
    )


def check_code(draft: Plan, hosts: Iterable[HostView], scopes: Collection[str]) -> None:
    """Raise Refused if no host that the draft may use can run its server, or WrongScope if its code
    would gain more rights than the caller's key has.

    Outside a container code can read the admin token and write the database, so the scope `deploy`
    would amount to `admin`. With that scope a container gets nothing of the host: no folder, no
    network, no secret, no capability.
    """
    server, able = draft.revision.server, hosts_of(draft.revision, hosts)
    if server:
        may_run = [one for one in able if _may_have_devices(one)]
        able = [one for one in able if server.ability in one.abilities]
        if not any(one in able for one in may_run):
            raise Refused(_unable(server.ability, may_run or hosts_of(draft.revision, hosts)))
        _check_for_cluster(server, able)
    if "admin" in scopes:
        return
    code = draft.revision.handler or ("the command" if server else "")
    beside = next((one for one in able if not one.is_contained), None)
    if code and beside:
        advice = "; under the driver docker the scope deploy suffices"
        raise WrongScope(
            f"{code} would run as the server's own user under the driver {beside.driver}: this"
            f" needs the scope admin, the key has {', '.join(scopes)}{'' if server else advice}"
        )
    if server and (key := _reaching(server)):
        raise WrongScope(
            f"{key} gives the server more than its container has: this needs the scope admin, the"
            f" key has {', '.join(scopes)}"
        )


def hosts_of(revision: Revision, hosts: Iterable[HostView]) -> list[HostView]:
    """Return the hosts that replicas of a revision may be on, as far as its labels decide."""
    labels = host_labels(revision).items()
    return [one for one in hosts if _has_labels(one, labels)]


def _may_have_devices(host: HostView) -> bool:
    """Whether a host has devices, or has not yet reported that it has none."""
    return bool(host.cpu_slots or host.gpus) or host.state is not HostState.UP


def are_images_given(revision: Revision, hosts: Iterable[HostView]) -> bool:
    """Whether the image of a revision's server is used as its manifest names it: each host that can
    run it pulls images itself."""
    able = [one for one in hosts_of(revision, hosts) if Ability.IMAGE in one.abilities]
    return bool(able) and all(one.pulls_images for one in able)


def _unable(ability: Ability, hosts: Collection[HostView]) -> str:
    """Return why none of these hosts runs a server, and what mends it."""
    local = next((one.driver for one in hosts if one.name == LOCAL_HOST), "")
    got = local or f"the hosts {', '.join(one.name for one in islice(hosts, SHOWN_HOSTS))}"
    match ability:
        case Ability.PACKAGES:
            return (
                f"python: expected the driver process, got {got}: packages are installed for"
                " processes of this machine; start fngate with FN_DRIVER=process"
            )
        case Ability.COMMAND:
            return (
                f"server.command: expected the driver process, got {got}: a command runs beside the"
                " server's own programs, which containers do not have; name an image with"
                " server.image, or start fngate with FN_DRIVER=process"
            )
        case Ability.IMAGE:
            return (
                f"server.image: expected the driver docker, got {got}: an image runs in a"
                " container; name a program with server.command, start fngate with"
                " FN_DRIVER=docker, or name the labels of hosts that run images in device.host"
            )


def _check_for_cluster(server: ServerSettings, hosts: Iterable[HostView]) -> None:
    """Raise Refused for what a server cannot have on hosts of a cluster, which it may be placed on:
    capabilities, mounts that are no names of volume claims there."""
    cluster = next((one.name for one in hosts if one.pulls_images), "")
    if cluster and server.capabilities:
        raise Refused(
            f"server.capabilities: expected none on {cluster}, got"
            f" {', '.join(server.capabilities)}: a cluster grants none"
        )
    if cluster and (odd := [one.name for one in server.mounts if not CLAIM.fullmatch(one.name)]):
        raise Refused(
            f"server.mounts.{odd[0]}: expected the name of a PersistentVolumeClaim on {cluster}:"
            " lower-case letters, digits and -, with a letter or digit first and last"
        )


def _reaching(server: ServerSettings) -> str:
    """Return the first key by which a server reaches beyond its container, "" without any."""
    keys = {
        "server.mounts": server.mounts,
        "server.secrets": server.secrets,
        "openai.upstream_key": server.api and server.api.upstream_key,
        'server.network = "egress"': server.network == "egress",
        "server.capabilities": server.capabilities,
        "server.fields": server.fields,
    }
    return next((key for key, value in keys.items() if value), "")


def check_device(draft: Plan, devices: Iterable[Device]) -> None:
    """Raise Refused if the server has no device of the kind, or too few on one host: the trial
    would wait for ever."""
    need, known = draft.revision.device, list(devices)
    kind, kinds = need.kind, {one.kind for one in known}
    if kind != "any" and kind not in kinds:
        raise Refused(
            f"device.kind: expected any or {' or '.join(sorted(kinds))}, got {kind}; this server"
            f" has no {kind} device, fnctl doctor says why"
        )
    if need.count == 1:
        return
    whole = Counter(one.type for one in known if one.kind == kind and not one.is_slice)
    most = max(whole.values(), default=0)
    if need.count > most:
        there = ", ".join(
            f"{one.host} {count}" + (f" of {one.model}" if one.model else "")
            for one, count in sorted(whole.items())
        )
        raise Refused(
            f"device.count: expected at most {most}, got {need.count}: a replica takes whole, equal"
            f" GPUs of one host, no MIG slices, and there are: {there or 'none'} (fnctl doctor"
            " shows them)"
        )


def check_trial(draft: Plan, hosts: Iterable[HostView]) -> None:
    """Raise Refused if the draft wants candidates of other precision, and this machine cannot run
    their trial: no other host's files come back to the server."""
    wanted = wanted_precision(draft.revision)
    if wanted is None:
        return
    device = draft.revision.device
    for one in hosts:
        kinds = {"cpu": one.cpu_slots, "cuda": one.gpus, "any": one.cpu_slots or one.gpus}
        if kinds[device.kind] and _has_labels(one, {*device.host.items(), HERE}):
            return
    raise Refused(
        f"optimise.precision: expected fp32, got {wanted.precision}: candidates are made on"
        f" the server's machine, which has no such device ({device.kind}) or other labels"
    )


def check_host(draft: Plan, hosts: Iterable[HostView]) -> None:
    """Raise Refused if no host has the labels: the trial would wait for ever. Packages of Python
    functions are on this machine alone."""
    wanted, server = draft.revision.device.host, draft.revision.server
    labels = {*wanted.items(), HERE} if wanted and server and server.python else wanted.items()
    if any(_has_labels(one, labels) for one in hosts):
        return
    text = ", ".join(f"{key}={value}" for key, value in sorted(wanted.items()))
    which = "this machine, where packages are" if server and server.python else "a host"
    raise Refused(
        f"device.host: expected the labels of {which}, got {text}; fnctl host ls has them"
    )


def _has_labels(host: HostView, labels: AbstractSet[tuple[str, str]]) -> bool:
    return labels <= {**host.labels, HOST_LABEL: host.name}.items()


def _manifest(name: str, request: DeployRequest, paths: list[str]) -> Manifest:
    if request.manifest is not None:
        manifest = manifests.parse_manifest(request.manifest, paths)
    elif request.model in paths:
        manifest = manifests.default_manifest(str(request.model))
    else:
        raise BadManifest(f"model: expected one of {paths}, got {request.model!r}")
    changes: dict[str, Any] = {**request.overrides, "name": name}
    try:
        return manifests.overrides(manifest, **changes)
    except TypeError as error:
        raise BadRequest(str(error)) from error


def _revision(name: str, manifest: Manifest, bundle: Bundle, now_s: float) -> Revision:
    return Revision(
        name=name,
        number=0,
        bundle=bundle.digest,
        signature=UNKNOWN_SIGNATURE,
        engine=manifest.engine,
        model=manifest.model,
        handler=manifest.handler,
        inputs=manifest.inputs,
        output=manifest.output,
        batching=manifest.batching,
        device=manifest.device,
        sample=manifest.sample,
        created_s=now_s,
        server=manifest.server,
        oip_version=manifest.oip_version,
        compilation=manifest.compilation,
        optimise=manifest.optimise,
    )


def _function(
    name: str, manifest: Manifest, catalog: Catalog, now_s: float, idle_s: float
) -> Function:
    scaling = manifest.scaling
    if "scaling.idle_s" not in manifest.named:
        scaling = replace(scaling, idle_s=idle_s)
    before = catalog.find(name)
    return Function(
        name=name,
        revision=0,
        scaling=scaling,
        limits=manifest.limits,
        labels=manifest.labels,
        created_s=before.function.created_s if before else now_s,
        exchange=manifest.exchange,
        health=manifest.health,
        oip_name=oip_name(name, manifest, catalog),
    )


def verified_before(draft: Plan, catalog: Catalog, device_kind: str) -> Deployed | None:
    """Return a revision that a trial could not tell from the draft, and that passed a trial under
    the current rules; with `batching.mode = "always"` only if that trial compared batches. Of
    server functions, everything that the server gets must be equal."""

    def tried(deployed: Deployed) -> tuple[Any, ...]:
        revision = deployed.revision
        spec = replace(server_spec(deployed), revision="") if revision.server else None
        settings = revision.server and replace(
            revision.server,
            paths=PathRules(),
            origins=(),
            fields=(),
            found_host=HOST_OF_CLIENT,
            api=None,
            park=revision.server.park and replace(revision.server.park, park_s=PARK_S),
        )
        return (
            spec,
            settings,
            revision.bundle,
            revision.engine,
            revision.model,
            revision.handler,
            revision.inputs,
            revision.output,
            revision.sample,
            revision.device.memory_mib,
            revision.device.count,
            revision.compilation is not None and revision.compilation.engine == "tensorrt",
            wanted_precision(revision),
        )

    wanted = tried(Deployed(draft.function, draft.revision))
    for deployed in catalog.every():
        if deployed.revision.bundle != draft.revision.bundle:
            continue
        profile = deployed.profile
        if profile is None or not profile.profiled or profile.device_kind != device_kind:
            continue
        is_joined = draft.revision.batching.mode == "always" and not draft.revision.server
        if is_joined and not profile.compared:
            continue
        if not is_current(draft.revision, profile) or is_outdated(deployed):
            continue
        if _lacks_golden(draft, deployed) or _lacks_park(draft, profile):
            continue
        if tried(deployed) == wanted:
            return deployed
    return None


def _lacks_golden(draft: Plan, deployed: Deployed) -> bool:
    """Return whether the draft is to have a golden sample, and no trial of this revision tried to
    learn it."""
    is_known = deployed.profile is not None and deployed.profile.why_not_golden
    return bool(golden_plan(draft.revision) and not golden_of(deployed) and not is_known)


def _lacks_park(draft: Plan, profile: Profile) -> bool:
    """Return whether the draft has a table [park], and no trial tried it."""
    server = draft.revision.server
    return server is not None and server.park is not None and profile.park is None


def profile_from_report(report: dict[str, Any], plan: Plan) -> Profile:
    """Return the profile that the trial measured. Raises BadRequest on an invalid report.

    A replica with two sessions holds both for a while, so the prepared weights add to its memory.
    """
    prepared = report.get("prepared")
    if not isinstance(prepared, Prepared):
        prepared = None
    optimised = report.get("optimised")
    second_mib = prepared.size / MIB if prepared and prepared.fast else 0.0
    try:
        return Profile(
            bundle=plan.bundle.digest,
            engine=profile_engine(plan.revision),
            device_kind=str(report["device_kind"]),
            load_ms=float(report["load_ms"]),
            memory_mib=float(report["memory_mib"]) + second_mib,
            latency_ms={int(rows): float(ms) for rows, ms in report["latency_ms"].items()},
            batchable=bool(report["batchable"]),
            why_not=str(report["why_not"])[:1000],
            batch_max=max(1, min(4096, int(report["batch_max"]))),
            profiled=bool(report["profiled"]),
            note=str(report["note"])[:1000],
            prepared=prepared,
            why_not_prepared=str(report.get("why_not_prepared", ""))[:1000],
            proof=int(report.get("proof", 0)),
            model=plan.revision.model,
            operator=str(report.get("operator", ""))[:200],
            equal_axes=_equal_axes(report.get("equal_axes", ())),
            compared=bool(report.get("compared", False)),
            optimised=optimised if isinstance(optimised, Optimised) else None,
            contention=_contention(report.get("contention", "unknown")),
            golden=_golden(report, plan.revision),
            why_not_golden=_why_not_golden(report, plan.revision),
            park=_park(report, plan.revision),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"the trial's report is invalid: {error!r}") from error


def _golden(report: Mapping[str, Any], revision: Revision) -> Golden | None:
    """Return the golden sample of a report, None without one. Raises KeyError, TypeError or
    ValueError if it is invalid, or if none was to be learnt."""
    found, device = report.get("golden"), report.get("device_type")
    if found is None:
        return None
    plan, sample = golden_plan(revision), golden_from_json(found)
    if plan is None or not isinstance(device, DeviceType):
        raise ValueError("golden: expected no golden sample")
    return Golden(sample, plan, device)


def _why_not_golden(report: Mapping[str, Any], revision: Revision) -> str:
    if golden_plan(revision) is None or report.get("golden") is not None:
        return ""
    return str(report.get("no_golden", ""))[:1000] or "the trial's report has none"


def _park(report: Mapping[str, Any], revision: Revision) -> ParkProfile | None:
    """Return what the park of a trial has shown, None for a function without a table [park]. Only
    the manager makes a `ParkProfile`: a replica's report is JSON."""
    if revision.server is None or revision.server.park is None:
        return None
    found = report.get(PARK)
    if not isinstance(found, ParkProfile):
        raise ValueError("park: expected what the trial's park has shown")
    return found


def _contention(state: object) -> Contention:
    if state not in get_args(ContentionState):
        raise ValueError(f"contention: expected one of {get_args(ContentionState)}")
    return Contention(cast(ContentionState, state))


def _equal_axes(data: Any) -> EqualAxes:
    groups = equal_axes_from_json(data)
    if sum(map(len, groups)) > AXES_MAX:
        raise ValueError(f"equal_axes: expected at most {AXES_MAX} axes")
    return groups


def signature_from_report(report: dict[str, Any]) -> Signature:
    """Return the signature that the trial found. Raises BadRequest if it is invalid."""
    try:
        return signatures.from_json(report["signature"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"the trial's signature is invalid: {error!r}") from error


def interface_from_report(report: Mapping[str, Any]) -> Interface:
    """Return how a Python function is called, as its trial reports it. Never raises: a function
    whose description cannot be kept works without one."""
    said, why_not = report.get("description", ""), report.get("no_description", "")
    if not isinstance(said, str) or not isinstance(why_not, str):
        return read_interface("", "the trial's report has no description of the function")
    return read_interface(said, why_not)
