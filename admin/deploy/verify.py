"""Verification of a deploy: file checks, then a trial of the model in a replica of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from admin.deploy import remeasurement
from admin.deploy.operations import Phase
from admin.deploy.plan import (
    Plan,
    interface_from_report,
    profile_from_report,
    signature_from_report,
    verified_before,
)
from admin.deploy.turns import Turns
from admin.deploy.waiting import VERIFY, told
from admin.pool_sync import binding, with_hosts, with_server
from admin.store import Store
from gateway.openapi.descriptions import zeros
from pool_manager.core.state import Device, PoolSpec
from pool_manager.image_names import IMAGE_DIGEST, pinned_by
from pool_manager.manager import Manager
from pool_manager.replicas.trial_parks import PARK_TRIAL_S
from registry.batching import rows_of, with_refutation
from registry.bundles import onnx_files
from registry.bundles.blobs import BlobStore
from registry.bundles.foreign_formats import by_suffix, not_onnx
from registry.bundles.onnx_apart import read_apart
from registry.catalog import Deployed
from registry.compilation import ranges_of
from registry.errors import (
    BadBundle,
    ModelRefused,
    ServerRefused,
    StoreUnavailable,
    TrialKilled,
    Unknown,
)
from registry.files import unavailable
from registry.model.bundles import Bundle, BundleFile
from registry.model.hosts import LOCAL_HOST
from registry.model.operations import Operation
from registry.model.profiles import Profile
from registry.model.revisions import Revision
from registry.model.servers import HOST_OF_CLIENT, HOST_OF_LOOPBACK
from registry.names import HOST_LABEL
from registry.spec import candidate_of, wanted_precision
from registry.tasks import Tasks
from runtime_image.contract import model, precision
from runtime_image.contract.compiled import CompilerName
from runtime_image.contract.model import WEIGHTS_FILE
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.signature import Signature
from runtime_image.contract.wire_format import TooManyFields

log = structlog.get_logger()

TRIAL_WAIT_S = 300.0
"""Default of the seconds that a trial waits for room."""
TRIAL_MIB = 1024.0
TRIAL_BUNDLES = 3
"""Memory estimate of a trial, as the model's need is unknown: `TRIAL_MIB` for the runtime and the
largest batch, plus this many times the size of the bundle."""
PREPARING_BUNDLES = 1
"""Further bundle sizes if the model is prepared: a container's written files count as memory."""

OPTIMISING_BUNDLES = 3
"""Further bundle sizes if candidates of other precision are made: one beside the original, in
memory and as a file, and what its making takes."""

FILE_MAX = 16 * 2**20
TEXT = "text/plain; charset=utf-8"
ITEMS_MAX = 1_000_000
"""Max numbers of one input; each takes 4 bytes as JSON and 8 as a Python list."""
AGAIN: Final = "-again"
"""Ends the key of a trial that runs once more, because the first one was killed from outside."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification. `revision` has its signature, but no number yet. `sample` is the
    shortened answer to the sample, if one was run. `made_room` says that a replica of the function,
    which was being called, made room for the trial, "" if none did."""

    revision: Revision
    profile: Profile
    sample: dict[str, Any]
    made_room: str = ""


class TrialTurns:
    """Turns of trials, as many as there are devices of a kind.

    A trial may load for minutes, and none is stopped for calls: the trials of one key, which has
    at most every second turn, would keep all calls from a device.
    """

    def __init__(self, devices: Callable[[], Iterable[Device]]) -> None:
        self._devices = devices
        self._of_kind: dict[str, Turns] = {}

    @asynccontextmanager
    async def turn(self, party: str, kind: str, phase: Phase | None) -> AsyncIterator[None]:
        """Have a turn within the block, which waits for it in the phase "queued"."""
        count = max(1, sum(one.kind == kind for one in self._devices()))
        turns = self._of_kind.setdefault(kind, Turns("trials run", count))
        turns.resize(count)
        if phase is not None and not turns.is_free(party):
            await phase("queued")
        async with turns.turn(party):
            if phase is not None:
                await phase(VERIFY)
            yield


