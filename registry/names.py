"""Names of functions, and references to revisions."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from registry.errors import BadRequest

NAME_MAX: Final = 63
"""Max characters; a name is then also a valid DNS label."""
NAME_RULE: Final = (
    f"a name of at most {NAME_MAX} characters: a-z, 0-9 and '-', "
    "beginning with a letter and not ending with '-'"
)
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
_SHOWN_MAX: Final = 80
ALIAS_MAX: Final = 200
ALIAS_RULE: Final = f"an alias of at most {ALIAS_MAX} visible ASCII characters without '@'"
_ALIAS: Final = re.compile(rf"[!-?A-~]{{1,{ALIAS_MAX}}}")
OIP_NAME_MAX: Final = 255
OIP_NAME_RULE: Final = f"1 to {OIP_NAME_MAX} characters: letters, digits, '.', '_' and '-'"
_OIP_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{OIP_NAME_MAX}}}")
OIP_VERSION_MAX: Final = 2**63 - 1
HOST_LABEL: Final = "host"
"""Label that every host has: its name."""
LABELS_MAX: Final = 16
"""Max labels of a host."""
LABEL_KEY: Final = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
LABEL_VALUE: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
"""A label of a host: a key like a function's name, and a value like those of Kubernetes."""
LABEL_RULE: Final = (
    "labels such as zone=a: keys of a-z, 0-9 and '-', values of letters, digits, '.', '_' and '-',"
    " each of at most 63 characters"
)


def is_name(text: str) -> bool:
    """Return whether `text` is a valid name of a function, a namespace or a label's key."""
    return _NAME.fullmatch(text) is not None


def check_name(text: str) -> str:
    """Return `text` unchanged. Raises BadRequest if it is not a valid name."""
    if not is_name(text):
        raise BadRequest(f"expected {NAME_RULE}; got {text[:_SHOWN_MAX]!r}")
    return text


def check_alias(text: str) -> str:
    """Return `text` unchanged. Raises BadRequest if it is not a valid alias of a function."""
    if _ALIAS.fullmatch(text) is None:
        raise BadRequest(f"expected {ALIAS_RULE}; got {text[:_SHOWN_MAX]!r}")
    return text


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of a host's labels. Raises BadRequest if they are not valid."""
    if len(labels) > LABELS_MAX:
        raise BadRequest(f"labels: expected at most {LABELS_MAX}, got {len(labels)}")
    for key, value in labels.items():
        if not (re.fullmatch(LABEL_KEY, key) and re.fullmatch(LABEL_VALUE, value)):
            got = f"{key[:_SHOWN_MAX]}={value[:_SHOWN_MAX]}"
            raise BadRequest(f"labels: expected {LABEL_RULE}; got {got!r}")
    return dict(labels)


def is_oip_name(text: str) -> bool:
    """Return whether `text` may be a model's name in the Open Inference Protocol: a folder's name,
    but not one of the two that every folder has."""
    return _OIP_NAME.fullmatch(text) is not None and text not in (".", "..")


def name_from_file(file: str) -> str:
    """Derive a name from a model file: "My Model_v2.onnx" gives "my-model-v2".

    Accents are dropped, and every run of other characters becomes one '-'. Raises BadRequest if the
    rest does not begin with a letter: a guessed name would be a surprise.
    """
    plain = unicodedata.normalize("NFKD", PurePath(file).stem).encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:NAME_MAX].rstrip("-")
    if not is_name(name):
        raise BadRequest(
            f"cannot derive a name from {file[:_SHOWN_MAX]!r}: a name begins with a letter; "
            "choose one with --name"
        )
    return name


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
