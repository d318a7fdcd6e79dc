"""Subject of a trial: the file to serve, chosen before anything is loaded, and the report on it."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.model import PREPARES, ModelSpec
from runtime_image.contract.precision import PrecisionReport
from runtime_image.contract.rows import RowVerdict
from runtime_image.engines.base import Engine
from runtime_image.verification.trial import analyse, examine


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of a trial: the spec of the file to serve, the static verdict on its rows, and the
    table of candidates, None if the function has no [optimise]."""

    spec: ModelSpec
    verdict: RowVerdict
    precision: PrecisionReport | None = None


def begin(spec: ModelSpec, record: ReplicaRecord) -> Subject:
    """Analyse the model of a trial, and choose among candidates of other precision if it asks for
    them. Works in child processes, before the engine uses memory. Raises LoadError."""
    folder = Path(record.model_dir)
    verdict = analyse(spec, folder)
    if spec.optimise is None or spec.optimise.precision == "fp32" or not spec.model:
        return Subject(spec, verdict)
    from runtime_image.verification.precision.optimising import Machine, Optimiser  # few need it

    # Removed with the replica: its run folder, or a container's /tmp.
    scratch = Path(tempfile.mkdtemp(dir=Path.home()))
    machine = Machine(record.device_kind, record.threads, record.memory_mib)
    found = Optimiser(spec, folder, scratch, machine).run(verdict)
    # An absolute path: model folders may be read-only.
    served = replace(spec, optimised=str(found.file)) if found.file else spec
    return Subject(served, found.verdict, found.report)


def report_of(
    engine: Engine, subject: Subject, folder: Path, load_ms: float, device_kind: str, threads: int
) -> dict[str, Any]:
    """Return the report of `examine` as JSON, the table of candidates, and whether the trial sends
    files next: a chosen candidate, or prepared ones."""
    spec = subject.spec
    report = examine(
        engine,
        spec,
        folder,
        load_ms,
        subject.verdict,
        device_kind=device_kind,
        threads=threads,
    )
    prepares = spec.prepare and bool(spec.model) and report.profiled
    found = {**asdict(report), PREPARES: prepares or bool(spec.optimised)}
    return {**found, "precision": subject.precision} if subject.precision else found
