"""Last step of a build: compiles the model, compares both sessions, and sends the files."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtime_image.compilers.base import Compilation, CompileError, CompileOutput
from runtime_image.compilers.files import read_small
from runtime_image.compilers.ranges import outside, problem, rows_max
from runtime_image.contract.compiled import (
    COMPILED_PART,
    FILES_MAX,
    FOLDER,
    BuildDescribed,
    BuildOrder,
    CompiledFile,
    CompiledModel,
)
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import ModelSpec, files_max
from runtime_image.engines.base import Engine
from runtime_image.engines.compiled import CompiledEngine, Place
from runtime_image.engines.onnx import Sessions, session_options
from runtime_image.engines.upgrade import resident_mib
from runtime_image.link.data_listener import DataListener
from runtime_image.link.frames import LinkError
from runtime_image.verification import proof, samples
from runtime_image.verification.parity import Parity, refutation
from runtime_image.verification.prepare import bounded_files
from runtime_image.verification.samples import Feed
from runtime_image.verification.transfer import serve_parts, trim_memory

REASON_MAX: Final = 1000
FREE_MIN: Final = 1024 * 1024
"""A build that fails beside fewer free bytes failed for lack of room: compilers do not say so."""
TIMING_CACHE_MAX: Final = 64 * 1024 * 1024
"""Max bytes of a timing cache."""
RUNS: Final = 5
RUNS_MS_MAX: Final = 2000.0
"""Runs measured for one number of rows, and the max time for all of them. The best one counts."""


class OrdinaryResult(NamedTuple):
    """Measurements of the ordinary session: its outputs by sample, and milliseconds by rows."""

    feeds: list[Feed]
    outputs: list[dict[str, Any]]
    ms: dict[str, float]


class Built(NamedTuple):
    """Description of a build, and its files by number."""

    described: BuildDescribed
    files: dict[int, Path]


def build_and_serve(
    listener: DataListener, record: ReplicaRecord, spec: ModelSpec, engines: list[Engine]
) -> None:
    """Compile the model of a build, then send its files over one connection. Never raises.

    The only one of `engines` is the ordinary engine, which is freed before the compilation. The
    files go to a folder below $HOME that is removed with the replica: its run folder, or a
    container's /tmp.
    """
    place = Place(spec, Path(record.model_dir), record.device_kind, record.threads)
    with tempfile.TemporaryDirectory(dir=Path.home(), ignore_cleanup_errors=True) as scratch:
        built = built_or_why_not(engines, place, Path(scratch))
        with suppress(LinkError, OSError):
            serve_parts(listener, lambda: built.described, built.files, record.greeting)


def built_or_why_not(engines: list[Engine], place: Place, scratch: Path) -> Built:
    """Return the result of `build`, or the reason against it; the scratch folder is then empty."""
    try:
        return build(engines, place, scratch)
    except Exception as error:  # noqa: BLE001 - the ordinary session still works
        # Before the files that filled the disk are removed.
        is_full = shutil.disk_usage(scratch).free < FREE_MIN
        shutil.rmtree(scratch / FOLDER, ignore_errors=True)
        known = isinstance(error, LoadError | OSError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        if is_full:
            reason = f"{os.strerror(errno.ENOSPC)}: {reason}"
        return Built({"why_not": reason[:REASON_MAX] or type(error).__name__}, {})


def build(
    engines: list[Engine],
    place: Place,
    scratch: Path,
    clock: Callable[[], float] = time.perf_counter,
) -> Built:
    """Compile the model of `place` to `scratch`/FOLDER and compare it with the ordinary engine, the
    only one in `engines`, which is emptied. Raises LoadError or any error of ONNX Runtime."""
    order = place.spec.build
    if order is None:
        raise CompileError("there is nothing to compile")
    ordinary = _ordinary(engines.pop(), place, order, clock)
    trim_memory()
    began = clock()
    key = place.key(order.compiler, order.ranges)
    timing_key = place.timing_key(order.compiler)
    made = _compile(place, order, scratch, timing_key)
    build_s = clock() - began
    compiled = CompiledModel(
        key,
        order.compiler,
        made.form,
        tuple(_described(scratch / FOLDER / name) for name in made.files),
        order.ranges,
        order.keeps_ordinary,
    )
    began = clock()
    sessions = Sessions(replace(place, files=scratch).open(compiled), order.ranges)
    engine = CompiledEngine(sessions, place.device_kind, place.model)
    load_ms = (clock() - began) * 1e3
    parity = Parity()
    # The first run is not compared: of a model with random outputs, both sessions would otherwise
    # draw the same numbers.
    engine.run(ordinary.feeds[0], engine.ticket())
    for feed, wanted in zip(ordinary.feeds, ordinary.outputs, strict=True):
        parity.add(wanted, engine.run(feed, engine.ticket()))
    described: BuildDescribed = {
        "why_not": refutation(parity.outputs(), order.tolerance),
        "parity": parity.outputs(),
        "samples": parity.samples,
        "build_s": round(build_s, 3),
        "ordinary_ms": ordinary.ms,
        "compiled_ms": _latencies(engine, ordinary.feeds[0], place, order, clock),
        "load_ms": round(load_ms, 3),
        "memory_mib": round(resident_mib(), 1),
    }
    if described["why_not"]:
        shutil.rmtree(scratch / FOLDER)
        return Built(described, {})
    described |= {"compiled": asdict(compiled), "timing_key": timing_key}
    paths = [scratch / FOLDER / name for name in made.files]
    return Built(described, {COMPILED_PART + n: path for n, path in enumerate(paths)})


def _ordinary(
    engine: Engine, place: Place, order: BuildOrder, clock: Callable[[], float]
) -> OrdinaryResult:
    """Run the ordinary session on every sample. Raises LoadError if none can be run."""
    spec, signature = place.spec, engine.signature
    if reason := problem(signature, order.ranges):
        raise CompileError(reason)
    accepted: list[Feed] = []
    outputs = []
    failure = "no sample is inside the ranges"
    for feed in samples.feeds(spec, signature, place.folder, order.ranges):
        try:
            outputs.append(engine.run(feed, engine.ticket()))
        except Exception as error:  # noqa: BLE001 - synthetic values are not valid for every model
            failure = f"no sample could be run, give a [sample]: {error}"
        else:
            accepted.append(feed)
    if not accepted:
        raise CompileError(failure)
    return OrdinaryResult(accepted, outputs, _latencies(engine, accepted[0], place, order, clock))


def _latencies(
    engine: Engine, feed: Feed, place: Place, order: BuildOrder, clock: Callable[[], float]
) -> dict[str, float]:
    """Return the best milliseconds of a run by rows: of one row, and of a full batch."""
    found = {str(_rows(feed)): _best_ms(engine, feed, clock)}
    rows = min(place.spec.batch_max, rows_max(order.ranges))
    if rows > 1:
        sizes = {name: (rows, *shape[1:]) for name, shape in samples.shapes(feed).items() if shape}
        batch = samples.resized(feed, sizes)
        if outside(samples.shapes(batch), order.ranges) is None:
            found[str(rows)] = _best_ms(engine, batch, clock)
    return found


def _rows(feed: Feed) -> int:
    shape = next(iter(samples.shapes(feed).values()), ())
    return shape[0] if shape else 1


def _best_ms(engine: Engine, feed: Feed, clock: Callable[[], float]) -> float:
    runs: list[float] = []
    while len(runs) < RUNS and sum(runs) < RUNS_MS_MAX:
        runs.append(proof.timed(engine, feed, clock)[0])
    return round(min(runs), 4)


def _compile(place: Place, order: BuildOrder, scratch: Path, timing_key: str) -> CompileOutput:
    target = scratch / FOLDER
    target.mkdir(parents=True)
    cache = b""
    if order.timing_cache is not None and order.timing_key == timing_key:
        cache = read_small(place.folder, order.timing_cache, TIMING_CACHE_MAX)
    bytes_max = files_max(_bundle_bytes(place.folder))
    compilation = Compilation(
        place.model,
        target,
        order.ranges,
        session_options(place.threads),
        timing_cache=cache,
        delay_s=order.delay_s,
    )
    try:
        with bounded_files(bytes_max):
            made = place.compiler(order.compiler).compile(compilation)
    except LoadError as error:
        if _bytes(target) >= bytes_max:
            raise _too_large(bytes_max) from error
        raise
    if len(made.files) > FILES_MAX:
        raise CompileError(f"it has {len(made.files)} files, at most {FILES_MAX} are kept")
    if _bytes(target) > bytes_max:
        raise _too_large(bytes_max)
    return made


def _too_large(bytes_max: int) -> CompileError:
    return CompileError(f"the compiled files are larger than {bytes_max} bytes")


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _bundle_bytes(folder: Path) -> int:
    """Return the bytes of a bundle, without this product's own folders."""
    total = 0
    for path in folder.rglob("*"):
        if not path.relative_to(folder).parts[0].startswith(".") and path.is_file():
            total += path.stat().st_size
    return total


def _described(path: Path) -> CompiledFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return CompiledFile(path.name, os.fstat(file.fileno()).st_size, digest)
