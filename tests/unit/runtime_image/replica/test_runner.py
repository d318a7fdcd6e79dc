"""Decode, join, run, split and encode, with real models."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from sys import modules, path
from typing import Any

import pytest

from runtime_image.contract.errors import BAD_INPUT, RequestError
from runtime_image.contract.link import NotStarted
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.engines.loading import load_engine
from runtime_image.link.meta import RequestMeta
from runtime_image.replica import stages
from runtime_image.replica.intake import Job
from runtime_image.replica.runner import ALONE_ALL_S, ALONE_S, Run, Runner
from runtime_image.replica.stages import Answer, Outcome
from tests.support import compiled as compiling
from tests.support import mixing, models

META = RequestMeta("application/json", "", -1, "")
JSON_RULES = {"x": InputRule("json")}


@pytest.fixture(autouse=True)
def modules_of_one_replica() -> Iterator[None]:
    before = list(path)
    yield
    path[:] = before
    modules.pop("handler", None)


def job(id: int, *values: float, body: bytes = b"", **fields: Any) -> Job:
    """Return a request with one row per value."""
    rows = [[value] * 4 for value in values]
    body = body or json.dumps({"inputs": {"x": rows}}).encode()
    return Job(1, id, META, body, timeout_s=60.0, arrived_s=time.monotonic(), **fields)


class Results:
    """Outcomes emitted by a runner, by job id, and the runs it began."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.runs: list[Run] = []
        self.on_run: Callable[[Run], None] = lambda run: None
        self._going_on: Run | None = None

    def emit(self, job: Job, outcome: Outcome) -> None:
        assert job.id not in self.outcomes, "every job has one outcome"
        self.outcomes[job.id] = outcome

    def watch(self, run: Run | None) -> None:
        assert (run is None) != (self._going_on is None), "begin and end alternate"
        self._going_on = run
        if run is not None:
            self.runs.append(run)
            self.on_run(run)

    def output(self, id: int) -> Any:
        answer = self.outcomes[id]
        assert isinstance(answer, Answer), answer
        return json.loads(answer.body)["outputs"]

    def error(self, id: int) -> tuple[str, str]:
        error = self.outcomes[id]
        assert isinstance(error, RequestError), error
        return error.code, error.message


def runner(folder: Path, **spec: Any) -> Runner:
    made = ModelSpec("digits@1", **{"batch_max": 8, **spec})
    engine = load_engine(made, folder, device_kind="cpu", threads=1)
    return Runner(engine, made, time.monotonic)


def add_one(folder: Path, **spec: Any) -> Runner:
    models.add_one(folder)
    return runner(folder, model="add_one.onnx", **spec)


def handler(folder: Path, body: str) -> Runner:
    (folder / "handler.py").write_text(f"def predict(inputs, ctx):\n    {body}\n")
    return runner(folder, handler="handler.py", inputs=JSON_RULES, batch_max=1)


def test_a_batch_is_one_run(tmp_path: Path) -> None:
    """Requests of several rows are joined; each gets its own rows and the batch's times."""
    results = Results()

    add_one(tmp_path).run([job(1, 1), job(2, 2, 3), job(3, 4)], results.emit, results.watch)

    assert [len(run.jobs) for run in results.runs] == [3]
    assert results.output(1) == {"y": [[2] * 4]}
    assert results.output(2) == {"y": [[3] * 4, [4] * 4]}
    answer = results.outcomes[3]
    assert isinstance(answer, Answer)
    assert (answer.meta.content_type, answer.meta.rows) == ("application/json", 4)
    assert min(answer.meta[1:5]) >= 0


def test_all_answers_of_the_first_run_say_so(tmp_path: Path) -> None:
    """All members of the first run are marked as such; members of later runs are not."""
    runs = add_one(tmp_path)
    results = Results()

    runs.run([job(1, 1.0), job(2, 2.0)], results.emit, results.watch)
    runs.run([job(3, 3.0)], results.emit, results.watch)

    first = [isinstance(one, Answer) and one.is_first for one in results.outcomes.values()]
    assert first == [True, True, False]


def test_a_batch_keeps_to_the_rows_allowed(tmp_path: Path) -> None:
    """More rows than allowed in a batch make several runs."""
    results = Results()

    add_one(tmp_path, batch_max=2).run(
        [job(id, id) for id in range(1, 6)], results.emit, results.watch
    )

    assert [len(run.jobs) for run in results.runs] == [2, 2, 1]
    assert [results.output(id)["y"][0][0] for id in range(1, 6)] == [2, 3, 4, 5, 6]


