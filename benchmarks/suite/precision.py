"""Candidates of other precision, as a deploy measures them beside the original."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from sklearn.datasets import load_digits

from admin.cli.precision import compared_rows, row_ms
from benchmarks.measuring.report import Grid, Note, Part
from benchmarks.measuring.setting import Setting
from benchmarks.models import graphs
from functions.commands import train as commands
from tests.support.process_server import FNCTL, ServerProcess, server_process

DEPLOY_S: Final = 900.0
FUNCTIONS: Final = Path("functions")
SAMPLES: Final = 600
RANDOM_SAMPLES: Final = 96
"""The fewest that int8 needs: 32 to calibrate and 64 to judge."""
SHIFTS: Final = (0, 400, 800)
"""Samples by which a clip is shifted: the 72 held-out clips are too few."""
DEFAULT_TOLERANCE: Final = 0.01
STEP: Final = 1e-9
ANY_TOLERANCE: Final = 0.5
"""For random weights, whose answers mean nothing."""
HEADS: Final = (
    "model",
    "candidate",
    "file",
    "memory",
    "1 row, ms",
    "per row, ms",
    "rows",
    "speed-up",
    "cosine",
    "worst column",
    "same label",
    "serves",
)

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """A function's folder, its samples, and the tolerance of its candidates."""

    name: str
    write: Callable[[Path], None]
    samples: Callable[[], Arrays]
    tolerance: float = DEFAULT_TOLERANCE


def measure(setting: Setting) -> list[Part]:
    """Deploy each model with `precision = "auto"`, anew in each round; show the medians."""
    ready = [
        Case("digits", copied("digits"), digits),
        Case("filetype", copied("filetype"), filetype),
        Case("commands", copied("commands"), clips),
    ]
    resnet = Case("ResNet-50, random weights", written(graphs.convnet), pictures, ANY_TOLERANCE)
    cases = ready[:1] if setting.quick else [*ready, resnet]
    rows: list[tuple[str | float, ...]] = []
    reasons: list[Part] = []
    with (
        tempfile.TemporaryDirectory(prefix="fn-") as folder,
        server_process(Path(folder, "data")) as server,
    ):
        for number, case in enumerate(cases):
            tables = [
                table(server, case, Path(folder, f"f{number}r{round_}"), round_)
                for round_ in range(setting.rounds)
            ]
            rows += shown(case.name, tables)
            reasons += [
                Note(f"{case.name}: {row['name']}: {row['why_not']}.")
                for row in tables[-1]["candidates"]
                if row["why_not"]
            ]
    return [Grid(HEADS, rows), *reasons]


def table(server: ServerProcess, case: Case, folder: Path, number: int) -> dict[str, Any]:
    """Deploy the case; return the table of its candidates."""
    case.write(folder)
    np.savez(folder / "samples.npz", **case.samples())
    manifest = folder / "function.toml"
    manifest.write_text(f"{manifest.read_text()}\n{optimise(case.tolerance, number)}")
    name = folder.name
    subprocess.run(
        [FNCTL, "deploy", str(folder), "--name", name],
        env={**os.environ, "FN_URL": server.url, "FN_KEY": server.token},
        check=True,
        timeout=DEPLOY_S,
        stdout=subprocess.DEVNULL,
    )
    shutil.rmtree(folder)
    found: dict[str, Any] = server.fnctl_json("show", name)["precision"]
    return found


def optimise(tolerance: float, number: int) -> str:
    """Return the table [optimise] of a round. The tolerance differs a little, because a deploy of
    equal files and settings uses the profile of an earlier one; files that no setting names are not
    deployed."""
    least = tolerance - number * STEP
    return f'[optimise]\nprecision = "auto"\ntolerance = {least:.9f}\nsamples = "samples.npz"\n'


def shown(name: str, tables: list[dict[str, Any]]) -> list[tuple[str | float, ...]]:
    """Return one row per candidate: times are medians of the rounds, all else is the last one's."""
    last = tables[-1]
    together = compared_rows(last)
    before = median_ms(tables, "original", together)
    rows: list[tuple[str | float, ...]] = []
    for row in last["candidates"]:
        own = median_ms(tables, row["name"], together)
        single = [one["latency_ms"]["1"] for one in of(tables, row["name"]) if "latency_ms" in one]
        chosen = sum(one["chosen"] == row["name"] for one in tables)
        rows.append(
            (
                name,
                row["name"],
                f"{row['file_bytes'] / 1e3:,.1f} kB" if "file_bytes" in row else "",
                f"{row['memory_mib']:.0f} MiB" if "memory_mib" in row else "",
                f"{statistics.median(single):.3g}" if single else "",
                f"{own[0]:.3g}" if own else "",
                str(own[1]) if own else "",
                f"{before[0] / own[0]:.2f}" if own and before else "",
                f"{row['cosine']:.5f}" if "cosine" in row else "",
                f"{row['column']['error']:.2%}" if "column" in row else "",
                f"{row['same_label']:.1%}" if "same_label" in row else "",
                f"{chosen} of {len(tables)}",
            )
        )
    return rows


def of(tables: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return a candidate's rows of all rounds."""
    return [row for one in tables for row in one["candidates"] if row["name"] == name]


def median_ms(tables: list[dict[str, Any]], name: str, rows: int) -> tuple[float, int] | None:
    """Return a candidate's milliseconds per row in runs of `rows`, or alone if its rows are not
    joined: the median of the rounds, and the rows of a run."""
    found = [one for row in of(tables, name) if (one := row_ms(row, rows)) is not None]
    if not found:
        return None
    return statistics.median(ms for ms, _ in found), found[-1][1]


def copied(name: str) -> Callable[[Path], None]:
    """Return a writer of a ready-made function's folder, without its programs and data."""

    def write(folder: Path) -> None:
        ignored = shutil.ignore_patterns("*.py", "*.npz", "*.md", "__pycache__")
        shutil.copytree(FUNCTIONS / name, folder, ignore=ignored)

    return write


def written(graph: Callable[[], onnx.ModelProto]) -> Callable[[Path], None]:
    """Return a writer of a folder with a model of one input `x` and one output `y`."""

    def write(folder: Path) -> None:
        folder.mkdir()
        onnx.save(graph(), folder / "model.onnx")
        (folder / "function.toml").write_text('schema = 1\n[output]\ntensor = "y"\ntop_k = 1\n')

    return write


def digits() -> Arrays:
    """Return scans of scikit-learn's data set."""
    return {"image": (load_digits().images[:SAMPLES] / 16).astype(np.float32)}


def filetype() -> Arrays:
    """Return the first bytes of held-out files."""
    with np.load(FUNCTIONS / "filetype" / "held_out.npz") as file:
        return {"data": file["data"]}


def clips() -> Arrays:
    """Return held-out clips, each as it is and shifted twice."""
    sounds, _ = commands.held_out()
    return {"audio": np.concatenate([np.roll(sounds, shift, axis=1) for shift in SHIFTS])}


def pictures() -> Arrays:
    """Return random pictures, each with colours of its own: noise alone has equal answers, whose
    spread is smaller than the error of any INT8."""
    random = np.random.default_rng(1)
    shape = (RANDOM_SAMPLES, 3, graphs.PIXELS, graphs.PIXELS)
    colours = random.standard_normal((RANDOM_SAMPLES, 3, 1, 1), dtype=np.float32)
    return {"x": colours + random.standard_normal(shape, dtype=np.float32)}
