"""Tests of reading what a folder needs."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement as Parsed

from environments.needs import HANDLER, PROJECT, REQUIREMENTS, UV_LOCK, Needs, read_needs
from environments.requirement import read_requirement
from registry.errors import BadNeeds
from tests.support.hostile_needs import HASH, HOSTILE_FILES, HOSTILE_LINES, HOSTILE_LOCKS
from tests.support.hostile_needs import UV_LOCK as LOCK

OWN = "msgspec>=0.19"
PLACE = re.compile(r"[\w.]+:\d+: expected .+, got .+", re.DOTALL)


def lines(text: str | bytes) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    return [line for line in read_needs({REQUIREMENTS: data}).lines if line != OWN]


@pytest.mark.parametrize("kind", HOSTILE_LINES)
def test_a_hostile_line_is_refused(kind: str) -> None:
    """A line that is not a name with versions is refused with its number, among any others."""
    text = f"idna==3.10\n{HOSTILE_LINES[kind]}\n"

    with pytest.raises(BadNeeds) as refused:
        read_needs({REQUIREMENTS: text.encode()})
    assert PLACE.fullmatch(refused.value.message)
    assert re.match(r"requirements\.txt:[2-4]: ", refused.value.message)
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("kind", HOSTILE_LINES)
def test_a_hostile_dependency_is_refused(kind: str) -> None:
    """The same holds in a list of dependencies, where no hashes are known."""
    with pytest.raises(BadNeeds):
        read_requirement(HOSTILE_LINES[kind] if "#" not in HOSTILE_LINES[kind] else "-", "x:1")


def test_the_table_is_long() -> None:
    """There are at least 38 kinds."""
    assert len(HOSTILE_LINES) >= 38


@pytest.mark.parametrize("kind", HOSTILE_FILES)
def test_a_hostile_file_is_refused(kind: str) -> None:
    """Sizes, encodings and keys that change where packages come from are refused with the file."""
    name, data = HOSTILE_FILES[kind]

    with pytest.raises(BadNeeds) as refused:
        read_needs({name: data})
    assert re.match(rf"{re.escape(name)}(:\d+)?: ", refused.value.message)
    assert "expected" in refused.value.message


@pytest.mark.parametrize("kind", HOSTILE_LOCKS)
def test_a_hostile_uv_lock_is_refused(kind: str) -> None:
    """Packages that come from no index are refused."""
    project = b'[project]\ndependencies=["x"]\n'

    with pytest.raises(BadNeeds, match=r"uv\.lock"):
        read_needs({PROJECT: project, UV_LOCK: HOSTILE_LOCKS[kind]})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("numpy", ["numpy"]),
        ("\ufeffNumPy\r\n", ["numpy"]),
        ("numpy ;", ["numpy"]),
        ("  numpy>=2 , <3  # why", ["numpy<3,>=2"]),
        ("Foo.Bar_baz [b, A]", ["foo-bar-baz[a,b]"]),
        ("x (>=1)", ["x>=1"]),
        ("x<3,>=1,<3,<03", ["x<3,>=1"]),
        ("x<3R_,>=v1.0-1,!=2.0RC1.dev2", ["x!=2.0rc1.dev2,<3.post0,>=1.0.post1"]),
        ("x~=1.4.2 ; python_version<'3.12'", ['x~=1.4.2 ; python_version < "3.12"']),
        ("x==1.0+cpu\n\n# é\ny!=2.*", ["x==1.0+cpu", "y!=2.*"]),
        ("b\na\nb", ["a", "b"]),
        (b"", []),
    ],
)
def test_usual_lines_are_taken(text: str | bytes, expected: list[str]) -> None:
    """Names, extras, versions and markers are written in one form, sorted, once."""
    assert lines(text) == expected


def test_the_output_of_pip_compile_is_taken() -> None:
    """Pins with hashes in continued lines, and comments between them."""
    text = (
        f"# by pip-compile\nidna==3.10 \\\n    --hash=sha256:{HASH} \\\n"
        f"    --hash=sha256:{'b' * 64}\n    # via x\n"
        f"x==1 --hash=sha256:{HASH}\n"
    )

    found = read_needs({REQUIREMENTS: text.encode()}).requirements

    assert [(one.line, len(one.hashes)) for one in found] == [("idna==3.10", 2), ("x==1", 1)]


def test_hashes_may_be_many() -> None:
    """Lines of hashes do not count against the size of the rest."""
    one = "".join(f" \\\n    --hash=sha256:{n:064x}" for n in range(400))
    text = "".join(f"p{n}==1{one}\n" for n in range(20))

    assert len(read_needs({REQUIREMENTS: text.encode()}).requirements) == 20


def test_a_project_is_read() -> None:
    """Dependencies and the versions of Python, whatever else the file has."""
    text = b"""
