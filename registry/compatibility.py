"""Checks whether clients of one revision can call another one unchanged. Pure.

Accepting more is compatible: an input dimension that was fixed and is now dynamic, or an additional
output. An output dimension that becomes dynamic or fixed is compatible, too, because it follows
from the input's.
"""

from __future__ import annotations

from collections.abc import Sequence

from registry.model.revisions import Revision
from runtime_image.contract.signature import DYNAMIC, Signature, TensorSpec

PLAIN = "tensor"
"""Kind of an undeclared input; every kind that has a tensor accepts this one too."""


def breaks(old: Revision, new: Revision) -> list[str]:
    """Return what would break clients of `old` when they call `new`, one sentence each."""
    if old.signature.kind != new.signature.kind:
        return [f"it took {old.signature.kind} and now takes {new.signature.kind}"]
    found = _inputs(old.signature, new.signature)
    for spec in old.signature.inputs:
        if new.signature.input(spec.name) is not None:
            found += _kinds(spec.name, _kind(old, spec.name), _kind(new, spec.name))
    return found + _outputs(old.signature.outputs, new.signature.outputs)


def _inputs(old: Signature, new: Signature) -> list[str]:
    gone = [spec for spec in old.inputs if new.input(spec.name) is None]
    fresh = [spec for spec in new.inputs if old.input(spec.name) is None]
    found = []
    for spec in gone:
        heir = next((each for each in fresh if _same(spec, each)), None)
        if heir is not None:
            fresh.remove(heir)
        found.append(
            f"input {spec.name!r} is gone"
            if heir is None
            else f"input {spec.name!r} is called {heir.name!r} now"
        )
    found += [f"input {spec.name!r} is new, and callers do not send it" for spec in fresh]
    for spec in old.inputs:
        now = new.input(spec.name)
        if now is not None and not _takes(spec, now):
            found.append(f"input {spec.name!r} was {_shown(spec)} and is {_shown(now)}")
    return found


def _outputs(old: Sequence[TensorSpec], new: Sequence[TensorSpec]) -> list[str]:
    if not new:
        return []  # a handler without a model: its outputs are unknown
    now = {spec.name: spec for spec in new}
    found = []
    for spec in old:
        if spec.name not in now:
            found.append(f"output {spec.name!r} is gone")
        elif not _resembles(spec, now[spec.name]):
            found.append(f"output {spec.name!r} was {_shown(spec)} and is {_shown(now[spec.name])}")
    return found


def _kind(revision: Revision, name: str) -> str:
    rule = revision.inputs.get(name)
    return rule.kind if rule else PLAIN


def _kinds(name: str, old: str, new: str) -> list[str]:
    """Check that bodies of the kind declared before are still accepted.

    Plain tensors need no check here: every kind that has a tensor accepts them if the tensor fits.
    """
    if old in (PLAIN, new):
        return []
    return [f"input {name!r} was declared as {old} and is now {new}"]


def _same(old: TensorSpec, new: TensorSpec) -> bool:
    return (old.dtype, old.shape) == (new.dtype, new.shape)


def _takes(old: TensorSpec, new: TensorSpec) -> bool:
    """Return whether every tensor that fits `old` fits `new`."""
    if old.dtype != new.dtype or new.shape is None:
        return old.dtype == new.dtype
    return (
        old.shape is not None
        and len(old.shape) == len(new.shape)
        and all(n in (DYNAMIC, o) for o, n in zip(old.shape, new.shape, strict=True))
    )


def _resembles(old: TensorSpec, new: TensorSpec) -> bool:
    """Return whether an output is unchanged, except for dimensions that follow from the input's."""
    if old.dtype != new.dtype or old.shape is None or new.shape is None:
        return old.dtype == new.dtype
    return len(old.shape) == len(new.shape) and all(
        o == n or DYNAMIC in (o, n) for o, n in zip(old.shape, new.shape, strict=True)
    )


def _shown(spec: TensorSpec) -> str:
    if spec.shape is None:
        return f"{spec.dtype} of any shape"
    dimensions = ", ".join("any" if size == DYNAMIC else str(size) for size in spec.shape)
    return f"{spec.dtype} [{dimensions}]"
