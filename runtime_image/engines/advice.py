"""Advice on models that ONNX Runtime refuses or whose tensors cannot be served. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

ZIPMAP: Final = "seq(map("
"""Prefix of ONNX Runtime's type name for the output of the operator ZipMap."""
_TENSOR: Final = re.compile(r"tensor\((\w+)\)")
_CAST_TO: Final = {"float": "FLOAT", "uint": "UINT8", "int": "INT8"}
"""ONNX type that holds all values of a type unknown to NumPy, by prefix of that type's name; the
first match counts."""


def unservable(role: str, name: str, onnx_type: str) -> str:
    """Return why the "input" or "output" `name` of type `onnx_type` is refused, and a remedy.

    `onnx_type` is ONNX Runtime's spelling, as in "tensor(float8e5m2)" or "seq(tensor(float))".
    """
    found = f"{role} {name!r} has type {onnx_type}"
    tensor = _TENSOR.fullmatch(onnx_type)
    if tensor is not None:
        wide = next((to for of, to in _CAST_TO.items() if tensor[1].startswith(of)), "FLOAT")
        change = (
            f"declare the input as {wide} and Cast it inside the graph"
            if role == "input"
            else f"let the graph end with a Cast to {wide}"
        )
        return f"{found}, which NumPy cannot represent: {change}"
    if onnx_type.startswith(ZIPMAP):
        return (
            f"{found}, only tensors can be served: this is the output of ZipMap for a classifier's"
            " probabilities; convert the model without it, in Python:"
            " skl2onnx.to_onnx(model, X[:1], options={'zipmap': False})"
        )
    return f"{found}, only tensors can be served: export the model with tensors as in- and outputs"


def explained(reason: str, version: str) -> str:
    """Return ONNX Runtime's `reason` for refusing a model, with a remedy if one is known.

    `version` is ONNX Runtime's. Unknown reasons are returned unchanged.
    """
    for pattern, explain in _REMEDIES:
        found = pattern.search(reason)
        if found is not None:
            return explain(found, f"ONNX Runtime {version}")
    return reason


def _ir_version(found: re.Match[str], engine: str) -> str:
    return (
        f"the model has IR version {found[1]}, {engine} reads up to {found[2]}. In Python:"
        f" m = onnx.load('model.onnx'); m.ir_version = {found[2]}; onnx.save(m, 'model.onnx')"
    )


def _opset(found: re.Match[str], engine: str) -> str:
    return (
        f"the model has opset {found[1]} of domain {found[2]}, {engine} knows up to {found[3]}:"
        f" export it with opset_version={found[3]}, or in Python:"
        f" onnx.version_converter.convert_version(m, {found[3]})"
    )


def _locale(found: re.Match[str], _engine: str) -> str:
    return (
        f"a StringNormalizer of the model needs the locale {found[1]!r}, which this machine does"
        " not have: set the node's attribute locale to 'C.UTF-8', which maps the case of all"
        " Unicode letters, or install the locale (Debian: apt install locales, then"
        f" localedef -i {found[1].partition('.')[0]} -f UTF-8 {found[1]})"
    )


def _custom_operator(found: re.Match[str], engine: str) -> str:
    return (
        f"the model uses the operator {found[2]} of domain {found[1] or 'ai.onnx'}, which {engine}"
        " does not have; libraries of custom operators are not loaded: export the model with"
        " standard operators"
    )


_REMEDIES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], str]], ...]] = (
    (
        re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)"),
        _ir_version,
    ),
    (
        re.compile(
            r"Opset (\d+) is under development.* support for domain (\S+) is till opset (\d+)",
            re.DOTALL,
        ),
        _opset,
    ),
    (re.compile(r"Failed to construct locale with name:([\w.@-]+)"), _locale),
    (re.compile(r"([\w.]*):(\w+)\(-?\d+\) is not a registered function/op"), _custom_operator),
)
"""Error messages of ONNX Runtime 1.31, by the part that names the cause."""
