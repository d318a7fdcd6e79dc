"""Tests of folders of packages: built from an index on loopback, shared, removed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import subprocess
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from environments.folders import BUILD, CACHE, Environment, Environments, EnvironmentSettings
from environments.interpreters import Interpreter
from environments.lock import Lock
from environments.needs import REQUIREMENTS, read_needs
from environments.programs import Progress, Work, WorkCancelled
from registry.errors import EnvironmentRefused, IndexAway, StoreUnavailable, Unknown
from tests.support.package_index import PackageIndex, make_wheel
from tests.support.small_disk import fill, small_disk

DAY_S = 24 * 3600.0


def resolved(environments: Environments, interpreter: Interpreter, *names: str) -> Lock:
    needs = read_needs({REQUIREMENTS: "\n".join(names).encode()})
    return environments.resolve(needs, interpreter, Work())


def left(environments: Environments) -> list[str]:
    """Return what lies in the folder besides environments, locks and cache."""
    names = sorted(os.listdir(environments.root))
    return [name for name in names if len(name) < 64 and not name.endswith(("lock", CACHE))]


def cached(environments: Environments, name: str) -> Path:
    """Return a file of the cache."""
    (found,) = (environments.root / CACHE / "archive-v0").rglob(name)
    return found


def test_an_environment_has_its_packages_and_their_bytecode(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """It is found again, nobody may write to it, and nothing else is left."""
    index.add("small", scripts={"hello": "small:main"})
    lock = resolved(environments, interpreter, "small")
    told: list[Progress] = []

    built = environments.ensure(lock, interpreter, Work(told.append))

    assert built.name == lock.digest
    assert built.scripts == {"hello": "small:main"}
    assert {one.phase for one in told} >= {"load", "check", "compile", "store"}
    tag = f"cpython-{interpreter.version[0]}{interpreter.version[1]}"
    assert (built.packages / "__pycache__" / f"small.{tag}.pyc").is_file()
    assert (built.packages / "msgspec" / "__pycache__" / f"__init__.{tag}.pyc").is_file()
    modes = {path.lstat().st_mode for path in [built.folder, *built.folder.rglob("*")]}
    assert {stat.S_IMODE(mode) & 0o222 for mode in modes} == {0}
    assert {stat.S_IMODE(mode) & 0o444 for mode in modes} == {0o444}
    assert environments.find(lock) == environments.listed()[0]
    assert left(environments) == []


def test_the_second_use_asks_nobody(
    make: Callable[..., Environments], index: PackageIndex, interpreter: Interpreter
) -> None:
    """A lock whose environment is there needs no index, and no uv."""
    environments = make()
    lock = resolved(environments, interpreter, "msgspec")
    first = environments.ensure(lock, interpreter, Work())
    index.asked.clear()

    second = make().ensure(lock, interpreter, Work(told=pytest.fail))

    assert second.folder == first.folder
    assert index.asked == []


def test_a_missing_environment_is_built_from_the_cache(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """It comes back without an index, linked to the files of the cache."""
    index.add("small")
    lock = resolved(environments, interpreter, "small")
    environments.remove(environments.ensure(lock, interpreter, Work()).name)
    index.asked.clear()
    index.status = 503

    built = environments.ensure(lock, interpreter, Work())

    assert index.asked == []
    assert (built.packages / "small.py").samefile(cached(environments, "small.py"))


def test_the_index_is_away(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """What the cache has not needs the index; nothing has changed."""
    index.add("small", files={"small.py": b"", "large.bin": os.urandom(100_000)})
    lock = resolved(environments, interpreter, "small")
    assert environments.clean() is None
    for path in (environments.root / CACHE).iterdir():
        subprocess.run(["rm", "-rf", str(path)], check=True)
    index.status = 503

    with pytest.raises(IndexAway):
        environments.ensure(lock, interpreter, Work())
    assert environments.listed() == []
    assert left(environments) == []


def test_similar_environments_share_files(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """Packages that two locks have are on the disk once; a copy for one function shares none."""
    index.add("small")
    index.add("other")
    one = environments.ensure(resolved(environments, interpreter, "small"), interpreter, Work())
    lock = resolved(environments, interpreter, "small", "other")
    two = environments.ensure(lock, interpreter, Work())

    own = environments.ensure(lock, interpreter, Work(), owner="mine")

    assert (one.packages / "small.py").samefile(two.packages / "small.py")
    assert own.name == f"{lock.digest}.mine"
    assert {path.lstat().st_nlink for path in own.packages.rglob("*") if path.is_file()} == {1}
    assert environments.find(lock, "mine") == own
    assert environments.find(lock, "yours") is None
    assert len(environments.listed()) == 3


@pytest.mark.parametrize("owner", ["../x", "a/b", "A", "x" * 64])
def test_an_owner_is_the_name_of_a_function(
    environments: Environments, interpreter: Interpreter, owner: str
) -> None:
    """It becomes a part of a folder's name."""
    lock = resolved(environments, interpreter)

    with pytest.raises(EnvironmentRefused, match="name of a function"):
        environments.ensure(lock, interpreter, Work(), owner=owner)


