"""Calls of the Open Inference Protocol, beside MLServer, PyTriton and the least in Python."""

from __future__ import annotations

import json
import struct
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.gateway import gateway
from benchmarks.loaded import P50, RATE
from benchmarks.loading import generator, grpc_calls
from benchmarks.loading.call import Call, Load, Loaded
from benchmarks.loading.grpc_calls import Calls
from benchmarks.measuring.processes import cpu_ms, pin
from benchmarks.measuring.record import Case, Figures, interleaved
from benchmarks.measuring.report import Note, Part, compare
from benchmarks.measuring.setting import Setting, has_setting
from benchmarks.references import v2_servers

MODEL = Path("functions/digits/digits.onnx")
NAME = "digits"
PATH = f"/v2/models/{NAME}/infer"
SHAPE = (1, 8, 8)
VALUES = [(at * 7 % 64) / 64 for at in range(64)]
RAW = struct.pack("<64f", *VALUES)
CONNECTIONS = (1, 16, 64)
CALL_US = "us of CPU per call, all processes"
PER_CPU_S = "calls per CPU second, all processes"
FNGATE, BARE, PYTRITON = "fngate", "bare Python", "PyTriton"
MLSERVER, MLSERVER_AS_IS = "MLServer, models in its process", "MLServer, one process for models"
"""The first has `parallel_workers: 0`, which costs less here; the second its default, 1."""
WANTED = {"REST": "ratio >= 10", "gRPC": "ratio >= 3"}
JSON_FORM, BINARY_FORM = "JSON", "binary"

Make = Callable[[int, float], Loaded]
"""Makes a load with so many connections for so many seconds."""


@dataclass(frozen=True)
class Subject:
    """One form of one system's calls."""

    api: str
    case: str
    pids: Sequence[int]
    make: Make

    def measured(self, connections: int, seconds: float) -> Figures:
        """Make a load, and return its figures."""
        before = cpu_ms(self.pids)
        loaded = self.make(connections, seconds)
        used_us = (cpu_ms(self.pids) - before) * 1e3 / loaded.requests
        costs = {CALL_US: used_us, PER_CPU_S: 1e6 / used_us}
        return {**costs, RATE: loaded.per_s, P50: loaded.p50_ms}


def measure(setting: Setting) -> list[Part]:
    """CPU time of all processes per call, rates, and the duration of a call at c=1."""
    with ExitStack() as stack:
        subjects = [*_fngate(stack, setting), *_bare(stack, setting)]
        notes: list[Part] = []
        for start in (_mlserver, _mlserver_as_is, _pytriton):
            try:
                subjects += start(stack, setting)
            except RuntimeError as error:
                notes.append(Note(f"left out: {start.__name__.strip('_')}: {error}"))
        parts: list[Part] = []
        for connections in CONNECTIONS[:1] if setting.quick else CONNECTIONS:
            parts += _compared(subjects, connections, setting)
    return [*parts, *notes]


def _compared(subjects: Sequence[Subject], connections: int, setting: Setting) -> list[Part]:
    cases: dict[str, Case] = {
        _case(one): partial(one.measured, connections, setting.load_s) for one in subjects
    }
    record = interleaved(cases, setting.rounds)
    metrics = (PER_CPU_S, CALL_US, RATE, *((P50,) if connections == 1 else ()))
    parts: list[Part] = []
    for api, wanted in WANTED.items():
        names = [_case(one) for one in subjects if one.api == api]
        references = [name for name in names if MLSERVER in name] or names[:1]
        targets = {PER_CPU_S: {name: wanted for name in names if name.startswith(FNGATE)}}
        parts += compare(
            *(record.only(*metrics), references[0]),
            cases=names,
            targets=targets,
            title=f"{api}, c={connections}",
        )
    return parts


def _case(one: Subject) -> str:
    return f"{one.case}, {one.api}"


def _fngate(stack: ExitStack, setting: Setting) -> list[Subject]:
    """Deploy the model to a new server with both ports, and warm it up."""
    grpc_port = v2_servers.free_port()
    environment = {"FN_STANDBYS": "0", "FN_WORKERS": "1"}
    options = ("--grpc-port", str(grpc_port)) if has_setting("grpc_port") else ()
    ours = stack.enter_context(gateway(*options, environment=environment))
    ours.server.fnctl_json("deploy", str(MODEL), "--name", NAME, "--min", "1")
    headers = {"Authorization": f"Bearer {ours.key}"}
    ports = (ours.port, grpc_port if options else 0)
    for call in _rest(ours.port, headers).values():
        _checked(call)
    ours.pin(setting)
    pids = [*ours.pids, *ours.server.replica_pids()]
    return _subjects(FNGATE, ports, pids, setting, headers)


