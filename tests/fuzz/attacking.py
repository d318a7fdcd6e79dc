"""One subject under attack: `python -m tests.fuzz.attacking NAME FOLDER SECONDS`, with atheris.

libFuzzer mutates inputs and keeps those that reach something new, which is in FOLDER/corpus/NAME.
What is wrong is in FOLDER/crashes/NAME, one file for each place. With 0 seconds the kept inputs are
judged, each by all oracles; nothing is mutated then, and atheris is not needed.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.subject import Subject

LENGTH_MAX = 4096
"""Max bytes of an input: long ones are slow, and the seeded generator makes them."""
JUDGED_EVERY = 32
"""One of so many inputs is judged by its lines and memory too."""
WRITTEN_EVERY_S = 2.0
TIMEOUT_S = 30
"""Max seconds of one input, after which the process ends."""
MEMORY_MIB = 2048
"""Max MiB of the process."""
PACKAGES = ["environments", "gateway", "registry", "runtime_image", "admin"]
"""Packages whose branches count as coverage."""


class Notes:
    """What was found for one subject, in FOLDER/NAME.json; a process continues the last one's."""

    def __init__(self, name: str, folder: Path) -> None:
        self._file = folder / f"{name}.json"
        self._crashes = folder / "crashes" / name
        self._written_s = 0.0
        self.inputs = 0
        self.found: dict[str, Any] = {}
        if self._file.exists():
            noted = json.loads(self._file.read_text())
            self.inputs, self.found = noted["inputs"], noted["found"]

    def crash(self, data: bytes, place: str, text: str) -> None:
        """Note what is wrong, once for each place, with the shortest input."""
        known = self.found.get(place)
        if known is not None and known["length"] <= len(data):
            return
        self._crashes.mkdir(parents=True, exist_ok=True)
        name = f"{zlib.crc32(place.encode()):08x}"
        (self._crashes / name).write_bytes(data)
        file = str(self._crashes / name)
        self.found[place] = {"text": text, "file": file, "length": len(data)}
        self.write()

    def write(self) -> None:
        """Write the notes."""
        self._written_s = time.monotonic()
        self._file.write_text(json.dumps({"inputs": self.inputs, "found": self.found}))

    def tick(self) -> None:
        """Write the notes now and then."""
        if not self.inputs % 64 and time.monotonic() > self._written_s + WRITTEN_EVERY_S:
            self.write()


def _subject(name: str) -> Subject:
    from tests.fuzz.subjects import SUBJECTS

    return next(one for one in SUBJECTS if one.name == name)


def _one_input(subject: Subject, notes: Notes, *, judges_all: bool) -> Callable[[bytes], None]:
    from tests.fuzz.oracles import Wrong, judge, outcome_of

    def run(data: bytes) -> None:
        notes.inputs += 1
        try:
            if judges_all or zlib.crc32(data) % JUDGED_EVERY == 0:
                judge(subject, data)
            else:
                outcome_of(subject, data)
        except Wrong as error:
            notes.crash(data, error.place, str(error))
        notes.tick()

    return run


def _judge_kept(name: str, folder: Path) -> None:
    from tests.fuzz.corpus import inputs_in

    notes = Notes(name, folder)
    run = _one_input(_subject(name), notes, judges_all=True)
    for _, data in inputs_in(folder / "corpus" / name):
        run(data)
    notes.write()


def _attack(name: str, folder: Path, seconds: int) -> None:
    atheris: Any = importlib.import_module("atheris")  # of an environment of its own

    with atheris.instrument_imports(include=PACKAGES):
        subject = _subject(name)
    from tests.fuzz.corpus import CORPUS
    from tests.fuzz.inputs import REPEATED, TOKENS

    grown, crashes = folder / "corpus" / name, folder / "crashes" / name
    for made in (grown, crashes, CORPUS / name):
        made.mkdir(parents=True, exist_ok=True)
    for number, valid in enumerate(subject.valid):
        (grown / f"valid-{number}").write_bytes(valid)
    words = folder / "words"
    texts = {"".join(f"\\x{byte:02x}" for byte in one[:60]) for one in (*TOKENS, *REPEATED)}
    words.write_text("".join(f'"{text}"\n' for text in sorted(texts)))
    options = {
        "max_total_time": seconds,
        "max_len": min(subject.size_max, LENGTH_MAX),
        "timeout": TIMEOUT_S,
        "rss_limit_mb": MEMORY_MIB,
        "artifact_prefix": f"{crashes}/",
        "dict": words,
        "print_pcs": 0,
        "use_value_profile": 1,
    }
    run = _one_input(subject, Notes(name, folder), judges_all=False)
    flags = [f"-{option}={value}" for option, value in options.items()]
    atheris.Setup([sys.argv[0], *flags, str(grown), str(CORPUS / name)], run)
    atheris.Fuzz()


def main() -> None:
    """Attack one subject, or judge what an attack has kept."""
    name, folder, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if seconds:
        _attack(name, folder, seconds)
    else:
        _judge_kept(name, folder)


if __name__ == "__main__":
    main()
