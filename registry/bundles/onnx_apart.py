"""Reading of large graphs in a process of its own: `python -m registry.bundles.onnx_apart`.

A graph of millions of fields takes seconds of Python, in which the event loop of the server has its
turn every 5 ms only. The child has a lower priority, and bounds of processor time and memory.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from registry.bundles.onnx_files import OnnxContents, OnnxReader
from runtime_image.contract.wire_format import BeyondLimit, TooManyFields

MODULE: Final = "registry.bundles.onnx_apart"
CPU_S: Final = 30
"""Max seconds of processor time for one file."""
MEMORY_MAX: Final = 512 * 1024 * 1024
"""Max bytes of the child's own memory; the mapped file is not part of it."""
NICENESS: Final = 10
ANSWER_MAX: Final = 16 * 1024 * 1024
"""Max bytes of an answer: more than the longest names of external files take."""
ERRORS: Final[tuple[type[ValueError], ...]] = (TooManyFields, BeyondLimit, ValueError)
"""Errors of a reader, the narrowest first."""


class Question(msgspec.Struct):
    """A file, and how many of its fields may be parsed."""

    path: str
    fields_max: int


class Answer(msgspec.Struct):
    """What a file has, or why it cannot be read."""

    contents: OnnxContents | None = None
    parsed: int = 0
    """Fields that were parsed."""
    error: tuple[str, str] = ("", "")
    """Name of a class of ERRORS and its text, "" without one."""


def read_apart(model: Path, fields_max: int) -> tuple[OnnxContents, int]:
    """Return the contents of a file and the fields parsed. Blocking. Raises as `OnnxReader.read`,
    and TooManyFields if the child reached a bound."""
    question = msgspec.json.encode(Question(str(model), fields_max))
    # With -P, a folder named registry in the working directory is not imported.
    done = subprocess.run(
        [sys.executable, "-P", "-m", MODULE], input=question, capture_output=True, check=False
    )
    if done.returncode or len(done.stdout) > ANSWER_MAX:
        raise TooManyFields(
            f"its graph cannot be read within {CPU_S} s and {MEMORY_MAX // 2**20} MiB"
        )
    answer = msgspec.json.decode(done.stdout, type=Answer)
    if answer.contents is None:
        name, text = answer.error
        raise next(one for one in ERRORS if one.__name__ == name)(text)
    return answer.contents, answer.parsed


def main() -> None:
    """Answer the question on the standard input."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    reader = OnnxReader(question.fields_max)
    try:
        contents = reader.read(Path(question.path))
    except ValueError as error:
        kind = next(one for one in ERRORS if isinstance(error, one))
        answer = Answer(error=(kind.__name__, str(error)))
    else:
        answer = Answer(contents, question.fields_max - reader.left)
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