def test_a_bad_body_fails_alone(tmp_path: Path) -> None:
    """An invalid request is refused before the run and does not affect the other members."""
    results = Results()
    bad = job(2, body=b'{"inputs": {"x": "text"}}')

    add_one(tmp_path).run([job(1, 1), bad, job(3, 3)], results.emit, results.watch)

    assert results.error(2)[0] == "bad_input"
    assert [len(run.jobs) for run in results.runs] == [2]
    assert results.output(3) == {"y": [[4] * 4]}


def test_a_failed_batch_is_repeated_one_by_one(tmp_path: Path) -> None:
    """After a failed batch each request runs alone, and only the request at fault fails."""
    models.fails_on_negative(tmp_path)
    results = Results()

    runner(tmp_path, model="fails_on_negative.onnx").run(
        [job(1, 1), job(2, -1), job(3, 3)], results.emit, results.watch
    )

    assert [len(run.jobs) for run in results.runs] == [3, 1, 1, 1]
    assert results.error(2)[0] == "bad_input"
    assert "out of data bounds" in results.error(2)[1]
    assert (results.output(1), results.output(3)) == ({"y": [[2] * 4]}, {"y": [[4] * 4]})


def compress(folder: Path, reasons: list[str], **spec: Any) -> Runner:
    """A runner of a model that omits rows of -3 and less from its output."""
    mixing.compress(folder)
    made = ModelSpec("digits@1", model="compress.onnx", batch_max=8, **spec)
    engine = load_engine(made, folder, device_kind="cpu", threads=1)
    return Runner(engine, made, time.monotonic, reasons.append)


def test_missing_output_rows_end_batching(tmp_path: Path) -> None:
    """If output rows are missing, no request gets another's row: all run singly from then on, and
    this is reported once."""
    reasons: list[str] = []
    runs, results = compress(tmp_path, reasons), Results()

    runs.run([job(1, 1), job(2, -5), job(3, 3)], results.emit, results.watch)
    runs.run([job(4, 4), job(5, 5)], results.emit, results.watch)

    assert [len(run.jobs) for run in results.runs] == [3, 1, 1, 1, 1, 1]
    assert [results.output(id)["y"] for id in (1, 2, 3)] == [[[1] * 4], [], [[3] * 4]]
    assert reasons == ["output y of a joined run of 3 rows has shape [2, 4]"]
    assert runs.batch_max == 1


def test_groups_made_before_the_end_of_batching_run_singly(tmp_path: Path) -> None:
    """Requests decoded before batching was turned off run singly, too."""
    runs, results = compress(tmp_path, []), Results()

    runs.run([job(1, *[-5] * 7), job(2, 1), job(3, 3), job(4, 4)], results.emit, results.watch)

    assert [len(run.jobs) for run in results.runs] == [2, 1, 1, 1, 1]


@pytest.mark.parametrize("output", ["list(inputs['x'])", "inputs['x'][:1]", "inputs['x'].sum()"])
def test_jobs_that_may_not_rerun_fail(tmp_path: Path, output: str) -> None:
    """Jobs that may not be rerun fail if the joined handler run cannot be split."""
    code = "calls = []\ndef predict(inputs, ctx):\n    calls.append(1)\n"
    (tmp_path / "handler.py").write_text(f"{code}    return {{'y': {output}}}\n")
    rule = InputRule(dtype="FP32", shape=(-1, 4))
    made = runner(tmp_path, handler="handler.py", inputs={"x": rule}, may_rerun=False)
    results = Results()

    made.run([job(1, 1), job(2, 2)], results.emit, results.watch)

    assert [results.error(id)[0] for id in (1, 2)] == ["function_failed"] * 2
    assert "the request may not run again" in results.error(1)[1]
    assert len(modules["handler"].calls) == 1


def pair(id: int, a: int, b: int) -> Job:
    """Return a request of one row with `a` and `b` columns in its two inputs."""
    body = json.dumps({"inputs": {"a": [[1.0] * a], "b": [[1.0] * b]}}).encode()
    return job(id, body=body)


