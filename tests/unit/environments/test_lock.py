"""Tests of locks: made by uv from an index on loopback, kept as text."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from environments.folders import Environments, EnvironmentSettings
from environments.interpreters import Interpreter
from environments.lock import Lock, LockedPackage, lock_key, read_lock
from environments.needs import PROJECT, REQUIREMENTS, UV_LOCK, Needs, read_needs
from environments.programs import Progress, Work, WorkCancelled
from environments.uv import AWAY_S, READ_S
from environments.wheels import read_wheels
from registry.errors import BadNeeds, EnvironmentRefused, FnError, IndexAway
from tests.support.doses import amount
from tests.support.package_index import PackageIndex, make_wheel

KEY = "0" * 64
A = f"sha256:{'a' * 64}"
B = f"sha256:{'b' * 64}"


def needs(*lines: str) -> Needs:
    return read_needs({REQUIREMENTS: "\n".join(lines).encode()})


def lock(*packages: LockedPackage) -> Lock:
    return Lock(KEY, "3.11", "linux-x86_64", "glibc-2.36", packages)


TINY = lock(LockedPackage("tiny", "1.0", (A,), 10))


def test_a_lock_has_versions_hashes_and_sizes(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """It names all packages that are needed for any reason, and nothing is installed."""
    sha256 = index.add("small", "1.5")
    index.add("small", "2.0")
    index.add("large", requires=["small<2"])
    told: list[Progress] = []

    found = environments.resolve(needs("large"), interpreter, Work(told.append))

    assert [(one.name, one.version) for one in found.packages] == [
        ("large", "1.0"),
        ("msgspec", "0.22.0"),
        ("small", "1.5"),
    ]
    assert found.packages[2].hashes == (f"sha256:{sha256}",)
    assert found.packages[2].size == len(index.files["small"]["small-1.5-py3-none-any.whl"])
    assert found.size == sum(one.size or 0 for one in found.packages)
    assert found.unsized == 0
    assert found.fits(interpreter)
    assert environments.listed() == []


def test_no_needs_are_our_own_package(environments: Environments, interpreter: Interpreter) -> None:
    """A folder without needs has a lock, too."""
    found = environments.resolve(Needs(), interpreter, Work())

    assert [one.name for one in found.packages] == ["msgspec"]


def test_an_index_without_sizes(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """What an index does not say is not guessed."""
    index.says_sizes = False

    found = environments.resolve(Needs(), interpreter, Work())

    assert (found.size, found.unsized) == (0, 1)


def test_two_fitting_wheels_keep_both_hashes(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """uv chooses one of them when it installs."""
    own = f"cp{interpreter.version[0]}{interpreter.version[1]}"
    index.add("two", tag=f"{own}-abi3-manylinux_2_17_x86_64")
    index.add("two")

    found = environments.resolve(needs("two"), interpreter, Work())

    assert [len(one.hashes) for one in found.packages] == [1, 2]
    assert environments.ensure(found, interpreter, Work()).lock == found


REFUSALS: dict[str, tuple[list[str], str]] = {
    "conflict": (["wants-old", "small>=2"], r"(?s)No solution found.*small.*unsatisfiable"),
    "missing": (["absent-package"], "absent-package was not found"),
    "no such version": (["small>=9"], r"(?s)No solution.*small>=9"),
    "sdist only": (["source-only"], r"(?s)pip wheel --no-deps --wheel-dir wheels source-only"),
    "other platform": (["foreign"], r"(?s)foreign.*win_amd64"),
    "other python": (["newer"], r"(?s)newer==1\.0 requires Python >=4"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_what_cannot_be_resolved_is_refused(
    environments: Environments, index: PackageIndex, interpreter: Interpreter, kind: str
) -> None:
    """uv's text is kept, and a remedy is added where one is known."""
    lines, expected = REFUSALS[kind]
    index.add("small", "1.0")
    index.add("small", "2.0")
    index.add("wants-old", requires=["small<2"])
    index.add("foreign", tag="cp311-cp311-win_amd64")
    index.add("newer", python=">=4")
    index.add_file("source-only", "source_only-1.0.tar.gz", b"evil")

    with pytest.raises(EnvironmentRefused, match=expected):
        environments.resolve(needs(*lines), interpreter, Work())
    assert not [path for path in environments.root.iterdir() if path.name.startswith(".re")]


@pytest.mark.parametrize("status", [401, 403, 500])
def test_an_index_that_refuses(
    environments: Environments, index: PackageIndex, interpreter: Interpreter, status: int
) -> None:
    """An index that answers with an error gives no lock."""
    index.status = status

    with pytest.raises((EnvironmentRefused, IndexAway), match=rf"{status}|not found"):
        environments.resolve(Needs(), interpreter, Work())


