"""Prepares a model: writes optimised files, compares them with the original, and measures both."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from runtime_image.contract import precision
from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import (
    FOLDER,
    GRAPH_FILE,
    WEIGHTS_FILE,
    Described,
    InputRule,
    ModelSpec,
    Preparation,
    SessionPlan,
    Timing,
    files_max,
)
from runtime_image.contract.signature import Signature
from runtime_image.engines.onnx import (
    NO_FALLBACK,
    PROVIDERS,
    OnnxEngine,
    environment_key,
    session_options,
)
from runtime_image.verification import proof
from runtime_image.verification.measure import Bench, Candidate, Choice, choose
from runtime_image.verification.swap import NeighbourSwap
from runtime_image.verification.trial import example

KEPT_OUTSIDE_BYTES: Final = 1024
"""Min bytes of weights stored outside the graph, where they can be mapped."""
MIB: Final = 2**20
SMALL_BYTES: Final = 512 * 1024
"""Smaller models are not prepared: they load in a few milliseconds, and a measurement would mostly
show other work of the machine."""
QUICK: Final = SessionPlan(f"{FOLDER}/{GRAPH_FILE}", optimise=False, prepack=False)
PACKED: Final = SessionPlan(f"{FOLDER}/{GRAPH_FILE}", optimise=False, prepack=True)
PREPARED: Final = {"cpu": (QUICK, PACKED), "cuda": (PACKED,)}
"""Session plans for prepared files, by device kind. On a GPU, weights are copied in any case, and
two sessions would need twice its memory."""


class Unprepared(Exception):
    """The model is not worth a preparation; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Folders and resources of a preparation: the replica's model `folder`, a `scratch` folder, its
    share of the device, and the cap on host memory in MiB, 0 for none."""

    folder: Path
    scratch: Path
    device_kind: str
    threads: int
    cap_mib: int


@dataclass(frozen=True, slots=True)
class Example:
    """Results of the trial: the signature, the rows of the largest useful run (`batch_max`), and
    the memory with one session of the original (`memory_mib`)."""

    signature: Signature
    batch_max: int
    memory_mib: float


def prepare(spec: ModelSpec, tried: Example, workspace: Workspace) -> Described:
    """Write the prepared files to `workspace.scratch/.prepared` and return their description.

    Raises Unprepared with the reason; the scratch folder may then contain anything.
    """
    try:
        key = environment_key(workspace.device_kind)
        inputs = _inputs(spec, tried, workspace)
        _write(spec, workspace)
        batch_max = 1 if spec.handler else tried.batch_max
        bench = Bench(_feeds(inputs[0], batch_max), workspace.device_kind, workspace.threads)
        rules = spec.inputs if batch_max > 1 else None
        original, prepared = _measure(spec, workspace, bench, inputs, rules)
    except Unprepared:
        raise
    except Exception as error:
        # An error of ONNX Runtime or of the disk. The original still works.
        raise Unprepared(f"{type(error).__name__}: {error}"[:1000]) from error
    sizes = _sizes(workspace.scratch / FOLDER)
    both_mib = tried.memory_mib + sum(sizes) / MIB
    has_room = workspace.device_kind == "cpu" and not 0 < workspace.cap_mib < both_mib
    choice = choose(original, prepared, has_room_for_two=has_room)
    if isinstance(choice, str):
        raise Unprepared(choice)
    return _described(key, original, choice, sizes)


def _inputs(spec: ModelSpec, tried: Example, workspace: Workspace) -> list[dict[str, Any]]:
    """Return the trial's inputs and a random variant of them: zeros alone reveal little of a graph.
    A handler's sample and signature are not those of its model, whose inputs are synthetic then."""
    signature, model = tried.signature, spec
    if spec.handler:
        path, threads = workspace.folder / (spec.optimised or spec.model), workspace.threads
        signature = OnnxEngine(path, device_kind=workspace.device_kind, threads=threads).signature
        model = replace(spec, sample={}, inputs={})
    first, _ = example(signature, model, workspace.folder)
    if any(value.ndim == 0 or not value.size for value in first.values()):
        return [first]
    other = proof.variant(signature.inputs, first, 0, 0)
    rows = {value.shape[0] for value in first.values()}
    return [first, other] if rows == {1} else [first]


def _feeds(first: dict[str, Any], batch_max: int) -> dict[int, dict[str, Any]]:
    feeds = {1: first}
    if batch_max > 1:
        feeds[batch_max] = {n: np.repeat(v[:1], batch_max, axis=0) for n, v in first.items()}
    return feeds


def _write(spec: ModelSpec, workspace: Workspace) -> None:
    target = workspace.scratch / FOLDER
    target.mkdir(parents=True)
    bytes_max = files_max(_size(workspace.folder))
    model = workspace.folder / (spec.optimised or spec.model)
    write_prepared(model, target, workspace.device_kind, workspace.threads, bytes_max)
    if sum(_sizes(target)) > bytes_max:
        raise Unprepared(f"its files have {sum(_sizes(target))} bytes, over the limit {bytes_max}")
    strange = sorted(path.name for path in target.iterdir())
    if set(strange) - {GRAPH_FILE, WEIGHTS_FILE}:
        raise Unprepared(f"expected {GRAPH_FILE} and {WEIGHTS_FILE}, got {strange}")