class Verification:
    """Checks drafts against the store's files, and in trial replicas of the manager."""

    def __init__(
        self,
        store: Store,
        manager: Manager,
        *,
        prepare: bool = True,
        compiler: CompilerName = "tensorrt",
        trial_wait_s: float = TRIAL_WAIT_S,
        wall: Callable[[], float],
    ) -> None:
        """With `prepare`, trials prepare models for later cold starts. `compiler` is the server's,
        for models whose manifest demands one. `trial_wait_s` are the seconds that a trial waits for
        a device that no function in use has. `wall` returns Unix time."""
        self._trial_wait_s = trial_wait_s
        self._wall = wall
        self._compiler: CompilerName = compiler
        self._store = store
        self._manager = manager
        self._prepare = prepare
        self._turns = TrialTurns(manager.devices)
        self._tasks = Tasks("verification")

    def check_files(self, draft: Plan) -> None:
        """Raise BadBundle or ModelRefused for defects that need no trial: files not uploaded, no
        ONNX file, data outside the bundle, compiled parts. Blocking."""
        blobs = self._store.blobs
        if missing := blobs.missing(draft.bundle):
            # A stored file of another size is damaged, or the request has a wrong size.
            blobs.remove_damaged([file for file in draft.bundle.files if file.sha256 in missing])
            raise BadBundle(f"{len(missing)} files were not uploaded, first {missing[0]}")
        if advice := by_suffix(draft.revision.model):
            raise ModelRefused(f"{draft.revision.model} is not an ONNX model: {advice}")
        if draft.revision.server is None:
            self._check_models(draft)

    def _check_models(self, draft: Plan) -> None:
        """Raise BadBundle or ModelRefused for the model if it is no ONNX file or has data outside
        the bundle, and for any ONNX file with a compiled part. What is one is decided by content:
        so do those that load it."""
        reader, model = _reader(), draft.revision.model
        for file in sorted(draft.bundle.files, key=lambda one: one.path != model):
            path = self._store.blobs.path(file.sha256)
            try:
                found = reader.read(path)
            except ValueError as error:
                if file.path == model:
                    self._check_sound(draft)
                    raise ModelRefused(not_onnx(model, error, path)) from error
                if isinstance(error, TooManyFields):
                    raise BadBundle(f"{file.path}: read as ONNX, {error}") from error
                continue
            onnx_files.check_original(file.path, found)
            if file.path == model:
                paths = {one.path for one in draft.bundle.files}
                onnx_files.check_external(model, found.locations, paths)

    def has_candidate(self, deployed: Deployed) -> bool:
        """Return whether the store has the file that the trial of a revision chose, if it chose
        one, and spare it from the next sweeps. Only another trial can make it again."""
        file = candidate_of(deployed)
        return file is None or self._store.blobs.claim(file.sha256, file.size)

    async def verify(
        self,
        draft: Plan,
        trial: str,
        party: str = "",
        phase: Phase | None = None,
        *,
        measure: bool = False,
        evict: bool = False,
    ) -> Verified:
        """Load, try, prove and measure the model, unless an earlier trial did so; with `measure`
        in any case. `trial` is a
        unique name, `party` the key whose turn it takes. `phase` gets the progress. With `evict`
        the trial may take a device from a function that is being called.

        A trial that is killed from outside is repeated once. Raises ModelRefused or ServerRefused
        with the reason, NoRoom, or TrialKilled.
        """
        kind = draft.revision.device.kind
        known = (
            None
            if measure
            else verified_before(draft, self._store.catalog, self._expected_kind(kind))
        )
        if known is not None and known.profile is not None and self.has_candidate(known):
            revision = _as_tried(draft.revision, known.revision)
            check_shapes(revision, known.profile)
            if phase is not None:
                await phase(VERIFY)
            return Verified(revision, known.profile, {})
        async with self._turns.turn(party, self._expected_kind(kind), phase):
            try:
                report = await self._report(draft, trial, phase, evict=evict)
            except TrialKilled as error:
                log.info("a trial was killed and is tried again", trial=trial, reason=error.message)
                report = await self._second_report(draft, trial, phase, evict=evict)
        profile = profile_from_report(report, draft)
        contention = remeasurement.measured(profile.contention.state, self._wall())
        profile = replace(profile, contention=contention)
        measured = (profile.bundle, profile.engine, profile.device_kind)
        profile = with_refutation(profile, await self._store.functions.find_profile(*measured))
        for other in self._store.catalog.every():
            # In another precision it has the same graph.
            if other.revision.bundle == profile.bundle:
                profile = with_refutation(profile, other.profile)
        revision = _with_report(draft.revision, report)
        check_shapes(revision, profile)
        return Verified(
            revision,
            await asyncio.to_thread(self._checked, profile),
            report.get("sample_outputs", {}),
            str(report.get("made_room", "")),
        )

    def _check_sound(self, draft: Plan) -> None:
        """Raise BadBundle if a file of a refused model was damaged on the server's disk. The file
        is removed, so that the next deploy uploads it again. Blocking."""
        if damaged := self._store.blobs.remove_damaged(draft.bundle.files):
            raise BadBundle(
                f"{damaged[0]}: the server's copy of this file was damaged and has been removed;"
                " deploy again to upload it"
            )

    async def _second_report(
        self, draft: Plan, trial: str, phase: Phase | None, *, evict: bool
    ) -> dict[str, Any]:
        """Run the trial once more. Raises TrialKilled with advice for the operator."""
        try:
            return await self._report(draft, f"{trial}{AGAIN}", phase, evict=evict)
        except TrialKilled as error:
            raise TrialKilled(
                "the trial was killed from outside, and so was the second one"
                f" ({error.message}): the model remains unverified; find out what kills the trial"
                " (the kernel when the host runs out of memory, an operator), then deploy again",
                detail=error.detail,
                admin_detail=error.admin_detail,
            ) from error

    async def _report(
        self, draft: Plan, trial: str, phase: Phase | None, *, evict: bool
    ) -> dict[str, Any]:
        """Return the report of a trial replica. Raises ModelRefused, ServerRefused,
        NoRoom or TrialKilled."""
        key = trial_key(draft.function.namespace, draft.function.name, trial)
        kind = draft.revision.device.kind
        size = draft.bundle.size
        is_optimising = wanted_precision(draft.revision) is not None
        bundles = TRIAL_BUNDLES + PREPARING_BUNDLES * self._prepare
        bundles += OPTIMISING_BUNDLES * is_optimising
        need_mib = TRIAL_MIB + bundles * size / 2**20
        deployed = Deployed(draft.function, draft.revision)
        spec = PoolSpec(
            key,
            device_kind=kind,
            count=draft.revision.device.count,
            bundle_bytes=size,
            role="trial",
            memory_mib=need_mib,
            trial_wait_s=self._trial_wait_s,
            evicts=evict,
        )
        bound = binding(deployed, draft.bundle)
        trial_spec = draft.trial_spec(prepare=self._prepare, compiler=self._compiler)
        try:
            placed = with_hosts(spec, deployed, draft.bundle)
            placed = _with_candidates(placed) if is_optimising else placed
            placed = with_server(placed, deployed)
            if draft.revision.server and draft.revision.server.park:
                placed = replace(placed, trial_s=placed.trial_s + PARK_TRIAL_S)
            tried = placed, replace(bound, spec=trial_spec)
            async with told(self._tasks, lambda: self._manager.awaited(key), phase):
                return await self._manager.trial(*tried)
        except ModelRefused as error:
            await asyncio.to_thread(self._check_sound, draft)
            if draft.revision.server is None:
                raise
            raise ServerRefused(
                error.message, detail=error.detail, admin_detail=error.admin_detail
            ) from error

    def _checked(self, profile: Profile) -> Profile:
        """Return the profile without its prepared files if their graph names files other than its
        own weights or has a compiled part: the report comes from a replica, whose code is not
        trusted. Raises ModelRefused if the chosen candidate does so. Blocking."""
        if profile.optimised and profile.optimised.file:
            self._check_candidate(profile.optimised.file)
        if profile.prepared is None:
            return profile
        graph = profile.prepared.files[0]
        try:
            found = onnx_files.OnnxReader(apart=read_apart).read(
                self._store.blobs.path(graph.sha256)
            )
            onnx_files.check_original(graph.path, found)
        except (ValueError, OSError) as error:
            return _unprepared(profile, f"the prepared graph cannot be read: {error}")
        except ModelRefused as error:
            return _unprepared(profile, error.message)
        if strange := set(found.locations) - {WEIGHTS_FILE}:
            return _unprepared(profile, f"the prepared graph names {sorted(strange)[0][:80]!r}")
        return profile

    def _check_candidate(self, file: BundleFile) -> None:
        """Raise ModelRefused unless the file is an ONNX model that has its weights in itself, and
        no compiled part."""
        try:
            found = onnx_files.OnnxReader(apart=read_apart).read(
                self._store.blobs.path(file.sha256)
            )
        except (ValueError, OSError) as error:
            raise ModelRefused(f"the chosen candidate cannot be read: {error}") from error
        onnx_files.check_original(file.path, found)
        if found.locations:
            named = found.locations[0][:80]
            raise ModelRefused(f"the chosen candidate names another file, {named!r}")

    def _expected_kind(self, kind: str) -> str:
        """Return the device kind of the replica: with `any`, a GPU if there is one."""
        if kind != "any":
            return kind
        return "cuda" if any(one.kind == "cuda" for one in self._manager.devices()) else "cpu"


