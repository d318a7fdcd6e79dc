"""Engines of compiled models: opened, refused, bounded by ranges, and swapped in under load."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest

from runtime_image.compilers.keys import PIECE
from runtime_image.compilers.ranges import OutsideRanges
from runtime_image.contract.compiled import OTHER_KEY, CompiledModel
from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.engines.base import Engine
from runtime_image.engines.compiled import CompiledEngine, Place, compiled_upgrade
from runtime_image.engines.loading import load_engine
from runtime_image.engines.onnx import OnnxEngine, Sessions
from runtime_image.engines.upgrade import SessionUpgrade
from tests.support import compiled as compiling
from tests.support import models, prepared

WAIT_S: Final = 60.0
HANDLER: Final = "def predict(inputs, ctx):\n    return ctx.run(inputs)\n"


def rows(count: int, value: float = 1.0) -> dict[str, Any]:
    return {"x": np.full((count, models.WIDTH), value, np.float32)}


def run(engine: Engine, count: int) -> Any:
    return engine.run(rows(count), engine.ticket())["y"]


def load(spec: ModelSpec, folder: Path) -> tuple[Engine, list[str]]:
    reasons: list[str] = []
    engine = load_engine(spec, folder, device_kind="cpu", threads=1, not_compiled=reasons.append)
    return engine, reasons


class Scene:
    """A model folder with a compiled model: `x` + 1, or the given one."""

    def __init__(self, folder: Path, model: Path | None = None, **changes: Any) -> None:
        self.folder = folder
        self.spec = compiling.spec(model or models.affine(folder, offset=1), **changes)
        self.compiled = compiling.compile_in(folder, self.spec)

    def load(self, compiled: CompiledModel | None) -> tuple[Engine, list[str]]:
        return load(compiling.serving(self.spec, compiled), self.folder)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_compiled_model_serves(scene: Scene) -> None:
    """It needs no other file than its own and the model that its key is made of, whose session is
    not created; it has the outputs and the signature of the ordinary engine."""
    ordinary, _ = scene.load(None)

    engine, reasons = scene.load(scene.compiled)

    assert (engine.session, reasons) == ("compiled", [])
    assert engine.signature == ordinary.signature
    assert isinstance(engine, CompiledEngine)
    assert engine.ordinary is None
    for count in (1, 8):
        assert np.array_equal(run(engine, count), run(ordinary, count))


@pytest.mark.parametrize(
    "shape", [(9, models.WIDTH), (0, models.WIDTH), (1, models.WIDTH + 1), (models.WIDTH,)]
)
def test_a_shape_outside_the_ranges_is_refused(scene: Scene, shape: tuple[int, ...]) -> None:
    """Without an ordinary session the error is the caller's and names the ranges."""
    engine, _ = scene.load(scene.compiled)

    with pytest.raises(OutsideRanges, match=r"compiled for a shape from \[1, 4\] to \[8, 4\]"):
        engine.run({"x": np.zeros(shape, np.float32)}, engine.ticket())

    assert engine.session == "compiled"


