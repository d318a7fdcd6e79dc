"""Tests of which changes of a signature break callers."""

from __future__ import annotations

import pytest

from registry.compatibility import breaks
from registry.model.revisions import Revision
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support import nouns

X = TensorSpec("x", "FP32", (-1, 4))
Y = TensorSpec("y", "FP32", (-1, 10))


def revision(
    inputs: tuple[TensorSpec, ...] = (X,), outputs: tuple[TensorSpec, ...] = (Y,), **kinds: str
) -> Revision:
    """Return a revision with these input and output tensors; `kinds` are the declared input
    kinds."""
    rules = {name: InputRule(kind) for name, kind in kinds.items()}  # type: ignore[arg-type]
    return nouns.revision(signature=Signature("tensors", inputs, outputs), inputs=rules)


def spec(name: str, *shape: int, dtype: str = "FP32") -> TensorSpec:
    return TensorSpec(name, dtype, shape)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (revision(), revision()),
        (revision((spec("x", 1, 4),)), revision()),
        (revision(), revision(outputs=(Y, spec("more", 1)))),
        (revision(outputs=(spec("y", 1, 10),)), revision()),
        (revision(), revision(outputs=(spec("y", 1, 10),))),
        (revision(), revision(x="image")),
        (revision((X, spec("z", 2))), revision((spec("z", 2), X))),
        (revision(), revision(outputs=())),
        (revision(), revision((TensorSpec("x", "FP32", None),))),
        (revision(), revision(outputs=(TensorSpec("y", "FP32", None),))),
        (revision(outputs=(TensorSpec("y", "FP32", None),)), revision()),
        (
            nouns.revision(signature=Signature("json", (), ())),
            nouns.revision(signature=Signature("json", (), ())),
        ),
    ],
)
def test_compatible_changes(old: Revision, new: Revision) -> None:
    """A free dimension instead of a fixed one, another output, a declared kind or another order
    breaks no caller."""
    assert breaks(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            revision(),
            revision((spec("x", -1, 8),)),
            "input 'x' was FP32 [any, 4] and is FP32 [any, 8]",
        ),
        (
            revision(),
            revision((spec("x", 1, 4),)),
            "input 'x' was FP32 [any, 4] and is FP32 [1, 4]",
        ),
        (
            revision((TensorSpec("x", "FP32", None),)),
            revision(),
            "input 'x' was FP32 of any shape and is FP32 [any, 4]",
        ),
        (revision(), revision((spec("x", -1),)), "input 'x' was FP32 [any, 4] and is FP32 [any]"),
        (
            revision(),
            revision((spec("x", -1, 4, dtype="FP16"),)),
            "input 'x' was FP32 [any, 4] and is FP16 [any, 4]",
        ),
        (revision(), revision((spec("image", -1, 4),)), "input 'x' is called 'image' now"),
        (revision((X, spec("z", 2))), revision(), "input 'z' is gone"),
        (revision(), revision((X, spec("z", 2))), "input 'z' is new, and callers do not send it"),
        (revision(), revision(outputs=(spec("z", 1),)), "output 'y' is gone"),
        (
            revision(),
            revision(outputs=(spec("y", -1, 5),)),
            "output 'y' was FP32 [any, 10] and is FP32 [any, 5]",
        ),
        (
            revision(),
            revision(outputs=(spec("y", -1, 10, dtype="FP64"),)),
            "output 'y' was FP32 [any, 10] and is FP64 [any, 10]",
        ),
        (revision(x="image"), revision(), "input 'x' was declared as image and is now tensor"),
        (
            revision(x="image"),
            revision(x="audio"),
            "input 'x' was declared as image and is now audio",
        ),
        (
            revision(),
            nouns.revision(signature=Signature("bytes", (X,), ())),
            "it took tensors and now takes bytes",
        ),
    ],
)
def test_incompatible_changes_are_named(old: Revision, new: Revision, text: str) -> None:
    """Each breaking change is one sentence with the old and the new value."""
    assert breaks(old, new) == [text]


def test_all_breaking_changes_are_listed() -> None:
    """All breaking changes of a revision are reported together."""
    old = revision((X, spec("a", 2)))
    new = revision((spec("x", -1, 8), spec("b", 3)), (spec("y", 2),))

    assert breaks(old, new) == [
        "input 'a' is gone",
        "input 'b' is new, and callers do not send it",
        "input 'x' was FP32 [any, 4] and is FP32 [any, 8]",
        "output 'y' was FP32 [any, 10] and is FP32 [2]",
    ]


def test_requests_of_servers_are_not_compared() -> None:
    """A server function's callers may send anything; a model instead of it breaks them, and the
    reverse."""
    old = nouns.server_revision()

    assert breaks(old, nouns.server_revision(number=2, command=("other", "${PORT}"))) == []
    assert breaks(old, revision()) == ["it took http and now takes tensors"]
    assert breaks(revision(), old) == ["it took tensors and now takes http"]