def trial_key(namespace: str, name: str, trial: str) -> str:
    """Return the key of a trial's pool."""
    return f"{namespace}/{name}@trial-{trial}"


def trial_keys(operation: Operation) -> tuple[str, str]:
    """Return the keys of the pools that a deploy's trial may have: of the first one, and of the one
    after a kill."""
    space, name, id = operation.namespace, operation.name, operation.id
    return trial_key(space, name, id), trial_key(space, name, f"{id}{AGAIN}")


def _reader() -> onnx_files.OnnxReader:
    """Return a reader of a stranger's files, which leaves large graphs to another process."""
    return onnx_files.OnnxReader(apart=read_apart)


def check_shapes(revision: Revision, profile: Profile) -> None:
    """Raise ModelRefused if [runtime.shapes] contradicts the model, or is incomplete for engine
    "tensorrt"."""
    wanted = revision.compilation
    if wanted is None or (wanted.engine == "auto" and not wanted.shapes):
        return
    try:
        ranges_of(wanted, revision.signature, rows_of(revision, profile))
    except ValueError as error:
        raise ModelRefused(str(error)) from error


def _with_report(revision: Revision, report: dict[str, Any]) -> Revision:
    """Return a revision with what its trial has found: the signature; the Host that the server is
    to see; the digest of an image that its host has pulled; how a Python function is called. Raises
    BadRequest for an invalid report."""
    host = HOST_OF_LOOPBACK if report.get("checks_host") is True else HOST_OF_CLIENT
    server = revision.server and replace(revision.server, found_host=host)
    if server and server.image and (digest := str(report.get(IMAGE_DIGEST, ""))):
        pinned = pinned_by(server.image.reference, digest)
        server = replace(server, image=replace(server.image, digest=pinned))
    interface = interface_from_report(report) if revision.is_python else None
    signature = signature_from_report(report)
    return replace(revision, signature=signature, server=server, interface=interface)


