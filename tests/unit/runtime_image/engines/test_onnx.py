"""ONNX Runtime as an engine with real models: runs, sessions, prepared models, environments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import EPFail

from runtime_image.codecs.bfloat16 import bits, from_bits
from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import ModelSpec, Preparation, SessionPlan
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.engines.base import Stopped
from runtime_image.engines.onnx import (
    IDENTITY,
    OnnxEngine,
    _signature,
    check_driver,
    driver_version,
    environment_key,
    load_model,
    open_session,
    processor_digest,
    run_bound,
    session_options,
    size_mib,
    warm_up,
)
from runtime_image.verification.prepare import write_prepared
from tests.support import models, prepared

MIXED = "y = Add(x, s)  z = Neg(s)"
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def load(path: Path) -> OnnxEngine:
    return OnnxEngine(path, device_kind="cpu", threads=1)


def test_an_unknown_rank_is_no_scalar(tmp_path: Path) -> None:
    """ONNX Runtime shows both as []; the file says which is which, also that of a prepared graph,
    and without it the rank is unknown."""
    path = models.written(
        tmp_path, "mixed", "(float[n] x, float s) => (float[n] y, float z)", MIXED
    )
    model = onnx.load(path)
    for one in (model.graph.input[0], model.graph.output[0]):
        one.type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    session = open_session(str(path), "cpu", 1)

    found = load(path).signature
    unread = _signature(session, tmp_path / "missing.onnx")

    assert [one.shape for one in (*found.inputs, *found.outputs)] == [None, (), None, ()]
    assert {one.shape for one in (*unread.inputs, *unread.outputs)} == {None}


def test_a_model_tells_its_signature(tmp_path: Path) -> None:
    """Names, types and shapes come from the graph; a named dimension is dynamic."""
    rows = (-1, 4)

    assert load(models.two_inputs(tmp_path)).signature == Signature(
        "tensors",
        (TensorSpec("a", "FP32", rows), TensorSpec("b", "FP32", rows)),
        (TensorSpec("sum", "FP32", rows), TensorSpec("difference", "FP32", rows)),
    )


def test_bf16_is_computed(tmp_path: Path) -> None:
    """BF16 goes in and out as its bits, beside tensors of other types."""
    values = "(bfloat16[n] x, float[n] a) => (bfloat16[n] y, float[n] b)"
    nodes = "w = Cast<to = 1>(x)\n b = Add(w, a)\n y = Cast<to = 16>(b)"
    engine = load(models.written(tmp_path, "halves", values, nodes))
    assert [spec.dtype for spec in engine.signature.inputs] == ["BF16", "FP32"]
    x = from_bits(np.array([0x3F80, 0xC000], np.uint16))  # 1, -2
    made = engine.run({"x": x, "a": np.array([0.5, 3], np.float32)}, engine.ticket())
    assert bits(made["y"]).tolist() == [0x3FC0, 0x3F80]  # 1.5, 1
    assert made["b"].tolist() == [1.5, 1]


def test_a_run_gives_outputs_by_name(tmp_path: Path) -> None:
    """Every output is returned under its name."""
    engine = load(models.two_inputs(tmp_path))

    got = engine.run({"a": X, "b": X}, engine.ticket())

    assert list(got) == ["sum", "difference"]
    assert np.array_equal(got["sum"], X + X)


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    """A graph's runtime error is raised as ONNX Runtime's own error."""
    engine = load(models.fails_on_negative(tmp_path))

    with pytest.raises(Exception, match="indices element out of data bounds"):
        engine.run({"x": -X}, engine.ticket())


def test_a_run_can_be_stopped(tmp_path: Path) -> None:
    """A run that would take minutes ends when its ticket is stopped from another thread, and the
    engine can run again."""
    engine = load(models.slow(tmp_path, loops=100_000_000))
    ticket = engine.ticket()
    stopper = threading.Thread(target=engine.stop, args=(ticket,))

    stopper.start()
    with pytest.raises(Stopped):
        engine.run({"x": X}, ticket)
    stopper.join()

    again = engine.ticket()
    engine.stop(again)
    with pytest.raises(Stopped):
        engine.run({"x": X}, again)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (models.corrupt, "Protobuf parsing failed"),
        (models.unsupported_opset, "the model has opset 9999"),
        (models.unsupported_type, "output 'y' has type seq"),
    ],
)
def test_a_bad_model_is_refused(build: Callable[[Path], Path], reason: str, tmp_path: Path) -> None:
    """A model that cannot be served is refused with a reason that does not contain the replica's
    folder."""
    with pytest.raises(LoadError, match=reason) as caught:
        load(build(tmp_path))

    assert str(tmp_path) not in str(caught.value)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    """A text file and a missing file are refused at load."""
    text = tmp_path / "model.onnx"
    text.write_text("hello")

    with pytest.raises(LoadError, match=r"model\.onnx"):
        load(text)
    with pytest.raises(LoadError, match=r"missing.onnx.*doesn't exist"):
        load(tmp_path / "missing.onnx")


def test_weights_beside_the_model_are_read(tmp_path: Path) -> None:
    """External data in the bundle's folder is loaded."""
    engine = load(models.external(tmp_path, 1))

    assert np.array_equal(engine.run({"x": X}, engine.ticket())["y"], X + 1)


