"""Console blocks of Markdown documents: parsing, conversion into scripts, comparison of outputs.

A document is a list of steps. Comments, invisible to readers, annotate the block below:

    <!-- setup: COMMANDS -->      extra commands, run at this place; each must succeed
    <!-- file: PATH -->           write the block below to PATH
    <!-- not run: REASON -->      do not run the block below
    <!-- docker: REASON -->       run the block below where an engine is at hand
    <!-- docker setup: COMMANDS --> as setup, where an engine is at hand
    <!-- measured: REASON -->     run the block below, and do not compare its output

In a ```console block a line that begins with `$ ` is a command (a `\\` at its end continues it on
the next line), and the lines below it are its output. In the output a line `...` matches any lines,
`…` matches any text, and figures, ids, dates and bars are not compared.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

SHELLS = frozenset({"", "console", "sh", "bash", "shell", "zsh", "shell-session"})
"""First words of fences that may contain commands; with "" only if a line begins with `$ `."""
PROMPT = "$ "
SETUPS = ("setup", "docker setup")
"""Kinds of comments with extra commands: without an engine, and with one."""
_COMMENT = re.compile(
    r"<!-- (setup|file|not run|docker setup|docker|measured):?\s(.*?)-->", re.DOTALL
)
_MARK = "\x1e"


@dataclass(slots=True)
class Step:
    """A command, or a file to write. `line`: its line in the document, from 0.

    `shown`: the expected output of a command; it is not compared if `is_hidden`.
    """

    script: str
    line: int
    shown: list[str] = field(default_factory=list)
    is_hidden: bool = False

    @property
    def may_fail(self) -> bool:
        """Return whether the document shows a refusal, which means a non-zero exit code."""
        return any(
            line.startswith(("error:", "Error:", "fnctl serve:", "fail ")) for line in self.shown
        )

    @property
    def is_shortened(self) -> bool:
        """Return whether the document omits a part of its output."""
        return any("…" in line or line.strip() == "..." for line in self.shown)


@dataclass(slots=True)
class Block:
    """A fenced block: language, content, line of the fence (from 0), and the comment above it."""

    language: str
    lines: list[str]
    line: int
    kind: str = ""
    argument: str = ""

    @property
    def needs_docker(self) -> bool:
        """Return whether its commands are run with an engine only."""
        return self.language == "console" and self.kind == "docker"

    @property
    def is_run(self) -> bool:
        """Return whether its commands are run without an engine."""
        return self.language == "console" and self.kind not in {"not run", "docker"}

    @property
    def is_unexplained(self) -> bool:
        """Return whether it has commands that are not run without a stated reason."""
        if self.is_run or self.kind in {"file", "not run", "docker"}:
            return False
        if self.language not in SHELLS:
            return False
        return bool(self.language) or any(line.startswith(PROMPT) for line in self.lines)


def blocks(text: str) -> list[Block]:
    """Return every fenced block of a document; a setup comment counts as a block without a
    fence."""
    return list(_blocks(text.split("\n")))


def _blocks(lines: Sequence[str]) -> Iterator[Block]:
    at = 0
    kind = argument = ""
    while at < len(lines):
        begin, line = at, lines[at]
        at += 1
        if line.startswith("```"):
            while at < len(lines) and not lines[at].startswith("```"):
                at += 1
            language = line.strip("`").split(" ", 1)[0]
            yield Block(language, list(lines[begin + 1 : at]), begin, kind, argument)
            at += 1
            kind = argument = ""
        elif line.startswith("<!-- "):
            while "-->" not in lines[at - 1] and at < len(lines):
                at += 1
            found = _COMMENT.fullmatch("\n".join(lines[begin:at]))
            kind, argument = (found[1], found[2].strip()) if found else ("", "")
            if kind in SETUPS:
                yield Block("", argument.split("\n"), begin, kind)
                kind = ""
        elif line.strip():
            kind = argument = ""


def steps(text: str, *, docker: bool = False) -> list[Step]:
    """Return the steps of a document in order: those without an engine, or with `docker` those that
    need one."""
    return [step for block in blocks(text) for step in _steps_of(block, docker=docker)]


def _steps_of(block: Block, *, docker: bool) -> Iterator[Step]:
    if block.kind == SETUPS[docker]:
        yield Step("\n".join(block.lines), block.line, is_hidden=True)
    elif block.kind == "file":
        path = shlex.quote(block.argument)
        body = shlex.quote("".join(f"{line}\n" for line in block.lines))
        make = f'mkdir -p "$(dirname {path})" && printf %s {body} > {path}'
        yield Step(make, block.line, is_hidden=True)
    elif block.needs_docker if docker else block.is_run:
        yield from _commands(block)


def _commands(block: Block) -> Iterator[Step]:
    step: Step | None = None
    for number, line in enumerate(block.lines, block.line + 1):
        if line.startswith(PROMPT):
            if step is not None:
                yield step
            step = Step(line.removeprefix(PROMPT), number, is_hidden=block.kind == "measured")
        elif step is not None and not step.shown and step.script.endswith("\\"):
            step.script += f"\n{line}"
        elif step is not None:
            step.shown.append(line)
        else:
            raise ValueError(f"line {number + 1}: output above the first command")
    if step is not None:
        yield step


def script(of: Sequence[Step]) -> str:
    """Return a shell script that runs the steps; `results` parses its output."""
    parts = ["exec 2>&1"]
    for step in of:
        parts += [step.script, f"printf '\\n{_MARK}%s\\n' $?"]
    return "\n".join(parts) + "\n"


def results(output: str) -> list[tuple[str, int]]:
    """Return output and exit code of each step that ended."""
    found = re.findall(rf"(.*?)\n?{_MARK}(\d+)\n", output, re.DOTALL)
    return [(text.strip("\n"), int(code)) for text, code in found]


_MASKS = (
    # A trial beside other tests says so.
    (re.compile(r"; measured on a busy machine, .*$"), ""),
    (re.compile(r"[▁▂▃▄▅▆▇█▉▊▋▌▍▎▏]+"), " "),
    (re.compile(r"\bfn_[\w-]{43}"), "#"),
    (re.compile(r"\b\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT"), "#"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?"), "#"),
    (re.compile(r"\b[0-9a-f]{8,}\b"), "#"),
    (
        re.compile(
            r"(?<![\w@\"])[-+~]?\d[\d,]*(\.\d+)*(e[-+]?\d+)?"
            r"( ?(ns|us|µs|ms|s|min|h|d|%|B|KiB|MiB|GiB|device-h)(?!\w))?"
        ),
        "#",
    ),
    (re.compile(r"(?<!called )\bjust now\b"), "# ago"),
    (re.compile(r"(?<=\s)-(?=\s|$)"), "#"),
    (re.compile(r"[ \t]+"), " "),
    (
        re.compile(
            r"(\b(?:place|evict|start|import|bind|fetch|read|load|first_run|queue|decode|batch|compute"
            r"|encode) #(?: [·|] )?)+"
        ),
        "PHASES",
    ),
    (re.compile(r"\b(wakes standby|starts) # on "), "starts # on "),
    (re.compile(r"\b(up to # rows|off: possible, but .*)"), "AS MEASURED"),
)
_CHANCE = re.compile(
    r"PHASES|(queued|upload|image|verify|prepare|warm|switch) #|verify takes long: .*"
    r"|waiting: a build begins when a device is free|building: #.*"
)
"""Lines that depend on chance: phases of a cold start, and the observed steps of an operation or of
a build."""


def masked(line: str) -> str:
    """Return a line without the parts that vary between runs.

    Numbers in quotes and after @ are kept: those are labels and revisions.
    """
    for pattern, by in _MASKS:
        line = pattern.sub(by, line)
    return line.strip()


def fits(shown: Sequence[str], output: str) -> bool:
    """Return whether the output fits what a document shows."""
    pattern = ""
    for line in shown:
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        elif not _CHANCE.fullmatch(masked(line)):
            parts = [re.escape(masked(part)) for part in line.split("…")]
            pattern += ".*".join(parts) + r"\n"
    lines = [masked(line) for line in output.split("\n")] if output else []
    text = "".join(f"{line}\n" for line in lines if not _CHANCE.fullmatch(line))
    return re.fullmatch(pattern, text) is not None
