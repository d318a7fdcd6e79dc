"""Console blocks: parsing, conversion into scripts, comparison of outputs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.document_runs import Ran, rewritten
from tests.support.documents import Step, blocks, fits, masked, results, script, steps

TEXT = """
# A page

<!-- setup: echo hidden -->
```console
$ echo one \\
    two
one two
$ true
```

<!-- file: folder/a.txt -->
```text
it's a file
```

<!-- not run: needs a GPU -->
```console
$ make gpu
```

```json
$ no command
```
"""


def run(text: str, folder: Path) -> list[tuple[str, int]]:
    """Return output and exit code of a document's steps."""
    done = subprocess.run(
        ["/bin/bash", "-c", script(steps(text))],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return results(done.stdout)


def test_blocks_that_need_an_engine_are_apart() -> None:
    """A block is run either without an engine or with one; files are written for both."""
    text = "<!-- docker: an engine -->\n```console\n$ docker ps\n```\n" + TEXT

    assert "docker ps" not in [step.script for step in steps(text)]
    with_engine = [step.script for step in steps(text, docker=True)]
    assert with_engine[0] == "docker ps"
    assert len(with_engine) == 2
    assert "folder/a.txt" in with_engine[1]


def test_setups_are_for_one_of_both() -> None:
    """A setup runs with the blocks that need no engine, a docker setup with those that do; both are
    hidden."""
    text = "<!-- setup: echo a -->\n<!-- docker setup\necho b\necho c\n-->\n"

    (without,) = steps(text)
    (with_engine,) = steps(text, docker=True)

    assert (without.script, without.is_hidden) == ("echo a", True)
    assert (with_engine.script, with_engine.is_hidden) == ("echo b\necho c", True)


def test_the_steps_of_a_document() -> None:
    """Setups, commands and files are returned in order, without blocks marked as not run."""
    found = steps(TEXT)

    assert [(step.line, step.is_hidden) for step in found] == [
        (3, True),
        (5, False),
        (8, False),
        (12, True),
    ]
    assert found[1].script == "echo one \\\n    two"
    assert found[1].shown == ["one two"]


def test_a_measured_block_runs_without_comparison() -> None:
    """Its output depends on the machine; a command that fails is a trouble all the same."""
    text = "<!-- measured: times -->\n```console\n$ echo 1\n2 of 3\n```\n"

    [block] = blocks(text)
    [step] = steps(text)

    assert block.is_run
    assert not block.is_unexplained
    assert not Ran(step, "1", 0).trouble
    assert "exit code 3" in Ran(step, "1", 3).trouble


def test_steps_run_in_one_shell(tmp_path: Path) -> None:
    """All steps share one shell: files are written, variables and the folder persist, exit codes
    are known."""
    text = TEXT + "\n```console\n$ cd folder && KEY=x\n$ cat a.txt; echo $KEY >&2; (exit 3)\n```\n"

    found = run(text, tmp_path)

    assert found[:2] == [("hidden", 0), ("one two", 0)]
    assert found[-1] == ("it's a file\nx", 3)


@pytest.mark.parametrize(
    ("text", "is_unexplained"),
    [
        ("```console\n$ ls\n```", False),
        ("```sh\nls\n```", True),
        ("```bash\nls\n```", True),
        ("```\n$ ls\n```", True),
        ("```\na drawing\n```", False),
        ("<!-- not run: needs a GPU -->\n```sh\nls\n```", False),
        ("<!-- not run: needs a GPU -->\n\n```sh\nls\n```", False),
        ("<!-- not run: needs a GPU -->\nText between.\n```sh\nls\n```", True),
        ("<!-- file: a.sh -->\n```sh\nls\n```", False),
        ("```python\n$ x\n```", False),
    ],
)
def test_a_block_without_a_reason_is_found(text: str, is_unexplained: bool) -> None:
    """Commands must be run, written to a file, or have a reason in the comment right above."""
    assert [block.is_unexplained for block in blocks(text)] == [is_unexplained]


def test_output_above_the_first_command_is_a_mistake() -> None:
    """A console block must begin with a command."""
    with pytest.raises(ValueError, match="line 2: output above the first command"):
        steps("```console\nhello\n```")


@pytest.mark.parametrize(
    ("shown", "output"),
    [
        ("load 1.4 ms", "load      12 ms"),
        ("of 2026-11-22 03:10 UTC", "of 2027-01-01 13:10 UTC"),
        ("c21b1047 is ready", "abcdefab is ready"),
        ("Date: Sun, 22 Nov 2026 23:39:43 GMT", "Date: Mon, 23 Nov 2026 00:06:26 GMT"),
        ("7  ███▍ 0.976", "7  ██████▎ 0.875"),
        ("next: fnctl ls\n...", "next: fnctl ls\na\nb"),
        ("...\nend", "end"),
        ("a … c", "a b c"),
        ("warm: queue 1 · batch 2 ms", "warm: decode 3 · compute 4 · encode 5 ms"),
        ("  verify   1.4 s\ndone", "done"),
        ("P95 12 ms", "P95 -"),
        ("up to 64 rows", "off: possible, but several rows in one run are no faster"),
    ],
)
def test_chance_is_not_compared(shown: str, output: str) -> None:
    """Figures, ids, dates, bars, phases and omitted lines may differ."""
    assert fits(shown.split("\n"), output)


@pytest.mark.parametrize(
    ("shown", "output"),
    [
        ("digits@1", "digits@2"),
        ('"label":"2"', '"label":"3"'),
        ("a", "a\nb"),
        ("a\nb", "a"),
        ("", "a"),
        ("a\n...\nc", "a\nb"),
        ("warm: decode 1 ms", "cold start 3 ms: place 1 | decode 1 ms"),
        ("error: no", "error: yes"),
    ],
)
def test_everything_else_is_compared(shown: str, output: str) -> None:
    """Words, labels, revisions and the number of lines must be as shown."""
    assert not fits(shown.split("\n"), output)


def test_no_shown_output_means_no_output() -> None:
    """A command without shown output must write nothing."""
    assert fits([], "")
    assert not fits([], "a")
    assert masked("1 s") == "#"


def test_an_exit_code_is_trouble_unless_a_refusal_is_shown() -> None:
    """A command that fails must be shown to fail."""
    assert Ran(Step("false", 0), "", 1).trouble
    assert not Ran(Step("false", 0, ["error: no"]), "error: no", 1).trouble
    assert Ran(Step("false", 0, is_hidden=True), "", 1).trouble
    assert not Ran(Step("true", 0, is_hidden=True), "anything", 0).trouble


def test_real_output_takes_the_place_of_another() -> None:
    """Only output that does not fit is replaced, and never an abbreviated one."""
    text = "```console\n$ a\nold\n$ b\nnumber 1\n$ c\nx …\n```"
    first, second, third = steps(text)

    ran = [Ran(first, "new\nlines", 0), Ran(second, "number 2", 0), Ran(third, "y", 0)]

    assert rewritten(text, ran) == text.replace("old", "new\nlines")