def test_weights_outside_the_folder_are_refused(tmp_path: Path) -> None:
    """A model cannot refer to external data above its own folder."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    path = models.external(folder, 1)
    (folder / "external.bin").rename(tmp_path / "external.bin")
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../external.bin"
    onnx.save(model, path)

    with pytest.raises(LoadError, match="external"):
        load(path)


def test_another_session_takes_over(tmp_path: Path) -> None:
    """After the exchange, runs return the new session's results."""
    engine = load(models.affine(tmp_path, offset=1))
    (tmp_path / "better").mkdir()
    better = load(models.affine(tmp_path / "better", offset=2))
    before = engine.run({"x": X}, engine.ticket())["y"]

    engine.exchange(better, lambda: pytest.fail("nothing runs"))

    assert np.array_equal(before, X + 1)
    assert np.array_equal(engine.run({"x": X}, engine.ticket())["y"], X + 2)
    assert engine.session == "fast"


def test_a_run_ends_with_the_session_it_began_with(tmp_path: Path) -> None:
    """An exchange waits for the current run, which its ticket can still stop, before it drops the
    old session."""
    engine = load(models.slow(tmp_path, loops=100_000_000))
    other = load(models.slow(tmp_path, loops=1))
    ticket = engine.ticket()
    ended: list[Exception] = []

    def run() -> None:
        try:
            engine.run({"x": X}, ticket)
        except Stopped as stopped:
            ended.append(stopped)

    def pause() -> None:
        engine.stop(ticket)
        runner.join(timeout=10)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    while not engine.is_running:
        pass
    engine.exchange(other, pause)

    assert len(ended) == 1
    assert not engine.is_running
    assert np.allclose(engine.run({"x": X}, engine.ticket())["y"], X)


def test_another_model_never_takes_over(tmp_path: Path) -> None:
    """A session with other inputs is refused, and the engine keeps its own."""
    engine = load(models.add_one(tmp_path))

    with pytest.raises(LoadError, match="not those of the serving model"):
        engine.exchange(load(models.two_inputs(tmp_path)), lambda: None)

    assert engine.session == "original"
    assert np.array_equal(engine.run({"x": X}, engine.ticket())["y"], X + 1)


def test_bound_and_plain_runs_agree(tmp_path: Path) -> None:
    """A bound run returns every output by name, for any memory layout of an input."""
    session = open_session(str(models.two_inputs(tmp_path)), "cpu", 1)
    turned = np.asfortranarray(X)

    got = run_bound(session, "cpu", ["sum", "difference"], {"a": X, "b": turned}, ort.RunOptions())

    assert list(got) == ["sum", "difference"]
    assert np.array_equal(got["sum"], X + X)
    assert np.array_equal(got["difference"], np.zeros_like(X))