class Counted:
    """A session of ONNX Runtime that counts its runs."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.runs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, *args: Any) -> Any:
        self.runs += 1
        return self._session.run(*args)


def test_an_ordinary_session_runs_shapes_outside_the_ranges(scene: Scene) -> None:
    """With `keeps_ordinary` runs outside the ranges use the ordinary session, those inside never
    do."""
    engine, reasons = scene.load(replace(scene.compiled, keeps_ordinary=True))
    assert isinstance(engine, OnnxEngine)
    main, ordinary = Counted(engine._sessions.main), Counted(engine.ordinary)
    engine._sessions = Sessions(main, scene.compiled.ranges, ordinary)

    answers = [run(engine, count) for count in (1, 9, 8, 100)]

    assert reasons == []
    assert (main.runs, ordinary.runs) == (2, 2)
    assert [len(answer) for answer in answers] == [1, 9, 8, 100]
    assert all((answer == 2).all() for answer in answers)


def test_the_kept_session_is_the_prepared_one(tmp_path: Path) -> None:
    """The ordinary session of a prepared model is its quick one."""
    model = prepared.layers(tmp_path)
    scene = Scene(tmp_path, model)
    scene.spec = replace(scene.spec, preparation=prepared.prepare(model))

    engine, reasons = scene.load(replace(scene.compiled, keeps_ordinary=True))

    assert (engine.session, engine.upgrade, reasons) == ("compiled", None, [])
    assert run(engine, 9).shape == (9, models.WIDTH)


def test_another_key_is_not_opened(scene: Scene) -> None:
    """The ordinary session serves, and the reason begins with `OTHER_KEY` and shows both keys."""
    engine, [reason] = scene.load(replace(scene.compiled, key="tensorrt-10.9.0/of/elsewhere"))

    assert engine.session == "original"
    assert reason.startswith(
        f"{OTHER_KEY}: compiled for tensorrt-10.9.0/of/elsewhere, this replica"
    )
    assert scene.compiled.key in reason


def test_a_changed_model_has_another_key(scene: Scene) -> None:
    """Files compiled from an earlier model of the same name are stale."""
    models.affine(scene.folder, offset=2)

    engine, [reason] = scene.load(scene.compiled)

    assert reason.startswith(OTHER_KEY)
    assert (run(engine, 1) == 3).all()


def test_a_file_that_differs_is_not_opened(scene: Scene) -> None:
    """The ordinary session serves; the reason names the file."""
    path = scene.folder / ".compiled" / "model.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")

    engine, [reason] = scene.load(scene.compiled)

    assert engine.session == "original"
    assert reason == "model.onnx: its content is not the one that was compiled"


def test_a_file_that_onnx_runtime_refuses_does_no_harm(scene: Scene) -> None:
    """Key and digest are right, but the content is no model."""
    garbage = b"garbage"
    (scene.folder / ".compiled" / "model.onnx").write_bytes(garbage)
    digest = hashlib.sha256(garbage).hexdigest()
    first, *others = scene.compiled.files
    files = (replace(first, size=len(garbage), sha256=digest), *others)

    engine, [reason] = scene.load(replace(scene.compiled, files=files))

    assert engine.session == "original"
    assert "INVALID_PROTOBUF" in reason


def test_a_compiler_for_other_devices_is_no_other_key(scene: Scene) -> None:
    """A model compiled by TensorRT cannot be used on a CPU slot, and no build would change that."""
    engine, [reason] = scene.load(replace(scene.compiled, compiler="tensorrt"))

    assert engine.session == "original"
    assert reason == "tensorrt compiles for cuda, not for cpu"


def test_the_optimised_file_is_the_one_that_is_compiled(scene: Scene) -> None:
    """With a file of another precision, key and session are those of that file."""
    (scene.folder / ".optimised").mkdir()
    models.affine(scene.folder / ".optimised", offset=5)
    spec = replace(scene.spec, optimised=f".optimised/{scene.spec.model}")

    place = Place(spec, scene.folder, "cpu", 1)
    engine, [reason] = load(compiling.serving(spec, scene.compiled), scene.folder)

    assert place.key("onnxruntime", compiling.RANGES) != scene.compiled.key
    assert reason.startswith(OTHER_KEY)
    assert (run(engine, 1) == 6).all()


def test_a_handlers_model_is_compiled_too(scene: Scene) -> None:
    """`ctx.run` uses the compiled session, and refuses shapes outside the ranges."""
    (scene.folder / "handler.py").write_text(HANDLER)
    scene.spec = replace(scene.spec, handler="handler.py")

    engine, reasons = scene.load(scene.compiled)

    assert (engine.session, reasons) == ("compiled", [])
    assert (run(engine, 8) == 2).all()
    with pytest.raises(OutsideRanges):
        run(engine, 9)


class Swap:
    """An upgrade of an engine, and its outcome."""

    def __init__(self, scene: Scene, engine: Engine, compiled: CompiledModel) -> None:
        self._ended = threading.Event()
        self.reason = "unknown"
        self.limits: list[str] = []
        made = compiled_upgrade(
            engine,
            Place(scene.spec, scene.folder, "cpu", 1),
            compiled,
            before=lambda: self.limits.append(engine.session),
            ended=self._end,
        )
        assert isinstance(made, SessionUpgrade)
        self.upgrade = made
        made.start(0)

    def _end(self, reason: str) -> None:
        self.reason = reason
        self._ended.set()

    def wait(self) -> str:
        assert self._ended.wait(WAIT_S)
        return self.reason


def under_load(engine: Engine, work: Callable[[], object], count: int) -> list[float]:
    """Run the engine in a thread, as the worker does, while `work` is done; return all answers of
    `count` runs after it, and those before."""
    answers: list[float] = []
    enough = threading.Event()
    stop = threading.Event()

    def runs() -> None:
        while not stop.is_set():
            answers.append(float(run(engine, 1 + len(answers) % 8)[0, 0]))
            if len(answers) >= count:
                enough.set()

    thread = threading.Thread(target=runs)
    thread.start()
    assert enough.wait(WAIT_S)
    work()
    enough.clear()
    count += len(answers)
    assert enough.wait(WAIT_S)
    stop.set()
    thread.join(WAIT_S)
    return answers


def test_a_swap_under_load_fails_no_run(scene: Scene) -> None:
    """Runs go on while the compiled session is opened and exchanged; joined runs are bounded before
    the exchange."""
    engine, _ = scene.load(None)
    swap: list[Swap] = []

    def exchange() -> None:
        swap.append(Swap(scene, engine, scene.compiled))
        assert swap[0].wait() == ""

    answers = under_load(engine, exchange, 200)

    assert set(answers) == {2.0}
    assert len(answers) >= 400
    assert engine.session == "compiled"
    assert swap[0].limits == ["original"]
    with pytest.raises(OutsideRanges):
        run(engine, 9)


def test_a_swap_may_keep_the_session_it_replaces(scene: Scene) -> None:
    """The ordinary session is not loaded a second time; it stays through a second swap."""
    engine, _ = scene.load(None)
    assert isinstance(engine, OnnxEngine)
    first = engine.ordinary
    keeping = replace(scene.compiled, keeps_ordinary=True)

    assert Swap(scene, engine, keeping).wait() == ""
    assert engine.ordinary is first
    assert Swap(scene, engine, keeping).wait() == ""

    assert engine.ordinary is first
    assert run(engine, 9).shape == (9, models.WIDTH)


def test_a_swap_of_a_handlers_model(scene: Scene) -> None:
    """The handler's context uses the compiled session from the next run on."""
    (scene.folder / "handler.py").write_text(HANDLER)
    scene.spec = replace(scene.spec, handler="handler.py")
    engine, _ = scene.load(None)

    assert Swap(scene, engine, scene.compiled).wait() == ""

    assert engine.session == "compiled"
    assert (run(engine, 8) == 2).all()