def test_requests_outside_the_proof_run_alone(tmp_path: Path) -> None:
    """Requests whose axes violate an equality assumed by the proof run singly, even if their shapes
    are equal."""
    nodes = "most = ReduceMax <keepdims = 1> (b, last)\n y = Add(a, most)"
    nodes = f"last = Constant <value = int64[1] {{1}}> ()\n {nodes}"
    models.written(tmp_path, "pairs", "(float[n,m] a, float[n,k] b) => (float[n,m] y)", nodes)
    equal_axes = ((("a", 1), ("b", 1)),)
    made, results = runner(tmp_path, model="pairs.onnx", equal_axes=equal_axes), Results()

    jobs = [pair(1, 2, 3), pair(2, 2, 3), pair(3, 2, 2), pair(4, 2, 2)]
    made.run(jobs, results.emit, results.watch)

    assert [[j.id for j in run.jobs] for run in results.runs] == [[1], [2], [3, 4]]
    assert all(isinstance(one, Answer) for one in results.outcomes.values())


@pytest.mark.parametrize("shape", [[0, 4], [1, 0]])
def test_requests_with_an_empty_axis_run_alone(tmp_path: Path, shape: list[int]) -> None:
    """The proof assumes non-empty axes: a request with an empty one is answered, and never
    joined."""
    models.written(tmp_path, "open", "(float[n,m] x) => (float[n,m] y)", "y = Identity(x)")
    made, results = runner(tmp_path, model="open.onnx"), Results()
    body = {"inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": []}]}
    jobs = [job(id, body=json.dumps(body).encode()) for id in (1, 2)]

    made.run(jobs, results.emit, results.watch)

    assert [[j.id for j in run.jobs] for run in results.runs] == [[1], [2]]
    for one in results.outcomes.values():
        assert isinstance(one, Answer)
        output = json.loads(one.body)["outputs"][0]
        assert (output["shape"], output["data"]) == (shape, [])


def parts(id: int, a: int, b: int) -> Job:
    """Return a request with `a` and `b` rows in its two inputs."""
    body = json.dumps({"inputs": {"a": [[1.0]] * a, "b": [[2.0]] * b}}).encode()
    return job(id, body=body)


def test_requests_whose_rows_differ_run_alone(tmp_path: Path) -> None:
    """Inputs may have unrelated first axes: a request that uses this is answered by a run of its
    own, those with equal rows are joined."""
    nodes = "last = ReduceMax <keepdims = 0> (b)\n y = Add(a, last)"
    models.written(tmp_path, "parts", "(float[n,1] a, float[m,1] b) => (float[n,1] y)", nodes)
    made, results = runner(tmp_path, model="parts.onnx"), Results()

    jobs = [parts(1, 1, 1), parts(2, 3, 2), parts(3, 3, 2), parts(4, 2, 2)]
    made.run(jobs, results.emit, results.watch)

    assert sorted([j.id for j in run.jobs] for run in results.runs) == [[1, 4], [2], [3]]
    rows = {}
    for id, one in results.outcomes.items():
        assert isinstance(one, Answer)
        rows[id] = json.loads(one.body)["outputs"]["y"]
    assert rows == {1: [[3.0]], 2: [[3.0]] * 3, 3: [[3.0]] * 3, 4: [[3.0]] * 2}


def test_rows_that_the_model_cannot_take_are_the_clients_fault(tmp_path: Path) -> None:
    """If a run of inputs with different rows fails, the refusal names both and the engine's
    reason."""
    inputs = "(float[n,1] a, float[n,1] b) => (float[n,1] y)"
    models.written(tmp_path, "parts", inputs, "y = Add(a, b)")
    made, results = runner(tmp_path, model="parts.onnx"), Results()

    made.run([parts(1, 2, 3)], results.emit, results.watch)

    code, text = results.error(1)
    assert code == "bad_input"
    assert text.startswith("input 'b': expected 2 rows like input 'a', got 3 rows; the run failed:")


def test_a_batch_out_of_time_is_repeated_one_by_one(tmp_path: Path) -> None:
    """After a stopped batch its members rerun alone. The late request gets ALONE_S and is then
    handed back, so that its time starts anew."""
    models.slow(tmp_path, loops=2)
    slow = runner(tmp_path, model="slow.onnx")
    results = Results()
    results.on_run = lambda run: slow.stop(run, "timeout") if run.jobs[0].id == 1 else None

    slow.run([job(1, 1), job(2, 2)], results.emit, results.watch)

    assert [[j.id for j in run.jobs] for run in results.runs] == [[1, 2], [1], [2]]
    assert [run.timeout_s for run in results.runs[:2]] == [60.0, ALONE_S]
    assert results.outcomes[1] is NotStarted.BATCH_TIMEOUT
    assert results.output(2) == {"y": [[2] * 4]}