@pytest.mark.parametrize("dtype", ["BOOL", "INT64", "FP16", "FP32", "UINT8"])
def test_numbers_of_every_kind_are_bound(dtype: str, tmp_path: Path) -> None:
    """Every NumPy numeric type passes unchanged."""
    session = open_session(str(models.every_dtype(tmp_path, dtype)), "cpu", 1)
    [value] = session.get_inputs()
    names = {"bool": np.bool_, "int64": np.int64, "float16": np.float16, "uint8": np.uint8}
    kind = names.get(value.type.removeprefix("tensor(").rstrip(")"), np.float32)
    given = np.ones((2, 4), kind)

    [got] = run_bound(session, "cpu", ["y"], {"x": given}, ort.RunOptions()).values()

    assert got.shape == given.shape


def test_text_runs_without_being_bound(tmp_path: Path) -> None:
    """Strings are run without binding, because they have no fixed memory."""
    session = open_session(str(models.strings(tmp_path)), "cpu", 1)
    [value] = session.get_inputs()
    [output] = session.get_outputs()
    words = np.array(["a", "b"], dtype=object)

    got = run_bound(session, "cpu", [output.name], {value.name: words}, ort.RunOptions())

    assert list(got) == [output.name]


def test_a_bound_run_can_be_stopped(tmp_path: Path) -> None:
    """A bound run obeys a stop request."""
    session = open_session(str(models.slow(tmp_path, loops=100_000_000)), "cpu", 1)
    options = ort.RunOptions()
    options.terminate = True

    with pytest.raises(Exception, match="terminate"):
        run_bound(session, "cpu", ["y"], {"x": X}, options)


GROWTH = """
import sys
from pathlib import Path
from runtime_image.engines.onnx import open_session, warm_up

def data_kb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmData"))

warm_up("cpu")
before = data_kb()
session = open_session(sys.argv[1], "cpu", 1, optimise=False, prepack=False)
print(data_kb() - before)
"""
"""Prints the growth in KiB of the process's writable private mappings when a session is made."""


def test_the_least_model_is_one() -> None:
    """The smallest model is valid, has a single Identity node, and serves as warm-up."""
    model = onnx.load_from_string(IDENTITY)

    onnx.checker.check_model(model, full_check=True)
    warm_up("cpu")

    assert [node.op_type for node in model.graph.node] == ["Identity"]
    assert model.SerializeToString() == IDENTITY


def test_a_session_may_be_made_in_every_way(tmp_path: Path) -> None:
    """All combinations of graph optimisation and weight prepacking give the same answer."""
    path = str(models.affine(tmp_path, scale=2, offset=1))

    for optimise in (True, False):
        for prepack in (True, False):
            session = open_session(path, "cpu", 1, optimise=optimise, prepack=prepack)
            assert np.array_equal(session.run(["y"], {"x": X})[0], 2 * X + 1)


def test_threads_never_spin() -> None:
    """Threads do not spin while idle, and the pool has one thread per allotted core."""
    options = session_options(3)

    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_a_prepared_model_is_not_optimised_again() -> None:
    """Prepared graphs are not optimised again, and mapped weights are not prepacked."""
    quick = session_options(1, optimise=False, prepack=False)
    fast = session_options(1, optimise=False)
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL

    assert quick.graph_optimization_level == fast.graph_optimization_level == level
    assert quick.get_session_config_entry("session.disable_prepacking") == "1"
    with pytest.raises(RuntimeError, match="does not have configuration"):
        fast.get_session_config_entry("session.disable_prepacking")


@pytest.mark.slow
def test_mapped_weights_take_no_private_memory(tmp_path: Path) -> None:
    """Mapped weights add almost nothing to the private memory."""
    prepared.prepare(prepared.layers(tmp_path))

    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(tmp_path / prepared.QUICK)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert int(done.stdout) * 1024 < 1.5 * (tmp_path / prepared.WEIGHTS).stat().st_size