def test_an_index_that_is_away(tmp_path: Path, interpreter: Interpreter) -> None:
    """A closed port is told from a missing package."""
    config = tmp_path / "uv.toml"
    config.write_text('[[index]]\nurl = "http://u:secret@127.0.0.1:1/simple"\ndefault = true\n')
    environments = Environments(tmp_path / "environments", EnvironmentSettings(config))

    with pytest.raises(IndexAway) as refused:
        environments.resolve(Needs(), interpreter, Work())
    assert "secret" not in refused.value.message
    assert refused.value.retry_after_s


@pytest.mark.slow
def test_an_index_that_never_answers(
    environments: Environments,
    index: PackageIndex,
    interpreter: Interpreter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Silence is given up in less than AWAY_S."""
    monkeypatch.setattr("environments.uv.READ_S", amount("1", READ_S))
    quiet = threading.Event()
    index.before = lambda _: quiet.wait()
    try:
        with pytest.raises(IndexAway):
            environments.resolve(Needs(), interpreter, Work(seconds=AWAY_S))
    finally:
        quiet.set()


def test_a_resolution_is_cancelled(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """A cancelled one ends while the index is still silent."""
    quiet = threading.Event()
    work = Work()

    def before(_: str) -> None:
        work.cancelled.set()
        quiet.wait()

    index.before = before
    try:
        with pytest.raises(WorkCancelled):
            environments.resolve(Needs(), interpreter, work)
    finally:
        quiet.set()


def test_a_lock_that_is_too_large(
    make: Callable[..., Environments], index: PackageIndex, interpreter: Interpreter
) -> None:
    """The size is compared before any package is installed; the largest are named."""
    index.add("large", files={"large.bin": os.urandom(100_000)})

    with pytest.raises(EnvironmentRefused, match=r"FN_ENVIRONMENT_MIB.*large 0"):
        make(limit=90_000).resolve(needs("large"), interpreter, Work())


def test_a_python_that_does_not_fit(environments: Environments, interpreter: Interpreter) -> None:
    """`requires-python` is compared before anything is asked."""
    wanted = read_needs({PROJECT: b'[project]\nrequires-python=">=3.99"\ndependencies=[]\n'})

    with pytest.raises(EnvironmentRefused, match=r"expected Python >=3\.99 \(pyproject\.toml\)"):
        environments.resolve(wanted, interpreter, Work())


def test_given_hashes_choose(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """Hashes in the needs are kept if the index has such a file, and refused if it has none."""
    sha256 = index.add("small")

    good = environments.resolve(
        needs(f"small==1.0 --hash=sha256:{sha256} --hash={A}"), interpreter, Work()
    )

    assert good.packages[1].hashes == (f"sha256:{sha256}",)
    with pytest.raises(
        EnvironmentRefused, match=r"small 1\.0: expected a file with one of the given"
    ):
        environments.resolve(needs(f"small==1.0 --hash={A}"), interpreter, Work())


def test_a_uv_lock_chooses_versions(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """A pin holds for what is needed indirectly, and not for what is not needed."""
    sha256 = index.add("small", "1.0")
    index.add("small", "2.0")
    index.add("large", requires=["small"])
    pin = '[[package]]\nname="small"\nversion="1.0"\nsource={registry="x"}\n'
    pins = f'version = 1\n{pin}wheels=[{{hash="sha256:{sha256}"}}]\n'
    pins += pin.replace("small", "other")
    project = b'[project]\ndependencies=["large"]\n'

    found = environments.resolve(
        read_needs({PROJECT: project, UV_LOCK: pins.encode()}), interpreter, Work()
    )

    assert [(one.name, one.version) for one in found.packages][-1] == ("small", "1.0")
    assert "other" not in {one.name for one in found.packages}


def test_wheels_of_a_bundle(
    environments: Environments, index: PackageIndex, interpreter: Interpreter, tmp_path: Path
) -> None:
    """A file of the bundle is taken where an index has the same name in a newer version, or other
    bytes in the same version."""
    index.add("mine", "1.0", files={"mine.py": b"evil = True\n"})
    index.add("mine", "9.0", files={"mine.py": b"evil = True\n"})
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    name, data = make_wheel("mine", "1.0", files={"mine.py": b"evil = False\n"})
    (wheels / name).write_bytes(data)

    found = environments.resolve(needs("mine"), interpreter, Work(), wheels=wheels)

    mine = found.packages[0]
    assert mine.version == "1.0"
    assert mine.hashes == (f"sha256:{hashlib.sha256(data).hexdigest()}",)
    assert mine.bundled
    with pytest.raises(EnvironmentRefused, match="expected the bundle's wheels of mine"):
        environments.ensure(found, interpreter, Work())
    built = environments.ensure(found, interpreter, Work(), wheels=wheels)
    assert (built.packages / "mine.py").read_bytes() == b"evil = False\n"


@pytest.mark.parametrize("name", ["x.txt", "evil-1.0.tar.gz", "bad.whl", "é-1-py3-none-any.whl"])
def test_other_files_beside_wheels_are_refused(tmp_path: Path, name: str) -> None:
    """The folder has wheels alone."""
    (tmp_path / name).write_bytes(b"")

    with pytest.raises(BadNeeds, match="wheels/"):
        read_wheels(tmp_path)


def test_a_link_is_no_wheel(tmp_path: Path) -> None:
    """A link could name any file of the server."""
    (tmp_path / "x-1.0-py3-none-any.whl").symlink_to("/etc/passwd")

    with pytest.raises(BadNeeds, match="expected a file"):
        read_wheels(tmp_path)


def test_two_versions_of_a_wheel_are_refused(tmp_path: Path) -> None:
    """One of them would be left out without a word."""
    for version in ("1.0", "2.0"):
        (tmp_path / f"x-{version}-py3-none-any.whl").write_bytes(b"")

    with pytest.raises(BadNeeds, match=r"one version of x, got 1\.0 and 2\.0"):
        read_wheels(tmp_path)


def test_the_text_is_the_same_again() -> None:
    """A lock has one text, and a text one lock."""
    one = lock(LockedPackage("a", "1.0", (A, B), None, True), LockedPackage("b", "2", (A,), 5))

    assert read_lock(one.text) == one
    assert read_lock(one.text).text == one.text
    assert one.text.count("\n") == 4


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"key": "x"},
        {"python": "3.11; evil"},
        {"python": "2.7"},
        {"platform": "a/b"},
        {"libc": ""},
        {"packages": ()},
        {"packages": TINY.packages * 2},
    ],
)
def test_a_strange_lock_is_refused(change: dict[str, object]) -> None:
    """Whatever has changed a stored text, no part of it reaches uv unchecked."""
    text = msgspec.json.encode(msgspec.structs.replace(TINY, **change))

    with pytest.raises(EnvironmentRefused, match="lock"):
        read_lock(text)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "-r"},
        {"name": "A"},
        {"name": "a b"},
        {"version": "1 --pre"},
        {"version": ""},
        {"hashes": ()},
        {"hashes": ("sha256:x",)},
        {"hashes": (B, A)},
        {"size": -1},
    ],
)
def test_a_strange_package_is_refused(change: dict[str, object]) -> None:
    """Each text of a package is one that we would write."""
    package = msgspec.structs.replace(TINY.packages[0], **change)

    with pytest.raises(EnvironmentRefused, match="lock"):
        read_lock(msgspec.json.encode(lock(package)))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema":1}', "x" * 2_000_000, "[" * 100_000])
def test_what_is_no_lock_is_refused(text: str) -> None:
    """Its size and parts are bounded."""
    with pytest.raises(EnvironmentRefused, match="lock"):
        read_lock(text)


def test_the_digest_is_of_packages_and_interpreter() -> None:
    """Sizes and the key do not change what is installed; the rest does."""
    base = TINY.digest
    package = TINY.packages[0]

    assert msgspec.structs.replace(TINY, key="1" * 64).digest == base
    assert lock(msgspec.structs.replace(package, size=11)).digest == base
    others = [
        lock(msgspec.structs.replace(package, version="1.1")).digest,
        lock(msgspec.structs.replace(package, hashes=(B,))).digest,
        msgspec.structs.replace(TINY, python="3.12").digest,
        msgspec.structs.replace(TINY, libc="musl").digest,
        msgspec.structs.replace(TINY, platform="linux-aarch64").digest,
    ]
    assert len({base, *others}) == 6


def test_equal_needs_have_one_key(interpreter: Interpreter, tmp_path: Path) -> None:
    """Order, comments and the patch version do not matter; versions, hashes and wheels do."""
    base = lock_key(needs("a>=1", "b"), interpreter)
    major, minor, patch = interpreter.version
    patched = replace(interpreter, version=(major, minor, patch + 1))
    (tmp_path / "a-1.0-py3-none-any.whl").write_bytes(b"")

    assert lock_key(needs("# x", "B ;", "a >= 1"), patched) == base
    others = [
        lock_key(needs("a>=2", "b"), interpreter),
        lock_key(needs("a>=1", f"b --hash={A}"), interpreter),
        lock_key(needs("a>=1", "b"), replace(interpreter, libc="musl")),
        lock_key(needs("a>=1", "b"), replace(interpreter, version=(major, minor + 1, 0))),
        lock_key(needs("a>=1", "b"), interpreter, read_wheels(tmp_path)),
    ]
    assert len({base, *others}) == 6


def test_a_missing_settings_file_is_named(tmp_path: Path, interpreter: Interpreter) -> None:
    """The operator's file must be there: without it packages would come from elsewhere."""
    environments = Environments(tmp_path / "e", EnvironmentSettings(tmp_path / "absent.toml"))

    with pytest.raises(FnError, match=r"FN_UV_CONFIG: expected a file, got .*absent\.toml"):
        environments.resolve(Needs(), interpreter, Work())