def _as_tried(revision: Revision, tried: Revision) -> Revision:
    """Return a revision with what the trial of an equal one has found."""
    host = tried.server.found_host if tried.server else HOST_OF_CLIENT
    server = revision.server and replace(revision.server, found_host=host)
    interface = tried.interface
    return replace(revision, signature=tried.signature, server=server, interface=interface)


def _with_candidates(spec: PoolSpec) -> PoolSpec:
    """Return the spec of a trial that makes candidates: on this machine, as no other host's files
    come back, and with time for them."""
    trial_s = precision.patience_s(spec.bundle_bytes)
    labels = {**dict(spec.labels), HOST_LABEL: LOCAL_HOST}
    return replace(spec, labels=tuple(sorted(labels.items())), trial_s=trial_s)


def _unprepared(profile: Profile, why_not: str) -> Profile:
    return replace(profile, prepared=None, why_not_prepared=why_not)


class Samples:
    """Sample requests of deployed functions. `bundles` by digest, their files in `blobs`."""

    def __init__(self, bundles: Mapping[str, Bundle], blobs: BlobStore) -> None:
        self._bundles = bundles
        self._blobs = blobs

    async def body(self, deployed: Deployed) -> tuple[str, bytes]:
        """Return the sample's content type and bytes; of a server function, those of its first
        sample's body. Raises Unknown if it is too large."""
        request = _first_request(deployed.revision)
        path = request.body if request else model.file_of(deployed.revision.sample)
        if request and not path.startswith("@"):
            return _type_of(request) or TEXT, path.encode()
        file = self._file(deployed, path.removeprefix("@"))
        if file is None:
            return await asyncio.to_thread(values, deployed)
        kind = (_type_of(request) if request else "") or model.content_type(file.path)
        return kind, await asyncio.to_thread(_content, self._blobs.path(file.sha256))

    def _file(self, deployed: Deployed, path: str) -> BundleFile | None:
        if not path:
            return None
        bundle = self._bundles[deployed.revision.bundle]
        file = next((file for file in bundle.files if file.path == path), None)
        if file is None:
            raise StoreUnavailable(f"the sample {path} is not in its bundle")
        if file.size > FILE_MAX:
            raise Unknown(
                f"no sample: expected a file of at most {FILE_MAX} bytes, {path} has {file.size}"
            )
        return file


def _first_request(revision: Revision) -> SampleRequest | None:
    """Return the first sample of a server function, None for a model function."""
    if revision.server is None:
        return None
    return next(iter(revision.server.samples), SampleRequest())


def _type_of(sample: SampleRequest) -> str:
    found = (value for name, value in sample.headers.items() if name.lower() == "content-type")
    return next(found, "")


def values(deployed: Deployed) -> tuple[str, bytes]:
    """Return content type and body of a sample without a file. Raises Unknown if too large."""
    signature, sample = deployed.revision.signature, deployed.revision.sample
    if not sample and signature.kind == "bytes":
        return model.OCTETS, b""
    inputs = sample or _zeros(signature)
    return model.JSON, msgspec.json.encode({"inputs": inputs})


def _zeros(signature: Signature) -> dict[str, object]:
    inputs: dict[str, object] = {}
    for tensor in signature.inputs:
        value = zeros(tensor, ITEMS_MAX)
        if value is None:
            raise Unknown(
                f"no sample: input {tensor.name!r} {tensor.dtype} {tensor.shape_text} has more"
                f" than {ITEMS_MAX} items"
            )
        inputs[tensor.name] = value
    return inputs


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise unavailable(error) from error
