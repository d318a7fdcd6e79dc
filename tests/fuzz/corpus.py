"""The corpus: a folder of inputs for each subject, which the tests play and the attack begins with.

Files are named by their content, and those of mended bugs by what was wrong.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.oracles import Wrong, outcome_of
from tests.fuzz.subject import Subject

CORPUS = Path(__file__).parents[1] / "data" / "attack"
FILE_MAX = 2048
"""Max bytes of a file that is kept: what is found by long inputs, short ones find too."""
FOLDER_MAX = 8 * 1024
"""Max bytes of what is kept for one subject."""
_ROOT = str(Path(__file__).parents[2])
_TESTS = str(Path(__file__).parents[1])

Step = tuple[str, int, int]
"""Two lines of one file that ran one after the other."""
COUNTED_MAX = 3
"""Times that a step was taken count as once, up to 3, up to 7, or more."""
_NO_WORD = re.compile("[^A-Za-z]+")
_TEXT_MAX = 60


def inputs_in(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each input in a folder, in the order of their names."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        yield path.name, path.read_bytes()


def name_of(data: bytes) -> str:
    """Return the name of an input by its content."""
    return hashlib.sha256(data).hexdigest()[:12]


def minimised(subject: Subject, inputs: Iterable[bytes]) -> list[bytes]:
    """Return few of these inputs, short ones first, that take all steps that any of them takes but
    none of the valid ones."""
    known: set[tuple[Step, int]] = set().union(*(steps_of(subject, data) for data in subject.valid))
    kept: list[bytes] = []
    for data in sorted(set(inputs), key=lambda one: (len(one), one)):
        size = sum(map(len, kept)) + len(data)
        if len(data) > FILE_MAX or size > FOLDER_MAX:
            continue
        steps = steps_of(subject, data)
        if not steps <= known:
            known |= steps
            kept.append(data)
    return kept


def steps_of(subject: Subject, data: bytes) -> frozenset[tuple[Step, int]]:
    """Return the steps that an input takes in our own code and about how often, and what came of
    it."""
    steps: Counter[Step] = Counter()

    def enter(frame: FrameType, _event: str, _arg: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(_ROOT) or name.startswith(_TESTS):
            return None
        last = 0

        def step(frame: FrameType, event: str, _arg: object) -> Any:
            nonlocal last
            if event == "line":
                steps[name, last, frame.f_lineno] += 1
                last = frame.f_lineno
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        with suppress(Wrong):
            found = outcome_of(subject, data)
            said = _NO_WORD.sub(" ", str(found))[:_TEXT_MAX] if isinstance(found, Exception) else ""
            steps[f"{type(found).__name__} {said}", 0, 0] += 1
    finally:
        sys.settrace(before)
    return frozenset(
        (step, min(count.bit_length(), COUNTED_MAX + 1)) for step, count in steps.items()
    )


def keep(subject: Subject, found: Path) -> int:
    """Write the minimised inputs of the folder `found`, and of the corpus, to the corpus; return
    their bytes. Inputs with a name of their own stay."""
    folder = CORPUS / subject.name
    old = dict(inputs_in(folder))
    new = [*old.values(), *(data for _, data in inputs_in(found))]
    kept = minimised(subject, new)
    folder.mkdir(parents=True, exist_ok=True)
    named = {data for name, data in old.items() if name != name_of(data)}
    for name, data in old.items():
        if name == name_of(data):
            (folder / name).unlink()
    for data in kept:
        if data not in named:
            (folder / name_of(data)).write_bytes(data)
    return sum(len(data) for _, data in inputs_in(folder))