def _bare(stack: ExitStack, setting: Setting) -> list[Subject]:
    rest = stack.enter_context(v2_servers.bare("rest", MODEL.resolve()))
    remote = stack.enter_context(v2_servers.bare("grpc", MODEL.resolve()))
    for server in (rest, remote):
        server.pin(setting.cores[0])
    found = _subjects(BARE, (rest.port, 0), rest.pids, setting)
    return found + _subjects(BARE, (0, remote.port), remote.pids, setting)


def _mlserver(stack: ExitStack, setting: Setting, workers: int = 0) -> list[Subject]:
    server = stack.enter_context(v2_servers.mlserver(MODEL.resolve(), workers=workers))
    case = MLSERVER_AS_IS if workers else MLSERVER
    return _subjects(case, (server.rest, server.grpc), _pinned(server, setting), setting)


def _mlserver_as_is(stack: ExitStack, setting: Setting) -> list[Subject]:
    return _mlserver(stack, setting, workers=1)


def _pytriton(stack: ExitStack, setting: Setting) -> list[Subject]:
    server = stack.enter_context(v2_servers.pytriton(MODEL.resolve()))
    return _subjects(PYTRITON, (server.rest, server.grpc), _pinned(server, setting), setting)


def _pinned(server: v2_servers.Pair, setting: Setting) -> list[int]:
    """Pin the front to the measured core, and processes behind it to the others, as fngate's."""
    front, *behind = server.pids
    pin([front], setting.cores[0])
    pin(behind, setting.cores[1])
    return [front, *behind]


def _subjects(
    case: str,
    ports: tuple[int, int],
    pids: Sequence[int],
    setting: Setting,
    headers: dict[str, str] | None = None,
) -> list[Subject]:
    """Return the forms that a server on these ports answers."""
    rest, remote = ports
    others = setting.cores[1]
    found = []
    for form, call in _rest(rest, headers or {}).items() if rest else ():
        if form == BINARY_FORM and case in (MLSERVER, MLSERVER_AS_IS):
            continue  # it has no binary form
        _checked(call)
        make = partial(_rest_load, call, others)
        found.append(Subject("REST", f"{case}, {form}", pids, make))
    if remote:
        message = grpc_calls.infer_request(NAME, "image", SHAPE, "FP32", RAW).hex()
        metadata = {name.lower(): value for name, value in (headers or {}).items()}
        plan = partial(Calls, remote, message, metadata=metadata)
        make = partial(_grpc_load, plan, others)
        make(1, 0.2)
        found.append(Subject("gRPC", case, pids, make))
    return found


def _rest(port: int, headers: dict[str, str]) -> dict[str, Call]:
    """Return the call in each form; answers have the form of the request."""
    tensor = {"name": "image", "shape": SHAPE, "datatype": "FP32"}
    plain = json.dumps({"inputs": [{**tensor, "data": VALUES}]}).encode()
    sized = {**tensor, "parameters": {"binary_data_size": len(RAW)}}
    head = {"inputs": [sized], "parameters": {"binary_data_output": True}}
    text = json.dumps(head).encode()
    binary = {
        **headers,
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(text)),
    }
    return {
        BINARY_FORM: Call(port, PATH, text + RAW, binary),
        JSON_FORM: Call(port, PATH, plain, headers),
    }


def _checked(call: Call) -> None:
    """Raise RuntimeError unless a call is answered with the right label."""
    url = f"http://127.0.0.1:{call.port}{call.path}"
    heads = {"Content-Type": "application/json", **call.headers}
    with urllib.request.urlopen(urllib.request.Request(url, call.body, heads)) as response:
        answer = response.read()
    if b'"probabilities"' not in answer:
        raise RuntimeError(f"{call.path}: expected an answer, got {answer[:200]!r}")


def _rest_load(call: Call, cores: set[int], connections: int, seconds: float) -> Loaded:
    return generator.run(Load(call, connections, seconds), cores)


def _grpc_load(
    plan: Callable[[int, float], Calls], cores: set[int], connections: int, seconds: float
) -> Loaded:
    return grpc_calls.run(plan(connections, seconds), cores)
