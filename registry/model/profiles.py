"""Profiles: what the trial of a deploy measured and made."""

from __future__ import annotations

from dataclasses import dataclass

from registry.builds import DeviceType
from registry.model.bundles import BundleFile
from registry.model.parks import ParkProfile
from runtime_image.contract.contention import ContentionState
from runtime_image.contract.model import EqualAxes, Preparation
from runtime_image.contract.precision import PrecisionReport
from runtime_image.contract.samples import GoldenPlan, GoldenSample


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """Cost of one way to create a session."""

    load_ms: float
    """Milliseconds to create the session."""
    first_ms: float
    """Milliseconds of the first run."""
    cpu_ms: dict[int, float]
    """CPU milliseconds per run, by rows."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Result of preparing a model during deploy. The session times compare the original and the
    prepared model."""

    model: str
    """Bundle path of the model that was prepared; a bundle may have several."""
    preparation: Preparation
    """How the prepared files are used."""
    files: tuple[BundleFile, ...]
    """The prepared files, laid out beside those of the bundle."""
    original: SessionTimes
    """Of the original model."""
    quick: SessionTimes
    """Of the session with the fastest first answer."""
    fast: SessionTimes | None = None
    """Of the session that replaces it, None if there is none."""

    @property
    def size(self) -> int:
        """Total bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Optimised:
    """Result of a trial with candidates of other precision."""

    model: str
    """Bundle path of the original model."""
    table: PrecisionReport
    """The measurements of all candidates."""
    file: BundleFile | None = None
    """The chosen candidate, laid out beside the files of the bundle and served instead of the
    model; None if the original was chosen."""


@dataclass(frozen=True, slots=True)
class Contention:
    """Whether other work had the CPUs while a profile was measured."""

    state: ContentionState = "unknown"
    """What the last measurement showed."""
    attempts: int = 0
    """Measurements since the deploy's, which repeat it."""
    again_s: float = 0.0
    """Unix time from which an idle machine measures again; 0 if it does not."""


@dataclass(frozen=True, slots=True)
class Golden:
    """A golden sample that a trial has learnt. It holds for replicas on devices of the same type,
    of revisions for which it would be learnt in the same way."""

    sample: GoldenSample
    """The request and its right answer."""
    plan: GoldenPlan
    """The plan of the trial that learnt it."""
    device: DeviceType
    """Type of the trial's device."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Measurements of a deploy for (bundle, engine, device kind). If `optimised` chose a candidate,
    all measurements are those of the candidate."""

    bundle: str
    """Digest of the bundle."""
    engine: str
    """Engine of the revision."""
    device_kind: str
    """Kind of the trial's device: cpu or cuda."""
    load_ms: float
    """Milliseconds to load the model."""
    memory_mib: float
    """MiB of a replica; with both sessions if `prepared` has two."""
    latency_ms: dict[int, float]
    """Milliseconds per run, by rows."""
    batchable: bool
    """Whether the analysis proved that rows are independent and no comparison refuted it."""
    why_not: str = ""
    """Why it is not batchable; "" if it is."""
    batch_max: int = 1
    """Rows beyond which more rows in one run gain nothing."""
    profiled: bool = True
    """False if a synthetic input could not be run."""
    note: str = ""
    """Remark of the trial, such as why a synthetic input failed; "" for none."""
    prepared: Prepared | None = None
    """Result of preparing the model; None if it is not prepared."""
    why_not_prepared: str = ""
    """Why the model is not prepared; "" if it is, or if preparation was not tried."""
    proof: int = 0
    """Version of the rules behind `batchable`; 0: before rules had versions."""
    model: str = ""
    """Bundle path of the model that the rules were applied to."""
    operator: str = ""
    """Operator that mixes rows; "" if no single operator is the cause."""
    equal_axes: EqualAxes = ()
    """Groups of inputs' axes whose sizes must be equal."""
    compared: bool = False
    """Whether runs of several rows were compared with single runs, and nothing was refuted."""
    refuted_at_runtime: str = ""
    """What a batched run of a replica showed, "" for nothing; kept when the model is tried
    again."""
    optimised: Optimised | None = None
    """Result of the trial of other precisions; None if the model's own was wanted."""
    contention: Contention = Contention()
    """Whether other work had the CPUs behind `latency_ms`."""
    golden: Golden | None = None
    """Of a server's trial: its golden sample."""
    why_not_golden: str = ""
    """Why the trial of a server that was to have one learnt none."""
    park: ParkProfile | None = None
    """Of a server's trial: its park. None if it was not parked."""