def test_a_request_that_had_all_its_time_times_out(tmp_path: Path) -> None:
    """A late request whose timeout is shorter than ALONE_S times out instead of being handed
    back."""
    models.slow(tmp_path, loops=2)
    slow = runner(tmp_path, model="slow.onnx")
    results = Results()
    results.on_run = lambda run: slow.stop(run, "timeout") if run.jobs[0].id == 1 else None
    jobs = [job(1, 1), job(2, 2)]
    for one in jobs:
        one.timeout_s = 0.5

    slow.run(jobs, results.emit, results.watch)

    text = "the run was stopped after its timeout of 0.5 s"
    assert results.error(1) == ("execution_timeout", text)
    assert results.output(2) == {"y": [[2] * 4]}


def test_reruns_without_time_are_handed_back(tmp_path: Path) -> None:
    """Reruns end before the gateway's patience does; the remaining requests are handed back."""
    models.slow(tmp_path, loops=2)
    now = [0.0]
    made = ModelSpec("digits@1", model="slow.onnx", batch_max=8)
    engine = load_engine(made, tmp_path, device_kind="cpu", threads=1)
    slow, results = Runner(engine, made, lambda: now[0]), Results()

    def on_run(run: Run) -> None:
        if run.jobs[0].id == 1:
            now[0] += ALONE_ALL_S - 0.25
            slow.stop(run, "timeout")

    results.on_run = on_run

    slow.run([job(1, 1), job(2, 2), job(3, 3)], results.emit, results.watch)
    results.on_run = lambda run: None

    assert [run.timeout_s for run in results.runs] == [60.0, ALONE_S, 0.25, 0.25]
    assert results.outcomes[1] is NotStarted.BATCH_TIMEOUT
    assert results.output(2) == {"y": [[2] * 4]}


def test_without_time_left_nothing_is_repeated(tmp_path: Path) -> None:
    """Requests after the last permitted moment are handed back without a run."""
    models.slow(tmp_path, loops=2)
    now = [0.0]
    made = ModelSpec("digits@1", model="slow.onnx", batch_max=8)
    engine = load_engine(made, tmp_path, device_kind="cpu", threads=1)
    slow, results = Runner(engine, made, lambda: now[0]), Results()

    def on_run(run: Run) -> None:
        now[0] += ALONE_ALL_S
        slow.stop(run, "timeout")

    results.on_run = on_run

    slow.run([job(1, 1), job(2, 2)], results.emit, results.watch)

    assert [[j.id for j in run.jobs] for run in results.runs] == [[1, 2], [1]]
    assert results.outcomes == {1: NotStarted.BATCH_TIMEOUT, 2: NotStarted.BATCH_TIMEOUT}


def test_a_cancelled_job_is_left_out(tmp_path: Path) -> None:
    """A cancelled job gets no answer and takes no part in the run."""
    results = Results()

    add_one(tmp_path).run([job(1, 1, cancelled=True), job(2, 2)], results.emit, results.watch)

    assert results.outcomes[1] is None
    assert [[j.id for j in run.jobs] for run in results.runs] == [[2]]


def test_cancelled_jobs_make_no_run(tmp_path: Path) -> None:
    """Jobs cancelled between decoding and running make no run."""
    results = Results()
    one, two = job(1, 1), job(2, 2)
    # With one row per run, the second job is cancelled while the first runs.
    results.on_run = lambda run: setattr(two, "cancelled", True)

    add_one(tmp_path, batch_max=1).run([one, two], results.emit, results.watch)

    assert len(results.runs) == 1
    assert results.outcomes[2] is None


def test_a_stopped_run_of_a_cancelled_job_has_no_answer(tmp_path: Path) -> None:
    """A run stopped because its only job was cancelled produces no failure."""
    models.slow(tmp_path, loops=2)
    slow = runner(tmp_path, model="slow.onnx")
    results = Results()
    results.on_run = lambda run: slow.stop(run, "cancelled")

    slow.run([job(1, 1)], results.emit, results.watch)

    assert results.outcomes == {1: None}