def _measure(
    spec: ModelSpec,
    workspace: Workspace,
    bench: Bench,
    inputs: list[dict[str, Any]],
    rules: Mapping[str, InputRule] | None,
) -> tuple[Candidate, list[Candidate]]:
    """Measure the original and the prepared sessions, one at a time.

    Raises Unprepared if outputs differ, or if rows of a prepared session are not independent.
    `rules` are the rules of the inputs, None if rows are not joined.
    """
    original, engine = bench.measure(*_original(spec, workspace))
    wanted = [engine.run(one, engine.ticket()) for one in _accepted(engine, inputs)]
    del engine
    prepared = []
    for plan in PREPARED[workspace.device_kind]:
        candidate, engine = bench.measure(workspace.scratch, plan)
        _check(engine, inputs[: len(wanted)], wanted, coarse=bool(spec.optimised))
        if rules is not None:
            _check_rows(engine, inputs[0], rules, workspace.device_kind)
        del engine
        prepared.append(candidate)
    return original, prepared


def _original(spec: ModelSpec, workspace: Workspace) -> tuple[Path, SessionPlan]:
    """Return the folder and the plan of the file that the trial loaded. A candidate has the path
    that it will have in a replica's model folder below another folder here."""
    if not spec.optimised:
        return workspace.folder, SessionPlan(spec.model)
    path = f"{precision.FOLDER}/{precision.MODEL_FILE}"
    return Path(spec.optimised.removesuffix(path)), SessionPlan(path)


def _accepted(engine: OnnxEngine, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the inputs that the model accepts: synthetic values are not valid for every model."""
    taken = inputs[:1]
    for one in inputs[1:]:
        try:
            engine.run(one, engine.ticket())
        except Exception:  # noqa: BLE001 - a model may raise anything on synthetic inputs
            break
        taken.append(one)
    return taken


def _check(
    engine: OnnxEngine,
    inputs: list[dict[str, Any]],
    wanted: Sequence[dict[str, Any]],
    *,
    coarse: bool,
) -> None:
    for feed, outputs in zip(inputs, wanted, strict=True):
        got = engine.run(feed, engine.ticket())
        for name, value in outputs.items():
            if not same(got[name], value, coarse=coarse):
                raise Unprepared(f"prepared, output {name} differs for the same input")


def _check_rows(
    engine: OnnxEngine, inputs: dict[str, Any], rules: Mapping[str, InputRule], device_kind: str
) -> None:
    """Compare runs of the prepared session: the analysis proved only the deployed file."""
    rows = proof.rows_like(engine.signature.inputs, inputs)
    if refuted := NeighbourSwap(engine, device_kind).refutation(rows, rules):
        raise Unprepared(f"prepared, {refuted}")


def same(one: Any, other: Any, *, coarse: bool = False) -> bool:
    """Whether two outputs agree in shape, dtype and, within `proof.agree`'s tolerance, in value.
    `coarse` as there."""
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return bool(one == other)
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and proof.agree(one, other, coarse=coarse)
    )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _sizes(folder: Path) -> list[int]:
    """Return the bytes of the graph and of the weights, 0 for a missing file."""
    paths = [folder / GRAPH_FILE, folder / WEIGHTS_FILE]
    return [path.stat().st_size if path.exists() else 0 for path in paths]


def _described(key: str, original: Candidate, choice: Choice, sizes: list[int]) -> Described:
    fast = choice.fast
    return {
        "why_not": "",
        "preparation": asdict(Preparation(key, choice.quick.plan, fast.plan if fast else None)),
        "sizes": sizes,
        "original": _timing(original),
        "quick": _timing(choice.quick),
        "fast": _timing(fast) if fast else None,
    }


def _timing(candidate: Candidate) -> Timing:
    return {
        "load_ms": round(candidate.load_ms, 3),
        "first_ms": round(candidate.first_ms, 3),
        "cpu_ms": {str(rows): round(ms, 4) for rows, ms in candidate.cpu_ms.items()},
    }


def prepared_or_why_not(
    spec: ModelSpec, tried: Example, workspace: Workspace, make: Callable[..., Described] = prepare
) -> Described:
    """Return the result of `prepare`, or the reason against it; the scratch folder is then
    empty."""
    size = Path(spec.optimised).stat().st_size if spec.optimised else _size(workspace.folder)
    if size < SMALL_BYTES:
        return {"why_not": f"a model of {size // 1024} KiB loads quickly as it is"}
    try:
        return make(spec, tried, workspace)
    except (Unprepared, LoadError, OSError) as error:
        shutil.rmtree(workspace.scratch / FOLDER, ignore_errors=True)
        return {"why_not": str(error)}


def write_prepared(
    model: Path, target: Path, device_kind: str, threads: int, bytes_max: int
) -> None:
    """Optimise `model` for this device and write it to `target`, weights in a separate file.

    Raises LoadError, also if one of the files would exceed `bytes_max`.
    """
    options = session_options(threads)
    options.optimized_model_filepath = str(target / GRAPH_FILE)
    prefix = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{prefix}_file_name", WEIGHTS_FILE)
    options.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(KEPT_OUTSIDE_BYTES))
    provider = PROVIDERS[device_kind]
    try:
        with bounded_files(bytes_max):
            session = ort.InferenceSession(
                str(model), options, providers=[provider], enable_fallback=NO_FALLBACK
            )
    except Exception as error:
        raise LoadError(str(error).replace(f"{model.parent}/", "")) from error
    if session.get_providers()[0] != provider:
        raise LoadError(f"device {device_kind}: {provider} could not be used")


@contextmanager
def bounded_files(bytes_max: int) -> Iterator[None]:
    """Limit the size of any file this process writes, because folded constants may have any size.
    Python ignores SIGXFSZ, so the write fails with an error (setrlimit(2))."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = bytes_max if hard == resource.RLIM_INFINITY else min(bytes_max, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
