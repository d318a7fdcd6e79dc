"""Table [optimise] of a model function: the precision that its model is served with."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from pydantic import Field

from registry.manifest.checks import NOTHING, Path, Section, refused
from runtime_image.contract.model import OutputRule
from runtime_image.contract.precision import Optimisation, Precision

SAMPLES_SUFFIX: Final = ".npz"
_AT: Final = "optimise"


class OptimiseTable(Section):
    """Table [optimise]."""

    precision: Precision = "fp32"
    """Precision of the model that serves. `fp32` leaves the file as it is. `fp16` and `int8` refuse
    the deploy if the answers differ by more than `tolerance`. `auto` takes the fastest candidate
    within `tolerance` if it is at least 10 % faster than the original, else the original."""
    tolerance: float = Field(default=0.01, ge=0.0, le=0.5)
    """Largest accepted disagreement with the original: 1 minus the cosine similarity of each
    output, and the share of samples whose label changes. The RMS error of each column of an output
    may be twice `tolerance` of the column's spread, of a constant column a tenth of `tolerance` of
    its magnitude: 2 % and 0.1 % at 0.01."""
    samples: Path = ""
    """File with typical inputs, `.npz`: one array per input, all with the same number of rows.
    `int8` needs at least 96 different ones: 32 to calibrate and 64 to judge. Random inputs judge
    `fp16` without it."""


def optimisation(
    table: OptimiseTable, engine: str, output: OutputRule, files: Collection[str]
) -> Optimisation | None:
    """Return the table's settings, None if all are defaults. `files` are the bundle's paths.

    Raises BadManifest.
    """
    if not table.model_fields_set:
        return None
    if engine == "python":
        raise refused(_AT, "a function with a model", f'engine = "{engine}"', "runs none")
    if table.samples and not table.samples.endswith(SAMPLES_SUFFIX):
        raise refused(f"{_AT}.samples", f"a {SAMPLES_SUFFIX} file of NumPy", table.samples)
    if table.samples and table.samples not in files:
        raise refused(f"{_AT}.samples", "one of the bundle's files", table.samples)
    if table.precision == "int8" and not table.samples:
        raise refused(f"{_AT}.samples", 'a .npz file for precision = "int8"', NOTHING)
    has_labels = bool(output.labels or output.top_k)
    found = Optimisation(
        table.precision, table.tolerance, table.samples, output.tensor if has_labels else ""
    )
    return None if found == Optimisation("fp32", OptimiseTable().tolerance) else found
