"""Registry objects with defaults: a test spells out only what it cares about."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from registry.bundles.paths import make_bundle
from registry.catalog import Deployed
from registry.model.bundles import Bundle, BundleFile
from registry.model.functions import ExchangeLimits, Function
from registry.model.profiles import Optimised, Prepared, Profile, SessionTimes
from registry.model.revisions import Revision
from registry.model.servers import ServerSettings
from registry.spec import profile_engine
from runtime_image.contract.model import Preparation, SessionPlan
from runtime_image.contract.precision import RULES, PrecisionReport
from runtime_image.contract.rows import PROOF
from runtime_image.contract.signature import Signature, TensorSpec

SIGNATURE = Signature(
    "tensors", (TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 4)),)
)

HTTP = Signature("http", (), ())
EMPTY = make_bundle((), may_be_empty=True)


def sha256(content: bytes) -> str:
    """Return the hash under which `content` is stored."""
    return hashlib.sha256(content).hexdigest()


def bundle_file(path: str = "model.onnx", content: bytes = b"model") -> BundleFile:
    """Return a bundle file with this content."""
    return BundleFile(path, len(content), sha256(content))


def bundle(**contents: bytes) -> Bundle:
    """Return a bundle of files by name, "model.onnx" by default; __ stands for a dot."""
    named = contents or {"model__onnx": b"model"}
    return make_bundle(bundle_file(n.replace("__", "."), c) for n, c in named.items())


def function(name: str = "digits", revision: int = 1, **changes: Any) -> Function:
    """Return a function whose calls are routed to `revision`."""
    return Function(name, revision, **changes)


def revision(name: str = "digits", number: int = 1, **changes: Any) -> Revision:
    """Return a revision of the one-file bundle."""
    defaults = {"bundle": bundle().digest, "signature": SIGNATURE, "model": "model.onnx"}
    return Revision(name=name, number=number, **{**defaults, **changes})


def server_revision(name: str = "web", number: int = 1, **changes: Any) -> Revision:
    """Return a revision of a server function without files; `changes` are of its settings, or the
    revision's `bundle`, `device` and `created_s`."""
    own = {key: changes.pop(key) for key in ("bundle", "device", "created_s") if key in changes}
    settings = ServerSettings(**{"command": ("serve", "${PORT}"), **changes})
    defaults = {"bundle": EMPTY.digest, "signature": HTTP}
    return Revision(name, number, **{**defaults, **own}, engine="server", server=settings)


def server_deployed(**changes: Any) -> Deployed:
    """Return a server function of one revision; `changes` as for `server_revision`, or the
    function's `exchange`, `limits` and `scaling`."""
    keys = ("exchange", "limits", "scaling")
    own = {key: changes.pop(key) for key in keys if key in changes}
    owner = function("web", **{"exchange": ExchangeLimits(), **own})
    return Deployed(owner, server_revision(**changes))


def server_profile(one: Revision, **changes: Any) -> Profile:
    """Return the CPU profile of a server function's revision: 2 s from start to ready."""
    defaults: dict[str, Any] = {
        "engine": profile_engine(one),
        "device_kind": "cpu",
        "load_ms": 2000.0,
        "memory_mib": 60.0,
        "latency_ms": {},
        "batchable": False,
    }
    return Profile(one.bundle, **{**defaults, **changes})


def profile(**changes: Any) -> Profile:
    """Return a CPU profile of the one-file bundle: batchable up to 32 rows, 1 ms for one row."""
    defaults: dict[str, Any] = {
        "bundle": bundle().digest,
        "engine": "onnx",
        "device_kind": "cpu",
        "load_ms": 12.5,
        "memory_mib": 40.0,
        "latency_ms": {1: 1.0, 32: 4.0},
        "batchable": True,
        "batch_max": 32,
        "proof": PROOF,
        "model": "model.onnx",
        "compared": True,
    }
    return Profile(**{**defaults, **changes})


def prepared(model: str = "model.onnx", **contents: bytes) -> Prepared:
    """Return prepared files of that model with two sessions; files by name, as in `bundle`."""
    named = contents or {"graph__onnx": b"graph", "weights__bin": b"weights"}
    files = [bundle_file(f".prepared/{n.replace('__', '.')}", c) for n, c in named.items()]
    mapped = SessionPlan(".prepared/graph.onnx", optimise=False, prepack=False)
    packed = SessionPlan(".prepared/graph.onnx", optimise=False)
    return Prepared(
        model,
        Preparation("onnx-1/cpu-x", mapped, packed),
        tuple(files),
        original=SessionTimes(240.0, 6.0, {1: 8.0}),
        quick=SessionTimes(2.0, 8.0, {1: 10.0}),
        fast=SessionTimes(100.0, 6.0, {1: 8.0}),
    )


COLUMN: Final[dict[str, Any]] = {
    "output": "y",
    "part": "column 3",
    "error": 0.012,
    "error_max": 0.02,
    "spread": 0.3,
    "bias": -0.001,
    "gain": 0.99,
}
"""The column of a candidate that agrees least."""


def optimised(
    content: bytes = b"int8",
    model: str = "model.onnx",
    *,
    original: bool = False,
    rules: int = RULES,
) -> Optimised:
    """Return a table with the original and an INT8 candidate of this content, which was chosen
    unless the `original` was."""
    table = PrecisionReport(
        chosen="original" if original else "int8",
        candidates=[
            {
                "name": "original",
                "why_not": "",
                "latency_ms": {"1": 1.0, "32": 8.0},
                "batchable": True,
            },
            {
                "name": "int8",
                "why_not": "only 5 % faster" if original else "",
                "latency_ms": {"1": 0.5, "32": 4.0},
                "memory_mib": 20.0,
                "file_bytes": len(content),
                "cosine": 0.9995,
                "largest_difference": 0.02,
                "same_label": 0.995,
                "column": COLUMN,
                "batchable": True,
            },
        ],
        tolerance=0.01,
        calibrated=32,
        judged=200,
        source="samples",
        rules=rules,
    )
    file = None if original else bundle_file(".optimised/model.onnx", content)
    return Optimised(model, table, file)


def deployed(name: str = "digits", number: int = 1, current: int | None = None) -> Deployed:
    """Return a deployed revision, the current one by default."""
    return Deployed(function(name, current or number), revision(name, number), profile())