def test_work_is_announced_when_the_threads_are_there(tmp_path: Path) -> None:
    """A thread that lowers its priority before the work starts does not affect the pool's
    threads."""
    path = str(models.add_one(tmp_path))
    own = threading.get_native_id()
    priority = os.getpriority(os.PRIO_PROCESS, own)
    threads_before = set(os.listdir("/proc/self/task"))
    seen: list[dict[str, int]] = []
    kept: list[object] = []

    def step_back() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        new = set(os.listdir("/proc/self/task")) - threads_before
        seen.append({id: os.getpriority(os.PRIO_PROCESS, int(id)) for id in new})

    def build() -> None:
        kept.append(open_session(path, "cpu", 3, before_work=step_back))

    builder = threading.Thread(target=build)
    builder.start()
    builder.join()

    assert sorted(seen[0].values()) == [priority, priority, 19]
    assert kept


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="this onnxruntime can compute on a GPU",
)
def test_a_gpu_is_never_replaced_by_the_cpu(tmp_path: Path) -> None:
    """A CPU-only build refuses a GPU request instead of running on the CPU."""
    with pytest.raises(LoadError, match="device cuda: this onnxruntime has no CUDAExecution"):
        open_session(str(models.add_one(tmp_path)), "cuda", 1)


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
def test_a_session_that_fell_back_to_the_cpu_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime drops a provider that it cannot load and uses the CPU. A build that names the
    provider, on a machine with a driver, must not hide that: in a load, a warm-up or a
    preparation."""
    names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: names)
    monkeypatch.setattr("runtime_image.engines.onnx.check_driver", lambda: None)
    model = models.add_one(tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    for create in (
        lambda: open_session(str(model), "cuda", 1),
        lambda: OnnxEngine(model, device_kind="cuda", threads=1),
        lambda: warm_up("cuda"),
        lambda: write_prepared(model, scratch, "cuda", 1, 2**20),
    ):
        with pytest.raises(LoadError, match="CUDAExecutionProvider could not be used"):
            create()


def test_a_run_never_falls_back_to_the_cpu(tmp_path: Path) -> None:
    """If the provider fails in a run, ONNX Runtime would print a line, go over to the CPU, and
    answer all later runs there; a warm-up on a broken GPU would pass."""
    engine = load(models.add_one(tmp_path))
    session = engine.ordinary

    inner = session._sess

    class Broken:
        def run(self, *_args: object) -> None:
            raise EPFail("CUDA failure 700: an illegal memory access was encountered")

        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

    session._sess = Broken()

    for _ in range(2):
        with pytest.raises(EPFail, match="CUDA failure 700"):
            engine.run({"x": X}, engine.ticket())


def test_a_missing_driver_is_named() -> None:
    """The error names a missing driver library; a present library passes."""
    check_driver("libc.so.6")

    with pytest.raises(LoadError, match=r"no NVIDIA driver here \(libnone.so.1: cannot open"):
        check_driver("libnone.so.1")


MADE = prepared.preparation()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    prepared.prepare(prepared.layers(made))
    (made / "broken.onnx").write_bytes(b"no model")
    return made


def load_prepared(folder: Path, preparation: Preparation | None) -> OnnxEngine:
    return load_model(prepared.spec(preparation), folder, device_kind="cpu", threads=1)


def run(engine: OnnxEngine) -> np.ndarray:
    return np.asarray(engine.run({"x": X}, engine.ticket())["y"])


def test_files_prepared_on_this_machine_are_used(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Files prepared on this machine are used: the quick session serves first, answers like the
    original and is marked for upgrade."""
    original, quick = load_prepared(folder, None), load_prepared(folder, MADE)

    assert (original.session, quick.session) == ("original", "quick")
    assert original.upgrade is None
    assert quick.upgrade is not None
    assert quick.signature == original.signature
    assert np.allclose(run(quick), run(original), atol=1e-5)
    assert capfd.readouterr().out == ""


def test_quick_may_be_the_best_there_is(folder: Path) -> None:
    """Without a fast plan no upgrade is planned."""
    engine = load_prepared(folder, replace(MADE, fast=None))

    assert (engine.session, engine.upgrade) == ("quick", None)


