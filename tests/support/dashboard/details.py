"""Simulated details of a function: profile, history, logs, samples, answers, advice.

All values are plausible only. They derive from the function's name, so that a test and a picture
show the same.
"""

from __future__ import annotations

import math
import struct
import zlib
from random import Random
from typing import Any, Final

from tests.support.dashboard import servers

PHASES: Final = {
    "place": 1.2,
    "start": 96.0,
    "import": 41.0,
    "bind": 2.4,
    "read": 11.0,
    "load": 128.0,
    "first_run": 7.5,
}
LABELS: Final = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
IMAGE: Final = {"size": [8, 8], "mode": "L", "layout": "HW"}
AUDIO: Final = {"rate_hz": 16000, "samples": 16000}
MINUTE_S: Final = 60
KINDS: Final = ("tensor", "image", "audio", "bytes", "json")


def kind_of(name: str) -> str:
    """Return the input kind of a function: digits takes images, speech takes audio, the rest by
    name."""
    fixed = {"digits": "image", "speech": "audio", "intents": "json", "faces": "tensor"}
    return fixed.get(name, KINDS[sum(name.encode()) % len(KINDS)])


def detail(line: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return GET /functions/{name}."""
    if line["engine"] == "server":
        return servers.detail(line, origin)
    name, number = line["name"], int(line["revision"].partition("@")[2])
    signature, inputs = takes(kind_of(name))
    has_labels = kind_of(name) in ("image", "audio")
    return {
        **line,
        "limits": {"timeout_s": 60, "wait_s": 55, "queue": 2000, "body_mib": 64, "retry": "auto"},
        "signature": signature,
        "content_types": ["application/json", "application/x-npy"],
        "inputs": inputs,
        "output": {"tensor": "", "labels": LABELS if has_labels else [], "top_k": 3},
        "batching": {"mode": "auto", "max_size": 0, "wait_ms": 0.0},
        "device": {"kind": "any", "memory_mib": 0, "share": 1.0, "count": 1},
        "sample": "manifest" if has_labels else "zeros",
        "precision": precision() if has_labels else None,
        "revisions": [
            revision(name, at, number, signature) for at in range(max(1, number - 3), number + 1)
        ],
        "previous": number - 1 or None,
        "cold_starts": [table_row("cpu", standby=True), table_row("cuda", standby=False)],
        "example": f"curl {origin}/fn/{name} -H 'Content-Type: application/json' -d '{{}}'",
    }


def build(state: str, **fields: Any) -> dict[str, Any]:
    """Return the build of a compiled model, as a function has it."""
    return {
        "state": state,
        "reason": "",
        "began_s": None,
        "estimate_s": 40.0,
        "attempts": 1,
        "elapsed_s": 38.0 if state == "done" else None,
        "compiler": "tensorrt",
        "device_type": "cuda",
        "host": "local",
        "device_model": "NVIDIA H100, sm90",
        "ranges": [
            {"input": "x", "smallest": [1, 8, 8], "usual": [8, 8, 8], "largest": [64, 8, 8]}
        ],
        "outside": "ordinary",
        "form": "context",
        "parity": [
            {
                "output": "probabilities",
                "largest_difference": 0.0,
                "relative_difference": 0.0,
                "cosine": 1.0,
            }
        ],
        "samples": 12,
        "ordinary_ms": {"1": 0.5, "64": 9.0},
        "compiled_ms": {"1": 0.25, "64": 3.0},
        **fields,
    }


REFUSED: Final = (
    "output probabilities column 3: expected an error of at most 2 % of the column's spread, got"
    " 31 % (spread 0.231, bias -0.031, gain 0.69)"
)


def column(error: float) -> dict[str, Any]:
    """Return the worst column of a candidate."""
    return {
        "output": "probabilities",
        "part": "column 3",
        "error": error,
        "error_max": 0.02,
        "spread": 0.231,
        "bias": -error / 10,
        "gain": 1 - error,
    }


def precision() -> dict[str, Any]:
    """Return candidates of other precision: one chosen, one too slow, one that disagrees."""
    rows: list[dict[str, Any]] = [
        {"name": "original", "file_bytes": 224_000, "memory_mib": 61.0, "batchable": True},
        {"name": "fp16", "file_bytes": 113_000, "cosine": 0.9999996, "same_label": 1.0},
        {"name": "int8", "file_bytes": 62_000, "cosine": 0.9991, "same_label": 0.9948},
        {"name": "int8-dynamic", "file_bytes": 61_000, "cosine": 0.962, "same_label": 0.91},
    ]
    for one, error in zip(rows[1:], (0.0004, 0.011, 0.31), strict=True):
        one["column"] = column(error)
    why = ("", "its rows take 4 % longer than the original's", "", REFUSED)
    single = (0.42, 0.43, 0.31, 0.35)
    return {
        "chosen": "int8",
        "candidates": [
            {
                "memory_mib": 48.0,
                "largest_difference": 0.0312,
                "batchable": one["name"] != "int8-dynamic",
                **one,
                "why_not": reason,
                "latency_ms": {"1": ms} if "dynamic" in one["name"] else {"1": ms, "16": 9 * ms},
            }
            for one, reason, ms in zip(rows, why, single, strict=True)
        ],
        "tolerance": 0.01,
        "calibrated": 32,
        "judged": 192,
        "source": "samples",
    }


def takes(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a signature and the [input] lines of function.toml for it."""
    out = [{"name": "probabilities", "dtype": "FP32", "shape": [-1, 10]}]
    if kind == "json":
        return {"kind": "json", "inputs": [], "outputs": []}, {}
    shapes = {"image": [-1, 8, 8], "audio": [-1, 16000], "bytes": [-1, 512], "tensor": [-1, 4]}
    dtype = "UINT8" if kind == "bytes" else "FP32"
    specs = [{"name": "x", "dtype": dtype, "shape": shapes[kind]}]
    if kind == "tensor":
        specs.append({"name": "ids", "dtype": "INT64", "shape": [-1]})
        return {"kind": "tensors", "inputs": specs, "outputs": out}, {}
    forms = {"image": IMAGE, "audio": AUDIO, "bytes": {"length": 512, "pad": 0}}
    rule = {"kind": kind, "finite": kind == "audio", kind: forms[kind]}
    return {"kind": "tensors", "inputs": specs, "outputs": out}, {"x": rule}


def revision(name: str, number: int, current: int, signature: dict[str, Any]) -> dict[str, Any]:
    """Return one revision. Only the current one batches."""
    random = Random(f"{name}@{number}")
    batches = number == current
    one_ms = random.uniform(0.4, 9)
    tried = (1, 2, 4, 8, 16, 32) if batches else (1,)
    latency = {str(rows): round(one_ms * (0.7 + 0.3 * rows), 3) for rows in tried}
    times = {"load_ms": 240.0, "first_ms": 6.0, "cpu_ms": {"1": 8.0}}
    quick = {"load_ms": 3.0, "first_ms": 9.0, "cpu_ms": {"1": 10.0}}
    fixed = "output 'probabilities' has a fixed first axis"
    return {
        "number": number,
        "traffic": number == current,
        "bundle": f"{random.getrandbits(64):016x}",
        "engine": "onnx",
        "model": "model.onnx",
        "handler": "" if number % 3 else "handler.py",
        "size": random.randint(2_000, 400_000_000),
        "created_s": 1_790_000_000.0 + number * 86_400,
        "signature": signature,
        "profile": {
            "device_kind": "cpu",
            "load_ms": round(random.uniform(8, 900), 1),
            "memory_mib": round(random.uniform(40, 3000), 1),
            "latency_ms": latency,
            "batchable": batches,
            "why_not": "" if batches else fixed,
            "batch_max": 16 if batches else 1,
            "profiled": True,
            "note": "",
            "prepared": {"original": times, "quick": quick, "fast": times} if batches else None,
            "why_not_prepared": "" if batches else "it gains less than it costs",
        },
        "batch_max": 16 if batches else 1,
        "batching": "up to 16 rows" if batches else f"off: {fixed}",
    }


def table_row(kind: str, *, standby: bool) -> dict[str, Any]:
    """Return typical cold-start times."""
    known = {p: ms for p, ms in PHASES.items() if not (standby and p in ("start", "import"))}
    pairs = {p: {"p50_ms": ms, "p90_ms": round(ms * 1.8, 2)} for p, ms in known.items()}
    total = sum(known.values())
    return {
        "device_kind": kind,
        "standby": standby,
        "samples": 41 if standby else 7,
        "total": {"p50_ms": round(total, 1), "p90_ms": round(total * 1.6, 1)},
        "phases": pairs,
    }


def why(line: dict[str, Any], now_s: float) -> dict[str, Any]:
    """Return GET /functions/{name}/why."""
    name, number = line["name"], int(line["revision"].partition("@")[2])
    random = Random(name)
    starts = []
    for at in range(6):
        slow = random.uniform(0.5, 2.2)
        phases = {
            phase: round(ms * slow * random.uniform(0.7, 1.3), 2) for phase, ms in PHASES.items()
        }
        failed = at == 3
        starts.append(
            {
                "namespace": "default",
                "name": name,
                "number": number,
                "replica": f"{random.getrandbits(32):08x}",
                "device_kind": "cpu" if at % 2 else "cuda",
                "devices": ["cpu:0"],
                "host": "local",
                "at_s": now_s - 400 * (at + 1) ** 2,
                "total_ms": round(sum(phases.values()), 1),
                "phases": phases,
                "outcome": "failed" if failed else "ready",
            }
        )
    texts = (
        "stop the replica: nobody called for the idle time of 300 s",
        "ready: the first request is served",
        "start a replica on gpu-000: 1 request waits, 0 ready",
    )
    decisions = [
        {"at_s": now_s - 300 * (at + 1), "text": texts[at % 3]} for at in reversed(range(9))
    ]
    return {
        "state": line["state"],
        "reason": line["reason"],
        "blocked": "",
        "since_s": line["since_s"],
        "decisions": decisions,
        "cold_starts": starts,
        "intervals": [],
        **(servers.connected(line["state"], now_s) if line["engine"] == "server" else {}),
    }


def errors(line: dict[str, Any], now_s: float) -> list[dict[str, Any]]:
    """Return GET /functions/{name}/errors."""
    told = (
        ("execution_timeout", "the run took longer than 60 s and was ended", 3),
        ("replica_died", "replica 1f00c2aa was killed by SIGKILL while it ran the request", 1),
    )
    return [
        {
            "at_s": now_s - 700 * (at + 1),
            "code": code,
            "detail": text,
            "revision": line["revision"],
            "replica": "1f00c2aa",
            "request_id": f"req-{at}",
            "count": count,
        }
        for at, (code, text, count) in enumerate(told)
    ]


def sample(name: str) -> tuple[str, bytes]:
    """Return GET /functions/{name}/sample: content type and body."""
    kind = kind_of(name)
    if kind == "image":
        return "image/png", picture()
    if kind == "bytes":
        return "application/octet-stream", bytes(range(200))
    zeros = {"x": [[0.0, 0.0, 0.0, 0.0]], "ids": [0]} if kind == "tensor" else {}
    return "application/json", repr({"inputs": zeros}).replace("'", '"').encode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def picture() -> bytes:
    """Return a greyscale PNG of 8 x 8 pixels that resembles a seven."""
    rows = (0x00, 0x7E, 0x06, 0x0C, 0x18, 0x18, 0x18, 0x00)
    pixels = b"".join(
        b"\0" + bytes(255 if row >> (7 - at) & 1 else 20 for at in range(8)) for row in rows
    )
    head = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def buckets(hours: int, now_s: float) -> tuple[float, float, int]:
    """Return begin, end and length of the buckets of the last hours."""
    bucket_s = MINUTE_S if hours == 1 else 600
    to_s = math.floor(now_s / bucket_s + 1) * bucket_s
    return float(to_s - hours * 3600), float(to_s), bucket_s


def use(name: str, hours: int, now_s: float) -> list[dict[str, Any]]:
    """Return device-seconds per bucket of a function that wakes, works, idles and sleeps."""
    from_s, to_s, bucket_s = buckets(hours, now_s)
    random = Random(name)
    often, found, left = random.uniform(0.05, 0.5), [], 0
    for at in range(int((to_s - from_s) / bucket_s)):
        waking = 0.0
        if not left and random.random() < often:
            left, waking = random.randint(2, 9), random.uniform(1, 6)
        if not left:
            continue
        left -= 1
        busy = random.uniform(0, bucket_s - waking) * random.random()
        found.append(
            {
                "at_s": from_s + at * bucket_s,
                "waking_s": round(waking, 2),
                "busy_s": round(busy, 2),
                "idle_s": round(bucket_s - waking - busy, 2),
            }
        )
    return found


def totals(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Sum the buckets."""
    parts = ("waking_s", "idle_s", "busy_s")
    return {part: round(sum(row[part] for row in rows), 1) for part in parts}


def function_timeline(name: str, hours: int, now_s: float) -> dict[str, Any]:
    """Return GET /functions/{name}/timeline."""
    from_s, to_s, bucket_s = buckets(hours, now_s)
    rows = use(name, hours, now_s)
    states: list[dict[str, Any]] = []
    by_time = {row["at_s"]: row for row in rows}
    for at in range(int((to_s - from_s) / bucket_s)):
        begin = from_s + at * bucket_s
        row = by_time.get(begin)
        state = "cold" if row is None else "waking" if row["waking_s"] > 4 else "warm"
        if states and states[-1]["state"] == state:
            states[-1]["to_s"] = begin + bucket_s
            continue
        reason = {"cold": "no calls", "waking": "a request waits", "warm": "ready"}[state]
        states.append(
            {
                "from_s": begin,
                "to_s": begin + bucket_s,
                "state": state,
                "reason": reason,
                "revision": 1,
            }
        )
    arrivals = [{"at_s": row["at_s"], "count": int(row["busy_s"] * 3)} for row in rows]
    starts = sum(one["state"] == "waking" for one in states)
    requests = sum(one["count"] for one in arrivals)
    return {
        "from_s": from_s,
        "to_s": to_s,
        "bucket_s": bucket_s,
        "states": states,
        "use": [{**row, "device": "gpu-000"} for row in rows],
        "arrivals": arrivals,
        "totals": {**totals(rows), "cold_starts": starts, "requests": requests},
    }


def timeline(names: list[str], devices: list[str], hours: int, now_s: float) -> dict[str, Any]:
    """Return GET /timeline."""
    from_s, to_s, bucket_s = buckets(hours, now_s)
    functions: list[dict[str, Any]] = []
    for name in names[:200]:
        rows = use(name, hours, now_s)
        requests = sum(int(row["busy_s"] * 3) for row in rows)
        functions.append({"name": name, **totals(rows), "requests": requests})
    functions.sort(key=lambda one: -(one["busy_s"] + one["idle_s"] + one["waking_s"]))
    of_devices: list[dict[str, Any]] = []
    for device in devices:
        rows = use(device, hours, now_s)
        of_devices.append({"id": device, **totals(rows), "use": rows})
    return {
        "from_s": from_s,
        "to_s": to_s,
        "bucket_s": bucket_s,
        "functions": functions,
        "devices": of_devices,
    }


def advice(line: dict[str, Any], now_s: float) -> dict[str, Any]:
    """Return GET /functions/{name}/advice."""
    rows = []
    for idle_s in sorted({0.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, line["idle_s"]}):
        starts = round(90 / (1 + idle_s / 40))
        idle_device_s = 86_400 * (1 - math.exp(-idle_s / 1500))
        rows.append(
            {
                "idle_s": idle_s,
                "cold_starts": starts,
                "waited_s": round(starts * 0.6, 2),
                "held": starts * 2,
                "device_s": round(idle_device_s + 1900, 1),
                "idle_device_s": round(idle_device_s, 1),
                "is_current": idle_s == line["idle_s"],
            }
        )
    return {
        "from_s": now_s - 86_400,
        "to_s": now_s,
        "requests": 4211,
        "idle_s": line["idle_s"],
        "basis": {"cold_start_ms": 310.0, "run_ms": 4.5, "cold_starts_seen": 7},
        "rows": rows,
        "notes": ["Other functions are left out: each finds a free device at once."],
    }
