"""Makes, judges, times and chooses the candidates of a trial's model, in child processes."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from runtime_image.contract import signature as signatures
from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import ModelSpec, files_max
from runtime_image.contract.precision import (
    FOLDER,
    MODEL_FILE,
    RULES,
    CandidateName,
    PrecisionReport,
    patience_s,
)
from runtime_image.contract.rows import RowVerdict
from runtime_image.engines.upgrade import MIB, free_mib, resident_mib
from runtime_image.verification.child import ChildFailed, output_of, verdict_of
from runtime_image.verification.precision.agreement import Agreement
from runtime_image.verification.precision.choice import (
    CANDIDATES,
    Choice,
    Measured,
    choose,
    row_of,
    why_not_offered,
)
from runtime_image.verification.precision.columns import Column
from runtime_image.verification.precision.order import (
    NOT_ANALYSED,
    Figures,
    Order,
    Task,
    Timed,
    limit,
    to_json,
)

COMMAND: Final = (sys.executable, "-I", "-B", "-m", "runtime_image.verification.precision")
CHILD_SHARE: Final = 0.4
"""Max share of the whole time that one child may take."""
TIMING_SHARE: Final = 0.1
"""Share of the whole time kept back for timing the candidates, at their end."""
MARGIN_S: Final = 10.0
"""Seconds kept back for what follows the candidates."""
JUDGED_BYTES_MAX: Final = 512 * 2**20
"""Max bytes of a file that a judging child writes: the original's outputs."""
ROWS_S: Final = 30.0
TEXT_MAX: Final = 500
_SUBJECTS: Final[dict[Task, str]] = {
    "make": "making it",
    "explore": "running it",
    "judge": "judging it",
    "time": "timing it",
}


class PrecisionRefused(LoadError):
    """No candidate has the demanded precision within the tolerance; the text has the figures."""