def test_a_runs_timeout_is_its_shortest(tmp_path: Path) -> None:
    """A joined run has the shortest timeout of its members."""
    jobs = [job(1, 1), job(2, 2)]
    jobs[1].timeout_s = 0.5

    assert Run(jobs, None, 0.0).timeout_s == 0.5


PLACE = " (handler.py:2 in predict)"
UNSHOWN = "an exception of type <class 'handler.E'> that cannot be shown"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('w')", f"KeyError: 'w'{PLACE}"),
        ("raise SystemExit(3)", f"SystemExit: 3{PLACE}"),
        ("raise KeyboardInterrupt", f"KeyboardInterrupt{PLACE}"),
        ("raise GeneratorExit", f"GeneratorExit{PLACE}"),
        ("raise type('E', (Exception,), {'__str__': lambda _: 1 / 0})", f"{UNSHOWN}{PLACE}"),
        ("return 5", "TypeError: predict must return a dict of outputs, got int"),
    ],
)
def test_a_handler_may_raise_anything(tmp_path: Path, body: str, message: str) -> None:
    """Any exception from a handler is function_failed, with type, text and line."""
    results = Results()

    handler(tmp_path, body).run([job(1, 1)], results.emit, results.watch)

    assert results.error(1) == ("function_failed", message)


@pytest.mark.parametrize(
    "outputs",
    [
        "object()",
        "type('A', (ndarray,), {'tolist': lambda _: (_ for _ in ()).throw(SystemExit(0))})(3)",
        "type('T', (str,), {'encode': lambda *_: (_ for _ in ()).throw(GeneratorExit)})('a')",
    ],
)
def test_outputs_that_cannot_be_written_are_a_failure(tmp_path: Path, outputs: str) -> None:
    """An output without a JSON form, or with methods that raise, fails one answer only."""
    results = Results()

    body = f"from numpy import ndarray; return {{'y': {outputs}}}"
    handler(tmp_path, body).run([job(1, 1)], results.emit, results.watch)

    assert results.error(1)[0] == "function_failed"


def test_an_answer_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoded answer over the limit is refused with both sizes."""
    monkeypatch.setattr(stages, "ANSWER_MAX", 10)
    results = Results()

    add_one(tmp_path).run([job(1, 1)], results.emit, results.watch)

    code, message = results.error(1)
    assert code == "answer_too_large"
    assert message.endswith("at most 10 are allowed")


def kept(folder: Path, body: bytes | memoryview, **rules: InputRule) -> Any:
    """Return a handler's input after the job is over."""
    (folder / "handler.py").write_text(
        "kept = []\ndef predict(inputs, ctx):\n    kept.append(inputs)\n    return {}\n"
    )
    run = runner(folder, handler="handler.py", inputs=rules, batch_max=1)
    meta = RequestMeta("application/octet-stream", "", -1, "")
    results = Results()
    run.run([Job(1, 1, meta, body, 60.0, time.monotonic())], results.emit, results.watch)
    assert isinstance(results.outcomes[1], Answer), results.outcomes
    return modules["handler"].kept[0]["x"]


@pytest.mark.parametrize("is_tensor", [True, False])
def test_a_handler_may_keep_inputs_from_shared_memory(tmp_path: Path, is_tensor: bool) -> None:
    """A handler's inputs stay unchanged when their place in shared memory is reused."""
    shared = bytearray(b"mine")
    rule = InputRule("bytes", dtype="UINT8", shape=(-1, -1)) if is_tensor else InputRule("bytes")

    found = kept(tmp_path, memoryview(shared).toreadonly(), x=rule)
    shared[:] = b"your"

    assert bytes(found) == b"mine"


def test_a_model_reads_shared_memory_where_it_lies(tmp_path: Path) -> None:
    """A model reads its inputs in place, because it keeps no reference to them."""
    made = add_one(tmp_path)
    body = memoryview(bytearray(b"x")).toreadonly()

    assert made._decoder._body(Job(1, 1, META, body, 60.0, 0.0)).obj is body.obj


def test_a_handler_gets_a_trace_of_its_batch(tmp_path: Path) -> None:
    """A handler gets the trace of the first request that has one, "" if none has."""
    results = Results()
    made = handler(tmp_path, "return {'y': ctx.traceparent}")
    traced = job(2, 1)
    traced.meta = META._replace(traceparent="00-a-b-01")
    made.run([traced, job(3, 1)], results.emit, results.watch)

    assert [results.output(id) for id in (2, 3)] == [{"y": "00-a-b-01"}, {"y": ""}]