@pytest.mark.parametrize(
    ("preparation", "reason"),
    [
        (
            replace(MADE, key="onnx-0.1/cpu"),
            "the prepared files are for onnx-0.1/cpu, this replica is onnx-",
        ),
        (replace(MADE, quick=SessionPlan("missing.onnx")), "missing.onnx"),
        (replace(MADE, quick=SessionPlan("broken.onnx")), "broken.onnx"),
        (replace(MADE, fast=SessionPlan("nowhere/fast.onnx")), "nowhere"),
    ],
)
def test_unusable_prepared_files_are_ignored(
    folder: Path, preparation: Preparation, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """If prepared files are for another machine, missing or broken, the original serves and one
    line is logged."""
    engine = load_prepared(folder, preparation)

    assert (engine.session, engine.upgrade) == ("original", None)
    assert run(engine).shape == (2, 4)
    [line] = capfd.readouterr().out.splitlines()
    assert line.startswith("fngate: digits@1 is loaded from its original file: ")
    assert reason in line


def test_the_originals_reason_is_the_one_that_counts(folder: Path) -> None:
    """If nothing loads, the error is about the original model file."""
    spec = ModelSpec("digits@1", model="broken.onnx", preparation=replace(MADE, key="other"))

    with pytest.raises(LoadError, match=r"broken\.onnx"):
        load_model(spec, folder, device_kind="cpu", threads=1)


def test_a_models_size_is_that_of_its_folder(tmp_path: Path) -> None:
    """A model's size includes weight files next to the graph, but no subfolders."""
    (tmp_path / "graph.onnx").write_bytes(bytes(2**20))
    (tmp_path / "weights").write_bytes(bytes(2**21))
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "other").write_bytes(bytes(2**20))

    assert size_mib(tmp_path / "graph.onnx") == 3


FIRST = b"processor\t: 0\nvendor_id\t: One\ncpu MHz\t\t: 2596.124\nflags\t\t: fpu avx2\n"
SECOND = b"\nprocessor\t: 1\nvendor_id\t: Two\nflags\t\t: fpu\n"
NVIDIA = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build"
    "  (dvs-builder@U22)  Thu Jan 23 22:50:36 UTC 2025\nGCC version:  gcc 12.3.0\n"
)


def test_the_key_of_this_machine_names_engine_and_processor() -> None:
    """The machine key contains the engine's version and is stable across calls."""
    key = environment_key("cpu")

    version = re.escape(onnxruntime.__version__)
    assert re.fullmatch(rf"onnx-{version}/cpu-\w+-[0-9a-f]{{8}}", key)
    assert environment_key("cpu") == key


def test_the_machine_key_depends_on_instruction_sets_only() -> None:
    """The machine key ignores clock rates and further processors, but not instruction sets."""
    digest = processor_digest(FIRST + SECOND)

    assert processor_digest(FIRST.replace(b"2596.124", b"800.000")) == digest
    assert processor_digest(FIRST.replace(b"avx2", b"avx512f")) != digest
    assert processor_digest(SECOND.lstrip()) != digest
    assert processor_digest(b"") == processor_digest(b"processor\t: 0\n")


def test_the_drivers_release_is_parsed() -> None:
    """The driver's release is that of the kernel module, not the architecture or compiler; or
    unknown."""
    assert driver_version(NVIDIA) == "570.86.15"
    assert driver_version("GCC version: none\n") == "unknown"
    assert driver_version("") == "unknown"


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    reason="this machine may have a GPU",
)
def test_without_a_driver_no_gpu_is_named() -> None:
    """Without a driver no GPU is named."""
    with pytest.raises(LoadError, match="device cuda: "):
        environment_key("cuda")


def test_a_compiled_part_is_run_by_no_ordinary_session(tmp_path: Path) -> None:
    """A model with a compiled part is not loaded, whether it is the original, the optimised or the
    prepared file, and wherever in the graph the part is."""
    whole = models.with_compiled_part(tmp_path)
    branch = onnx.load(models.add_one(tmp_path))
    y = branch.graph.output[0]
    body = onnx.helper.make_graph([models.compiled_node()], "body", [], [y])
    chosen = onnx.helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    true = onnx.helper.make_tensor("c", onnx.TensorProto.BOOL, [], [True])
    branch.graph.initializer.append(true)
    del branch.graph.node[:]
    branch.graph.node.append(chosen)
    branch.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    inside = tmp_path / "inside.onnx"
    inside.write_bytes(branch.SerializeToString())
    key = environment_key("cpu")
    for name in (whole.name, inside.name):
        for spec in (
            ModelSpec("a@1", model=name),
            ModelSpec("a@1", model="add_one.onnx", optimised=name),
            ModelSpec("a@1", model=name, preparation=Preparation(key, SessionPlan(name))),
        ):
            with pytest.raises(LoadError, match="EPContext"):
                load_model(spec, tmp_path, device_kind="cpu", threads=1)
