"""Names of functions, and how people write which revision they mean."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable
from pathlib import PurePath
from typing import Final

from registry.errors import BadRequest

NAME_MAX: Final = 63
"""Characters; a name is then a valid DNS label too."""
NAME_RULE: Final = (
    f"a name of at most {NAME_MAX} characters: a-z, 0-9 and '-', "
    "beginning with a letter and not ending with '-'"
)
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
_SHOWN_MAX: Final = 80


def is_name(text: str) -> bool:
    """Whether `text` may name a function, a namespace or a label's key."""
    return _NAME.fullmatch(text) is not None


def check_name(text: str) -> str:
    """Return `text` unchanged. Raises BadRequest where it is no name."""
    if not is_name(text):
        raise BadRequest(f"expected {NAME_RULE}; got {text[:_SHOWN_MAX]!r}")
    return text


def name_from_file(file: str) -> str:
    """The name a model file suggests: "My Model_v2.onnx" gives "my-model-v2".

    Accents are dropped and every run of other characters becomes one '-'. Raises BadRequest where
    what remains does not begin with a letter: a guess would be a name nobody expects.
    """
    plain = unicodedata.normalize("NFKD", PurePath(file).stem).encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:NAME_MAX].rstrip("-")
    if not is_name(name):
        raise BadRequest(
            f"cannot make a name of {file[:_SHOWN_MAX]!r}: a name begins with a letter; "
            "choose one with --name"
        )
    return name


def nearest(name: str, names: Iterable[str], limit: int = 3) -> list[str]:
    """Up to `limit` of `names` that look like `name`, best first."""
    return difflib.get_close_matches(name[:_SHOWN_MAX], list(names), n=limit, cutoff=0.6)


def parse_ref(ref: str) -> tuple[str, int | None]:
    """Split "digits" or "digits@3" into name and revision number, None for the current one.

    Raises BadRequest on anything else; numbers start at 1 and have no leading zeros.
    """
    name, at, number = ref.partition("@")
    if not at:
        return check_name(name), None
    if not _NUMBER.fullmatch(number):
        raise BadRequest(
            f"expected NAME or NAME@REVISION with a number from 1, got {ref[:_SHOWN_MAX]!r}"
        )
    return check_name(name), int(number)