class SamplesRefused(LoadError):
    """The samples do not fit the model; the text is the reason."""

    stage = "sample"


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources of the children: the device, its threads, and the cap on this trial's memory in
    MiB, 0 for none."""

    device_kind: str
    threads: int
    cap_mib: int


@dataclass(frozen=True, slots=True)
class Optimised:
    """Result. `file` is the chosen candidate's absolute path, None for the original; `verdict` is
    that on the rows of the file to serve."""

    report: PrecisionReport
    file: Path | None
    verdict: RowVerdict


@dataclass(frozen=True, slots=True)
class _Reference:
    """The original, measured, and what exploring it found."""

    measured: Measured
    figures: Figures
    outputs: Path

    def why_not(self, name: CandidateName) -> str:
        """Return "" if a candidate can be measured beside the original, else why not."""
        if reason := self.measured.why_not:
            return f"the original could not be measured: {reason}"[:TEXT_MAX]
        figures = self.figures
        judged = len(figures["judged"])
        return why_not_offered(name, figures["source"], figures["calibrated"], judged)


class Optimiser:
    """Work on the candidates of one trial. All its files are below `scratch`."""

    def __init__(
        self,
        spec: ModelSpec,
        folder: Path,
        scratch: Path,
        machine: Machine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._scratch = scratch
        self._machine = machine
        self._clock = clock
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self._bytes_max = files_max(size)
        self._patience_s = patience_s(size)
        self._until_s = clock() + self._patience_s - MARGIN_S

    def run(self, verdict: RowVerdict) -> Optimised:
        """Return the file to serve and the table. `verdict` is that on the original's rows.

        Raises LoadError if the samples do not fit, or if no candidate has a demanded precision
        within the tolerance. Leaves no file but the chosen one. Without a demanded precision, an
        original that could not be measured is served: loading it shows whether it works.
        """
        try:
            return self._optimised(verdict)
        finally:
            shutil.rmtree(self._scratch / "work", ignore_errors=True)

    def _optimised(self, verdict: RowVerdict) -> Optimised:
        optimise = self._spec.optimise
        assert optimise is not None
        reference = self._original(verdict)
        verdicts: dict[CandidateName, RowVerdict] = {"original": verdict}
        candidates = []
        for name in CANDIDATES[optimise.precision]:
            measured, verdicts[name] = self._candidate(name, reference)
            candidates.append(measured)
        models = self._timed([reference.measured, *candidates], reference)
        choice = choose(optimise, models[0], models[1:], must_join=self._spec.batch_unproven)
        if choice.chosen is None:
            raise PrecisionRefused(choice.refused)
        report = self._report(reference, models, choice)
        if choice.chosen == "original":
            return Optimised(report, None, verdict)
        return Optimised(report, self._keep(choice.chosen), verdicts[choice.chosen])

    def _original(self, verdict: RowVerdict) -> _Reference:
        """Explore and judge the original, in two processes: exploring takes more memory."""
        model = self._model("original")
        outputs = self._work("original") / "outputs"
        order = replace(
            self._order("explore", "original", model), verdict=verdict, outputs=str(outputs)
        )
        figures = self._child(order)
        if refused := figures.get("refused"):
            raise SamplesRefused(f"optimise: {refused}")
        reference = _Reference(
            Measured("original", figures["why_not"], file_bytes=model.stat().st_size),
            figures,
            outputs,
        )
        if figures["why_not"] or not figures["judged"]:
            return reference
        return replace(reference, measured=self._judged("original", model, verdict, reference))

    def _timed(self, models: list[Measured], reference: _Reference) -> list[Measured]:
        """Return the models with their latency: of all that were judged, in one process. Without a
        result, its end is a reason against all of them."""
        judged = [one for one in models if one.batchable is not None]
        if not judged:
            return models
        figures: Figures = {"why_not": ""}
        for together in (True, False) if self._fits_together(judged) else (False,):
            figures = self._child(self._timing(judged, reference, together=together))
            if not figures["why_not"]:
                break
        if reason := figures["why_not"]:
            return [replace(one, why_not=one.why_not or reason) for one in models]
        rounds_ms = {
            name: {int(rows): [float(ms) for ms in found] for rows, found in own.items()}
            for name, own in figures["rounds_ms"].items()
        }
        return [replace(one, rounds_ms=rounds_ms.get(one.name, {})) for one in models]

    def _fits_together(self, judged: Sequence[Measured]) -> bool:
        """Whether all sessions may be open at once. A container's files may be memory, too; a GPU's
        memory is shared with replicas that serve."""
        mib = sum((one.memory_mib or 0.0) + (one.file_bytes or 0) / MIB for one in judged)
        return self._machine.device_kind == "cpu" and mib <= free_mib(self._machine.cap_mib)

    def _timing(
        self, judged: Sequence[Measured], reference: _Reference, *, together: bool
    ) -> Order:
        return replace(
            self._order("time", "original", self._model("original")),
            signature=signatures.from_json(reference.figures["signature"]),
            rows=tuple(reference.figures["rows"]),
            judged=tuple(reference.figures["judged"]),
            timed=tuple(
                Timed(one.name, str(self._model(one.name)), bool(one.batchable)) for one in judged
            ),
            together=together,
        )

    def _judged(
        self, name: CandidateName, model: Path, verdict: RowVerdict, reference: _Reference
    ) -> Measured:
        order = replace(
            self._order("judge", name, model),
            verdict=verdict,
            outputs=str(reference.outputs),
            signature=signatures.from_json(reference.figures["signature"]),
            rows=tuple(reference.figures["rows"]),
            judged=tuple(reference.figures["judged"]),
            batchable=reference.figures["batchable"] if name == "original" else None,
        )
        return measured(name, self._child(order), model.stat().st_size)

    def _candidate(self, name: CandidateName, reference: _Reference) -> tuple[Measured, RowVerdict]:
        """Make and judge one candidate; return its figures, and the verdict on its rows."""
        if why_not := reference.why_not(name):
            return Measured(name, why_not), NOT_ANALYSED
        made = self._child(self._order("make", name, self._model("original")))
        target = self._target(name)
        if made["why_not"]:
            return Measured(name, made["why_not"]), NOT_ANALYSED
        verdict = self._verdict(target)
        return self._judged(name, target, verdict, reference), verdict

    def _verdict(self, model: Path) -> RowVerdict:
        if self._spec.handler or not self._spec.batching:
            return RowVerdict(False, False, "the function does not join rows")
        return verdict_of(model, max(1.0, min(ROWS_S, self._left_s())))

    def _child(self, order: Order) -> Figures:
        """Run one child. Any end but a result is a reason against the candidate."""
        file = Path(order.scratch) / f"{order.task}.json"
        file.write_text(json.dumps(to_json(order)))
        subject = _SUBJECTS[order.task]
        if order.limit_s <= 0:
            return {"why_not": f"no time was left of {self._patience_s:.0f} s for {subject}"}
        try:
            figures: Figures = output_of([*COMMAND, str(file)], order.limit_s, subject)
        except (ChildFailed, OSError, ValueError) as error:
            return {"why_not": f"{error}{limit(order)}"[:TEXT_MAX]}
        return figures

    def _order(self, task: Task, name: CandidateName, model: Path) -> Order:
        cap_mib = self._machine.cap_mib
        kept_s = 0.0 if task == "time" else TIMING_SHARE * self._patience_s
        if cap_mib:  # this process counts against the same cap
            cap_mib = max(1, cap_mib - int(resident_mib()))
        return Order(
            task,
            name,
            self._spec,
            str(self._folder),
            str(self._work(name)),
            str(model),
            str(self._target(name)),
            self._machine.device_kind,
            self._machine.threads,
            cap_mib,
            self._bytes_max if task == "make" else JUDGED_BYTES_MAX,
            min(self._left_s() - kept_s, CHILD_SHARE * self._patience_s),
        )

    def _report(
        self, reference: _Reference, models: Sequence[Measured], choice: Choice
    ) -> PrecisionReport:
        assert choice.chosen is not None
        assert self._spec.optimise is not None
        tolerance = self._spec.optimise.tolerance
        report: PrecisionReport = {
            "chosen": choice.chosen,
            "candidates": [row_of(one, choice.why_not[one.name], tolerance) for one in models],
            "tolerance": tolerance,
            "calibrated": reference.figures.get("calibrated", 0),
            "judged": len(reference.figures.get("judged", ())),
            "source": "samples" if self._spec.optimise.samples else "synthetic",
            "rules": RULES,
        }
        if choice.chosen != "original":
            report["size"] = self._target(choice.chosen).stat().st_size
        return report

    def _keep(self, name: CandidateName) -> Path:
        """Move the chosen candidate to where a replica has it."""
        kept = self._scratch / FOLDER / MODEL_FILE
        kept.parent.mkdir()
        self._target(name).rename(kept)
        return kept

    def _work(self, name: CandidateName) -> Path:
        folder = self._scratch / "work" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _model(self, name: CandidateName) -> Path:
        return self._folder / self._spec.model if name == "original" else self._target(name)

    def _target(self, name: CandidateName) -> Path:
        return self._work(name) / "made" / MODEL_FILE

    def _left_s(self) -> float:
        return self._until_s - self._clock()


def measured(name: CandidateName, figures: Figures, file_bytes: int) -> Measured:
    """Return a child's figures with their types; a child that gave none has only its reason."""
    if figures["why_not"] or "refused" in figures:
        return Measured(name, figures["why_not"] or figures["refused"], file_bytes=file_bytes)
    found = figures.get("agreement")
    if found and found["column"]:
        found["column"] = Column(**found["column"])
    return Measured(
        name,
        batchable=figures["batchable"],
        memory_mib=figures["memory_mib"],
        file_bytes=file_bytes,
        agreement=Agreement(**found) if found else None,
    )