@pytest.mark.parametrize("harm", ["key", "file", "memory", "signature"])
def test_a_swap_that_fails_changes_nothing(
    scene: Scene, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another key, a changed file, too little memory, or another model: the engine keeps its
    session, and the outcome has the reason."""
    engine, _ = scene.load(None)
    compiled = scene.compiled
    reasons = {
        "key": OTHER_KEY,
        "file": "model.onnx: expected",
        "memory": "the compiled session needs",
        "signature": "its inputs and outputs are not those of the serving model",
    }
    if harm == "key":
        compiled = replace(compiled, key="another")
    elif harm == "file":
        (scene.folder / ".compiled" / "model.onnx").write_bytes(b"")
    elif harm == "memory":
        huge = replace(compiled.files[0], size=2**50)
        compiled = replace(compiled, files=(huge, *compiled.files[1:]))
    else:
        (scene.folder / "other").mkdir()
        ranges = tuple(replace(compiling.RANGES[0], input=name) for name in "ab")
        model = models.two_inputs(scene.folder / "other")
        scene = Scene(model.parent, model, build=replace(compiling.ORDER, ranges=ranges))
        compiled = scene.compiled

    reason = Swap(scene, engine, compiled).wait()

    assert reason.startswith(reasons[harm])
    assert engine.session == "original"
    assert (run(engine, 9) == 2).all()


def test_a_swap_waits_for_the_fast_session(tmp_path: Path) -> None:
    """A fast session that is waiting to be built is given up; the compiled one serves at the end,
    and the fast one never replaces it."""
    model = prepared.layers(tmp_path)
    scene = Scene(tmp_path, model)
    scene.spec = replace(scene.spec, preparation=prepared.prepare(model))
    engine, _ = scene.load(None)
    assert engine.upgrade is not None
    engine.upgrade.start(0)

    assert Swap(scene, engine, scene.compiled).wait() == ""

    assert engine.upgrade.abandon() is False
    assert engine.session == "compiled"


def test_a_handler_without_a_model_has_nothing_to_compile(tmp_path: Path) -> None:
    """The outcome is a reason, not an error."""
    (tmp_path / "handler.py").write_text("def predict(inputs, ctx): return {}\n")
    spec = ModelSpec("a@1", handler="handler.py", inputs={"x": InputRule("json")})
    engine, _ = load(spec, tmp_path)

    made = compiled_upgrade(
        engine,
        Place(spec, tmp_path, "cpu", 1),
        CompiledModel("key", "onnxruntime", "context", (), ()),
        before=lambda: pytest.fail("nothing serves"),
        ended=lambda _reason: pytest.fail("nothing began"),
    )

    assert made == "there is no model to compile"


@pytest.mark.parametrize("offset", [0, PIECE - 12])
def test_no_compiler_gets_a_model_with_a_compiled_part(tmp_path: Path, offset: int) -> None:
    """Such a model has no key, so that it is neither compiled nor opened beside compiled files,
    wherever in the file the part is."""
    part = models.with_compiled_part(tmp_path)
    padded = part.read_bytes()
    if offset:
        # An unknown field first, which readers skip.
        padded = b"\xfa\x0f" + _varint(offset) + bytes(offset) + padded
        part.write_bytes(padded)
    place = Place(ModelSpec("a@1", model=part.name), tmp_path, "cpu", 1)

    with pytest.raises(LoadError, match="holds a compiled part"):
        place.open(CompiledModel("key", "onnxruntime", "cache", (), ()))
    assert onnx.load(part).graph.node[0].op_type == "EPContext"


def _varint(value: int) -> bytes:
    low = bytes([value & 127 | 128, value >> 7 & 127 | 128])
    return low + bytes([value >> 14])