[project]
name = "mine"
version = "1"
requires-python = ">= 3.11"
dependencies = ["Numpy >= 2", 'x ; os_name == "posix"']
[project.optional-dependencies]
no = ["-r evil"]
[tool.ruff]
line-length = 100
[tool.uv]
package = false
"""
    found = read_needs({PROJECT: text})

    assert found.requires_python == ">=3.11"
    assert found.lines == (OWN, "numpy>=2", 'x ; os_name == "posix"')
    assert found.source == PROJECT


def test_a_uv_lock_pins() -> None:
    """Its packages of an index are versions and hashes; the project itself is none."""
    found = read_needs({PROJECT: b'[project]\ndependencies=["numpy"]\n', UV_LOCK: LOCK})

    assert [one.hashes for one in found.pins] == [(f"sha256:{'b' * 64}",)]
    assert found.pin_lines == (
        'numpy==2.0.1 ; python_full_version >= "3.12" or sys_platform == "linux"',
    )


def test_a_uv_lock_may_be_large() -> None:
    """One of 300 packages with 30 wheels each is read."""
    wheel = '{ url = "https://e.example/x.whl", hash = "sha256:%064x" },\n'
    package = '[[package]]\nname = "p%d"\nversion = "1"\nsource = { registry = "x" }\nwheels = [\n'
    rows = ["version = 1\n"]
    for number in range(300):
        rows += [package % number, *(wheel % n for n in range(25)), "]\n"]
    text = "".join(rows).encode()
    assert len(text) > 800_000

    found = read_needs({PROJECT: b'[project]\ndependencies=["p1"]\n', UV_LOCK: text})

    assert len(found.pins) == 300


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_block_in_a_handler_is_read(end: str) -> None:
    """PEP 723, as its own example has it."""
    rows = ['"""Doc. é"""', "# /// other", "# x", "# ///", "", "# /// script"]
    rows += ['# requires-python = ">=3.11"', "# dependencies = [", '#   "requests<3",', "#"]
    rows += ['#   "rich",', "# ]", "# ///", "", "import requests"]

    found = read_needs({HANDLER: end.join(rows).encode()})

    assert found.lines == (OWN, "requests<3", "rich")
    assert found.requires_python == ">=3.11"
    assert found.source == HANDLER


def test_a_refused_block_says_the_line_of_the_file() -> None:
    """The line is counted from the beginning of the file."""
    text = '"""Doc."""\n\n# /// script\n# dependencies = [\n#   "./evil",\n# ]\n# ///\n'

    with pytest.raises(BadNeeds, match=r"^handler\.py:5: expected .* got a path: '\./evil'"):
        read_needs({HANDLER: text.encode()})


def test_a_refused_dependency_says_the_line_of_the_file() -> None:
    """TOML knows no lines; the text does."""
    text = b'[project]\ndependencies = [\n  "numpy",\n  "git+https://evil.example",\n]\n'

    with pytest.raises(BadNeeds, match=r"^pyproject\.toml:4: .* version control"):
        read_needs({PROJECT: text})


def test_an_unended_block_is_none() -> None:
    """A block without its end is a comment, and costs one pass."""
    assert read_needs({HANDLER: b"# /// script\n" * 50_000}) == Needs()


def test_none_is_allowed() -> None:
    """A folder without needs has our own package alone."""
    tools = b"[tool.ruff]\nline-length = 100\n"

    assert read_needs({}).lines == (OWN,)
    assert read_needs({PROJECT: tools, HANDLER: b"import os\n"}) == Needs()


def test_two_files_with_needs_are_refused() -> None:
    """Which one counts is said by the manifest."""
    files = {REQUIREMENTS: b"a\n", PROJECT: b'[project]\ndependencies=["b"]\n'}

    with pytest.raises(BadNeeds, match=r"requirements\.txt and pyproject\.toml"):
        read_needs(files)
    assert read_needs(files, PROJECT).lines == ("b", OWN)


@pytest.mark.parametrize("source", ["more.txt", "other.toml", "../x.txt"])
def test_a_named_file_must_be_there(source: str) -> None:
    """The file that a manifest names is one of the folder, in a known form."""
    with pytest.raises(BadNeeds, match="expected"):
        read_needs({"other.toml": b""}, source)


def test_a_project_may_say_its_python_beside_requirements() -> None:
    """Only files that list packages exclude each other."""
    project = b'[project]\nname="x"\nrequires-python=">=3.12"\ndependencies=[]\n'

    found = read_needs({REQUIREMENTS: b"a\n", PROJECT: project})

    assert (found.source, found.requires_python) == (REQUIREMENTS, ">=3.12")
    assert read_needs({REQUIREMENTS: b"", PROJECT: project}).requires_python == ">=3.12"


@pytest.mark.parametrize("code", [b"# caf\xe9\n", b"x = '\0'\n", b"#" * 3_000_000])
def test_a_handler_without_a_block_is_not_read(code: bytes) -> None:
    """Its encoding and size are its own business."""
    assert read_needs({HANDLER: code}) == Needs()


def test_another_text_file_may_be_named() -> None:
    """Requirements may have another name."""
    found = read_needs({"cpu.txt": b"torch\n", REQUIREMENTS: b"x\n"}, "cpu.txt")

    assert found.lines == (OWN, "torch")


def test_every_line_is_ours() -> None:
    """A line is what `packaging` makes of what was understood."""
    one = read_requirement("A.b [Z, y] >=1,<2 ; (os_name == 'x') and python_version>'3'", "x:1")

    assert one.line == 'a-b[y,z]<2,>=1 ; os_name == "x" and python_version > "3"'
    assert str(Parsed(one.line).specifier) == one.specifier
