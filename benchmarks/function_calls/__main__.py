"""Calls of Python functions, as ratios to other servers.

`python -m benchmarks.function_calls [warm] [zero] [stream] [torch] [--field]`, without names the
first three. `--field` installs FastAPI, LitServe and BentoML into environments of their own in the
temporary folder. `torch` needs a uv.toml that leads to torch: `--uv-config FILE`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.function_calls import product, programs
from benchmarks.function_calls.servers import Program, Server, field_programs, own_programs
from benchmarks.measuring.record import Case, Figures, Record, interleaved
from benchmarks.measuring.report import Part, compare
from benchmarks.measuring.setting import Setting, about

REFERENCE: Final = "uvicorn, raw ASGI"
CONNECTIONS: Final = (1, 16)
CPU_1: Final = "CPU us, 1 open"
WARM: Final = {
    CPU_1: {
        "fngate async def": "ratio 0.8 at most",
        "fngate async def, named": "ratio 0.8 at most",
        "fngate def": "ratio 1.1 at most",
    }
}


def warm(given: argparse.Namespace, known: dict[str, Program], folder: Path) -> list[Part]:
    """Return CPU and time of warm calls."""
    with ExitStack() as stack:
        cases: dict[str, Case] = {}
        for name, program in known.items():
            server = Server(program, folder)
            stack.callback(server.close)
            server.first_answer_ms()
            server.warm(CONNECTIONS[-1], 500)
            cases[name] = partial(_warm, server, given.calls)
        record = interleaved(cases, given.rounds)
    return [*compare(record, REFERENCE, targets=WARM)]


def _warm(server: Server, calls: int) -> Figures:
    found: dict[str, float] = {}
    for connections in CONNECTIONS:
        found |= server.warm(connections, calls)
    return found


def zero(given: argparse.Namespace, known: dict[str, Program], folder: Path) -> list[Part]:
    """Return the time from nothing to the first answer: of a process, and of a function that
    sleeps in a server."""
    greet = product.function(folder, "greet", programs.HANDLERS["fngate def"])
    with product.served(folder) as running:
        product.deploy(running, greet)
        cases: dict[str, Case] = {
            "fngate, cold call of /fn/NAME": lambda: {"ms": product.cold_ms(running, greet.name)}
        }
        cases |= {
            name.replace("fngate", "fngate's runner,"): partial(_started, program, folder)
            for name, program in known.items()
        }
        record = interleaved(cases, given.rounds)
    return [*compare(record, REFERENCE)]


def _started(program: Program, folder: Path) -> Figures:
    server = Server(program, folder)
    try:
        return {"ms": server.first_answer_ms()}
    finally:
        server.close()


def stream(given: argparse.Namespace, _known: object, folder: Path) -> list[Part]:
    """Return the time to the first chunk of a warm stream, beside a whole unary call.

    Of a runner alone, client and runner have a core each: what the runner does behind the first
    chunk would else hold up the client, where the kernel wakes it beside the runner.
    """
    measured, others = Setting(rounds=given.rounds).cores
    record: dict[str, Record] = {}
    with product.served(folder) as running, ExitStack() as stack:
        pairs: dict[str, list[product.Caller]] = {}
        for kind, handler in product.STREAMS.items():
            name = kind.replace(" ", "-")
            for each, text in ((f"{name}-unary", product.UNARY[kind]), (f"{name}-stream", handler)):
                path = product.function(folder, each, text)
                product.deploy(running, path)
                port = stack.enter_context(product.runner(folder, each, text, measured))
                for way, caller in (
                    ("runner", product.Caller(port, "/")),
                    ("/fn/NAME", product.Caller(running.port, f"/fn/{each}", running.key)),
                ):
                    stack.callback(caller.close)
                    caller.whole_us()
                    pairs.setdefault(f"{kind}, {way}", []).append(caller)
        for _ in range(given.rounds):
            for what, (unary, chunk) in pairs.items():
                with product.pinned(others) if what.endswith("runner") else nullcontext():
                    us = product.first_chunk_us(unary, chunk, max(given.calls // 10, 50))
                one = record.setdefault(what, Record())
                one.add("unary call", {"us": us[0]})
                one.add("first chunk", {"us": us[1]})
    wanted = {"us": {"first chunk": "ratio 1.3 at most"}}
    return [
        part
        for what, one in record.items()
        for part in compare(one, "unary call", targets=wanted, title=what)
    ]


def torch(given: argparse.Namespace, _known: object, folder: Path) -> list[Part]:
    """Return the time of a cold call of a function of PyTorch, beside a process that imports it."""
    script = folder / "alone.py"
    script.write_text(product.TORCH_ALONE)
    path = product.function(folder, "torch-greet", product.TORCH, f"{given.torch}\n")
    with product.served(folder, str(given.uv_config.resolve())) as running:
        product.deploy(running, path)
        packages = product.torch_folder(running)
        alone = partial(product.alone_ms, script, packages)
        cases: dict[str, Case] = {
            "python -c 'import torch'": lambda: {"ms": alone()},
            "the same with load and predict": lambda: {"ms": alone("load")},
            "cold call of /fn/NAME": lambda: {"ms": product.cold_ms(running, path.name)},
        }
        interleaved(cases, 1)
        record = interleaved(cases, given.rounds)
    wanted = {"ms": {"cold call of /fn/NAME": "ratio 1.05 at most"}}
    return [*compare(record, "python -c 'import torch'", targets=wanted)]


PARTS: Final[dict[str, Callable[[argparse.Namespace, dict[str, Program], Path], list[Part]]]] = {
    "warm": warm,
    "zero": zero,
    "stream": stream,
    "torch": torch,
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.function_calls")
    parser.add_argument("names", nargs="*", choices=[*PARTS, []], metavar="|".join(PARTS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=4000, help="warm calls in a round")
    parser.add_argument("--field", action="store_true", help="FastAPI, LitServe and BentoML, too")
    parser.add_argument("--uv-config", type=Path, help="a uv.toml that leads to torch")
    parser.add_argument("--torch", default="torch", help="its requirement (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    given = parser.parse_args()
    names = given.names or ["warm", "zero", "stream"]
    if "torch" in names and given.uv_config is None:
        parser.error("torch: expected --uv-config FILE")
    report: dict[str, Any] = {**about(), "rounds": given.rounds}
    with tempfile.TemporaryDirectory(prefix="fn-") as folder:
        left_out: dict[str, str] = {}
        known = own_programs(Path(folder))
        if given.field:
            known |= field_programs(Path(folder), left_out)
        for name, reason in left_out.items():
            print(f"left out: {name}: {reason}", flush=True)
        for name in names:
            parts = PARTS[name](given, known, Path(folder))
            print(f"## {name}\n")
            for part in parts:
                print("\n".join(part.lines()) + "\n", flush=True)
            print(f"load average {product.load_average():.1f}\n", flush=True)
            report[name] = [part.to_json() for part in parts]
            if given.json:
                given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