def test_another_file_than_the_locked_one(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """An index that changes a file under its name is noticed before it is installed."""
    index.add("small")
    lock = resolved(environments, interpreter, "small")
    for path in (environments.root / CACHE).iterdir():
        subprocess.run(["rm", "-rf", str(path)], check=True)
    index.add("small", files={"small.py": b"evil = True\n"})

    with pytest.raises(EnvironmentRefused, match=r"(?s)not the one that was locked|hash"):
        environments.ensure(lock, interpreter, Work())
    assert environments.listed() == []
    assert left(environments) == []


def test_an_index_that_lies_about_a_hash(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """The file is compared with what the index said at first."""
    index.add("small")
    index.false_hashes["small-1.0-py3-none-any.whl"] = "0" * 64

    lock = resolved(environments, interpreter, "small")
    with pytest.raises(EnvironmentRefused, match=r"(?i)hash"):
        environments.ensure(lock, interpreter, Work())
    assert environments.listed() == []


@pytest.mark.parametrize("change", ["bytes", "added", "removed"])
def test_a_changed_cache_is_noticed(
    environments: Environments, index: PackageIndex, interpreter: Interpreter, change: str
) -> None:
    """A file that a function changed through an environment is not passed on to the next one: the
    cache is emptied, and all is loaded anew."""
    index.add("small")
    first = environments.ensure(resolved(environments, interpreter, "small"), interpreter, Work())
    index.add("other")
    lock = resolved(environments, interpreter, "small", "other")
    victim = cached(environments, "small.py")
    if change == "bytes":
        victim.chmod(0o644)
        with victim.open("r+b") as file:
            file.write(b"W")
        assert (first.packages / "small.py").read_bytes()[:1] == b"W"
    elif change == "added":
        victim.with_name("sitecustomize.py").write_text("evil = True\n")
    else:
        victim.unlink()
    index.asked.clear()

    second = environments.ensure(lock, interpreter, Work())

    assert (second.packages / "small.py").read_bytes() == b"V = '1.0'\n"
    assert not (second.packages / "sitecustomize.py").exists()
    assert [path for path in index.asked if path.endswith(".whl")]


def test_a_changed_cache_without_an_index(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """Without an index there is no environment rather than a changed one."""
    index.add("small")
    lock = resolved(environments, interpreter, "small")
    environments.remove(environments.ensure(lock, interpreter, Work()).name)
    victim = cached(environments, "small.py")
    victim.chmod(0o644)
    victim.write_bytes(b"evil = True\n")
    index.status = 503

    with pytest.raises(IndexAway):
        environments.ensure(lock, interpreter, Work())
    assert environments.listed() == []


def test_a_wheel_that_does_not_fit_its_record(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """A wheel with files that its RECORD does not have is refused by its file."""
    name, data = make_wheel("small")
    _, other = make_wheel("small", files={"small.py": b"V = '1.0'\n", "more.py": b""})
    index.add_file("small", name, _with_record_of(other, data))
    lock = resolved(environments, interpreter, "small")

    with pytest.raises(EnvironmentRefused, match=r"'more\.py': expected"):
        environments.ensure(lock, interpreter, Work())
    assert environments.listed() == []
    assert left(environments) == []


def _with_record_of(wheel: bytes, other: bytes) -> bytes:
    """Return a wheel with the RECORD of another one."""
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(wheel)) as files,
        zipfile.ZipFile(io.BytesIO(other)) as records,
        zipfile.ZipFile(packed, "w") as archive,
    ):
        for name in files.namelist():
            archive.writestr(name, (records if name.endswith("RECORD") else files).read(name))
    return packed.getvalue()


@pytest.mark.parametrize("path", ["../evil.py", "/tmp/evil-of-a-wheel.py", "a/../../evil.py"])
def test_a_wheel_that_leaves_its_folder(
    environments: Environments, index: PackageIndex, interpreter: Interpreter, path: str
) -> None:
    """No file lies outside."""
    index.add("small", files={"small.py": b"", path: b"evil = True\n"})
    lock = resolved(environments, interpreter, "small")

    with contextlib.suppress(EnvironmentRefused):
        environments.ensure(lock, interpreter, Work())
    assert not list(environments.root.rglob("evil*.py"))
    assert not list(environments.root.parent.glob("evil*.py"))
    assert not Path("/tmp/evil-of-a-wheel.py").exists()


def test_a_file_that_is_no_python_has_no_bytecode(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """Packages have templates and files of other versions; code of none of them runs."""
    deep = b"x = " + b"(" * 5_000 + b")" * 5_000 + b"\n"
    files = {"small.py": b"", "old.py": b"print 1\n", "bad.py": b"\xff\n", "deep.py": deep}
    files["run.py"] = b"open('/tmp/evil-that-ran', 'w')\n"
    files["x.pth"] = b"import os; open('/tmp/evil-that-ran', 'w')\n"
    index.add("small", files=files)

    built = environments.ensure(resolved(environments, interpreter, "small"), interpreter, Work())

    names = {path.name.partition(".")[0] for path in (built.packages / "__pycache__").iterdir()}
    assert names == {"small", "run"}
    assert not Path("/tmp/evil-that-ran").exists()


def test_bytecode_is_not_compared_with_its_source(
    environments: Environments, interpreter: Interpreter
) -> None:
    """Folders never change, and other hosts may give them other times."""
    built = environments.ensure(resolved(environments, interpreter), interpreter, Work())

    (pyc,) = (built.packages / "msgspec" / "__pycache__").iterdir()
    assert pyc.read_bytes()[4:8] == b"\x01\x00\x00\x00"
    assert str(built.packages).encode() in pyc.read_bytes()


def test_a_wheel_that_grows_is_ended(
    make: Callable[..., Environments], index: PackageIndex, interpreter: Interpreter
) -> None:
    """A small wheel of many bytes is no way around the limit."""
    index.add("bomb", files={"bomb.bin": b"\0" * 20_000_000})
    environments = make(limit=2_000_000)
    lock = resolved(environments, interpreter, "bomb")
    assert lock.size < 100_000

    with pytest.raises((EnvironmentRefused, StoreUnavailable)):
        environments.ensure(lock, interpreter, Work())
    assert environments.listed() == []
    assert left(environments) == []


def test_a_disk_that_is_full(tmp_path: Path, index: PackageIndex, interpreter: Interpreter) -> None:
    """It is said as what it is, and leaves nothing."""
    index.says_sizes = False
    index.add("large", files={"large.bin": os.urandom(9_000_000)})
    with small_disk(tmp_path / "disk", 7) as disk:
        settings = EnvironmentSettings(index.config(tmp_path))
        environments = Environments(disk / "environments", settings)

        lock = resolved(environments, interpreter, "large")
        with pytest.raises(StoreUnavailable, match="disk full"):
            environments.ensure(lock, interpreter, Work())
        assert left(environments) == []
        fill(disk)
        with pytest.raises(StoreUnavailable, match="disk full"):
            environments.ensure(lock, interpreter, Work(), owner="mine")
        assert environments.listed() == []
        assert left(environments) == []


def test_the_size_is_compared_with_the_disk(
    tmp_path: Path, index: PackageIndex, interpreter: Interpreter
) -> None:
    """A lock that cannot fit loads nothing."""
    index.add("large", files={"large.bin": os.urandom(9_000_000)})
    settings = EnvironmentSettings(index.config(tmp_path))
    elsewhere = Environments(tmp_path / "elsewhere", settings)
    lock = resolved(elsewhere, interpreter, "large")
    index.asked.clear()

    with small_disk(tmp_path / "disk", 8) as disk:
        environments = Environments(disk / "environments", settings)
        with pytest.raises(StoreUnavailable, match="disk full: expected 9"):
            environments.ensure(lock, interpreter, Work())
    assert index.asked == []


def test_a_build_is_cancelled(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """At any step; then nothing has changed, and the next one is right."""
    index.add("small")
    lock = resolved(environments, interpreter, "small")
    for phase in ("load", "check", "compile", "store"):
        work = Work()

        def told(step: Progress, phase: str = phase, work: Work = work) -> None:
            if step.phase == phase:
                work.cancelled.set()

        work.told = told
        with pytest.raises(WorkCancelled):
            environments.ensure(lock, interpreter, work)
        assert environments.listed() == []
        assert left(environments) == []

    assert environments.ensure(lock, interpreter, Work()).lock == lock


def test_a_build_has_a_deadline(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """One that has no time left ends with the seconds that it had."""
    lock = resolved(environments, interpreter)

    with pytest.raises(EnvironmentRefused, match="expected an end within 0 s"):
        environments.ensure(lock, interpreter, Work(seconds=0.0))
    assert left(environments) == []


def test_builds_follow_each_other(
    make: Callable[..., Environments], index: PackageIndex, interpreter: Interpreter
) -> None:
    """Of two at once one builds; the other waits, says so, and finds its result."""
    index.add("small")
    lock = resolved(make(), interpreter, "small")
    for path in (make().root / CACHE).iterdir():
        subprocess.run(["rm", "-rf", str(path)], check=True)
    waits, loads = threading.Event(), threading.Event()
    seen: list[str] = []
    built: list[Environment] = []

    def before(path: str) -> None:
        loads.set()
        waits.wait()

    def told(step: Progress) -> None:
        seen.append(step.phase)
        waits.set()

    index.before = before
    first = threading.Thread(target=lambda: built.append(make().ensure(lock, interpreter, Work())))
    first.start()
    loads.wait()
    built.append(make().ensure(lock, interpreter, Work(told)))
    first.join()

    assert set(seen) == {"wait"}
    assert built[0].folder == built[1].folder
    assert len(make().listed()) == 1


def test_unused_ones_are_removed_after_a_day(
    environments: Environments, index: PackageIndex, interpreter: Interpreter
) -> None:
    """Neither what a revision names nor what was used since yesterday; copies are named apart."""
    made: dict[str, Environment] = {}
    for name in ("named", "used", "unused"):
        index.add(name)
        lock = resolved(environments, interpreter, name)
        made[name] = environments.ensure(lock, interpreter, Work())
    own = environments.ensure(made["named"].lock, interpreter, Work(), owner="mine")
    now_s = own.used_s + 10 * DAY_S
    environments.use(made["used"].name, now_s - DAY_S / 2)

    removed = environments.remove_unused([made["named"].name], now_s)

    assert {one.name for one in removed} == {made["unused"].name, own.name}
    kept = {made["named"].name, made["used"].name}
    assert {one.name for one in environments.listed()} == kept
    assert left(environments) == []


@pytest.mark.parametrize("name", ["0" * 64, "..", "../../x", "", ".cache", "0" * 63 + "G"])
def test_only_environments_are_removed(environments: Environments, name: str) -> None:
    """A name is a digest, and no path."""
    with pytest.raises(Unknown):
        environments.remove(name)


def test_the_cache_is_emptied_over_its_limit(
    make: Callable[..., Environments], index: PackageIndex, interpreter: Interpreter
) -> None:
    """Environments keep their files; while something builds nothing is removed."""
    index.add("small")
    environments = make(cache_max=100)
    built = environments.ensure(resolved(environments, interpreter, "small"), interpreter, Work())
    tried: list[bool] = []
    index.add("other")

    resolved_too = Work(lambda _: tried.append(environments.trim_cache()))
    environments.resolve(read_needs({REQUIREMENTS: b"other"}), interpreter, resolved_too)

    assert tried
    assert not any(tried)
    assert not make().trim_cache()
    assert environments.trim_cache()
    assert os.listdir(environments.root / CACHE) == []
    assert (built.packages / "small.py").read_bytes()


def test_leftovers_are_removed(environments: Environments, interpreter: Interpreter) -> None:
    """By the next start, and by the next build."""
    for folder in (f"{BUILD}1", ".gone-1", ".resolve-1"):
        (environments.root / folder / "a").mkdir(parents=True)
        (environments.root / folder / "a").chmod(0o500)

    environments.clean()

    assert left(environments) == []


def test_another_python_is_refused(environments: Environments, interpreter: Interpreter) -> None:
    """A lock is for one version and platform."""
    lock = resolved(environments, interpreter)
    other = replace(interpreter, version=(3, 99, 0))

    with pytest.raises(EnvironmentRefused, match=r"expected Python 3\.\d+ on .*, got 3\.99\.0"):
        environments.ensure(lock, other, Work())


def test_an_unreadable_environment_is_said(
    environments: Environments, interpreter: Interpreter
) -> None:
    """A damaged description is no environment that is missing."""
    lock = resolved(environments, interpreter)
    built = environments.ensure(lock, interpreter, Work())
    about = built.folder / "about.json"
    about.chmod(0o600)
    about.write_text(json.dumps({"size": "x"}))

    with pytest.raises(StoreUnavailable, match=r"cannot be read: .*; remove its folder"):
        environments.find(lock)
    assert environments.listed() == []
    environments.remove(built.name)
    assert environments.ensure(lock, interpreter, Work()).lock == lock