class _Clocked:
    """An engine whose runs take a set time on a manual clock."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.now = 100.0
        self.seen: list[float] = []
        self.look: Callable[[], float] = lambda: 0.0
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, inputs: Any, ticket: Any) -> Any:
        self.now += 1.5
        self.seen.append(self.look())
        self.now += 0.5
        if self.fails:
            raise ValueError("no")
        return self._engine.run(inputs, ticket)


def test_the_time_of_runs_is_added_up(tmp_path: Path) -> None:
    """Run time is summed over finished, failed and current runs, without the time between them."""
    models.add_one(tmp_path)
    spec = ModelSpec("digits@1", model="add_one.onnx")
    engine = _Clocked(load_engine(spec, tmp_path, device_kind="cpu", threads=1))
    made, results = Runner(engine, spec, lambda: engine.now), Results()
    engine.look = made.busy_s

    before = made.busy_s()
    made.run([job(1, 1.0)], results.emit, results.watch)
    engine.now += 60.0
    engine.fails = True
    made.run([job(2, 1.0)], results.emit, results.watch)
    engine.now += 60.0

    assert (before, engine.seen, made.busy_s()) == (0.0, [1.5, 3.5], 4.0)
    assert results.error(2)[0] == "function_failed"


def compiled_runner(folder: Path, **spec: Any) -> Runner:
    """Return a runner of a model compiled for up to 8 rows."""
    wanted = compiling.spec(models.add_one(folder), batch_max=16)
    compiled = compiling.compile_in(folder, wanted)
    made = replace(compiling.serving(wanted, compiled), **spec)
    engine = load_engine(made, folder, device_kind="cpu", threads=1)
    assert engine.session == "compiled"
    return Runner(engine, made, time.monotonic)


def test_a_request_outside_the_ranges_is_the_callers_error(tmp_path: Path) -> None:
    """It fails with a reason that names the ranges; requests beside it run."""
    runs = compiled_runner(tmp_path)
    runs.limit_rows(8)
    results = Results()

    runs.run([job(1, 1), job(2, *[2] * 9), job(3, 3)], results.emit, results.watch)

    assert [len(run.jobs) for run in results.runs] == [1, 1, 1]
    assert results.output(1) == {"y": [[2] * 4]}
    assert results.output(3) == {"y": [[4] * 4]}
    assert results.error(2) == (
        BAD_INPUT,
        "input x: this model is compiled for a shape from [1, 4] to [8, 4], got [9, 4]",
    )


def test_joined_rows_end_with_the_ranges(tmp_path: Path) -> None:
    """A limit makes batches smaller, from the next run on, and never larger again."""
    runs = compiled_runner(tmp_path)
    runs.limit_rows(8)
    runs.limit_rows(100)
    results = Results()

    runs.run([job(id, 1, 1, 1) for id in range(5)], results.emit, results.watch)

    assert [len(run.jobs) for run in results.runs] == [2, 2, 1]
    assert all(results.output(id) == {"y": [[2] * 4] * 3} for id in range(5))


def test_a_batch_joined_before_the_limit_is_run_in_parts(tmp_path: Path) -> None:
    """A session may be exchanged between the grouping and the run: then each request runs alone,
    and only one that is outside by itself fails."""
    runs = compiled_runner(tmp_path)
    results = Results()

    runs.run([job(1, *[1] * 5), job(2, *[2] * 5)], results.emit, results.watch)

    assert [len(run.jobs) for run in results.runs] == [2, 1, 1]
    assert results.output(1) == {"y": [[2] * 4] * 5}
    assert results.output(2) == {"y": [[3] * 4] * 5}


def test_a_handlers_model_outside_the_ranges_is_the_callers_error(tmp_path: Path) -> None:
    """A handler passes its caller's rows on; the reason reaches the caller unless it is caught."""
    (tmp_path / "handler.py").write_text("def predict(inputs, ctx): return ctx.run(inputs)\n")
    results = Results()

    compiled_runner(tmp_path, handler="handler.py", batch_max=1).run(
        [job(1, *[1] * 9)], results.emit, results.watch
    )

    assert results.error(1)[0] == BAD_INPUT
