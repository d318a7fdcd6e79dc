"""Tests of wheels and source distributions, built from a clean copy of this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from admin.ui.build import NODE_PACKAGE
from tests.support.engine import refuse

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "admin" / "dashboard" / "node_modules"
NEEDED = {
    "admin/cli/templates/plain/handler.py.in",
    "admin/grafana/dashboard.json",
    "admin/grafana/rules.yml",
    "gateway/grpc/inference.binpb",
    "gateway/grpc/inference.proto",
    "registry/store/migrations/0001_nouns.sql",
    "runtime_image/Dockerfile.runtime",
    "runtime_image/Dockerfile.server",
    "runtime_image/requirements.lock",
    "runtime_image/requirements/cpu.txt",
    "runtime_image/requirements/gpu.txt",
    "runtime_image/seccomp/install.py",
}
"""Files of a wheel besides code and dashboard: data, and what an image is built from."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the checkout as a clone would have it, without a built dashboard and its packages."""
    folder = tmp_path_factory.mktemp("clone")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "benchmarks/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(clone: Path) -> set[str]:
    """Build a wheel of the clone with the packages that `make ui` has fetched; return its names."""
    if not PACKAGES.is_dir():
        refuse("the dashboard's packages are not there: make ui")
    shutil.copytree(PACKAGES, clone / "admin/dashboard/node_modules", symlinks=True)
    done = call(clone, "print(build_wheel('wheels'))")
    return names_in(clone / "wheels" / last_line(done))


def call(folder: Path, hooks: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call hooks of the build backend as a build front end does."""
    code = f"import sys; sys.path.insert(0, '.'); from build_backend import *; {hooks}"
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that successful hooks printed; setuptools prints its steps before it."""
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def dashboard(names: set[str]) -> set[str]:
    """Return the files of a built dashboard."""
    return {name for name in names if name.startswith("admin/ui/static/")}


def test_a_wheel_of_a_clean_clone_has_everything(wheel: set[str]) -> None:
    """A wheel has the dashboard, the migrations, the files that an image is built from and the
    licence, but no sources of pages."""
    assert wheel >= NEEDED | {"admin/ui/static/index.html"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)
    assert {Path(name).suffix for name in dashboard(wheel)} >= {".html", ".js", ".css"}
    assert not [name for name in wheel if name.startswith(("admin/dashboard/", "functions/"))]


def test_a_wheel_may_leave_the_dashboard_out(clone: Path, wheel: set[str]) -> None:
    """With FN_NO_UI=1 a wheel has no dashboard, even a built one; the other files are the same."""
    assert (clone / "admin/ui/static/index.html").is_file()

    done = call(clone, "print(build_wheel('plain'))", FN_NO_UI="1")

    names = names_in(clone / "plain" / last_line(done))
    assert names == wheel - dashboard(wheel)


def test_a_build_that_is_current_is_used(clone: Path, wheel: set[str]) -> None:
    """A second wheel needs neither Node nor the dashboard's packages, and has the same files."""
    hooks = "print(get_requires_for_build_wheel(), build_wheel('again'))"

    needs, name = last_line(call(clone, hooks, PATH="")).split()

    assert needs == "[]"
    assert names_in(clone / "again" / name) == wheel


@pytest.fixture
def bare(clone: Path, tmp_path: Path) -> Path:
    """A clean clone on a machine without Node and its packages."""
    ignored = shutil.ignore_patterns("node_modules", "static", "build", "*.egg-info", "wheels")
    shutil.copytree(clone, tmp_path / "bare", ignore=ignored)
    return tmp_path / "bare"


def test_without_node_a_wheel_requests_it(bare: Path) -> None:
    """Without Node, a wheel with a dashboard requires it as a package; an editable install and
    FN_NO_UI=1 do not."""
    hooks = "print(get_requires_for_build_wheel(), get_requires_for_build_editable())"

    requested = [last_line(call(bare, hooks, PATH="", FN_NO_UI=no_ui)) for no_ui in "01"]

    assert requested == [f"[{NODE_PACKAGE!r}] []", "[] []"]


@pytest.mark.parametrize("path", ["", None], ids=["no Node", "no packages"])
def test_a_dashboard_that_cannot_be_built_ends_the_build(bare: Path, path: str | None) -> None:
    """The error names what is missing and FN_NO_UI=1; there is no wheel without a dashboard."""
    if path is None and shutil.which("npm") is None:
        refuse("there is no npm")
    offline = {"npm_config_offline": "true", "npm_config_cache": str(bare / "empty")}
    given = offline if path is None else {"PATH": path}

    done = call(bare, "build_wheel('wheels')", **given)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert ("npm ci" if path is None else "it needs Node 20.19 or newer") in done.stderr
    assert done.stderr.endswith("To build a wheel without the dashboard, set FN_NO_UI=1.\n")
    assert not list(bare.glob("wheels/*"))


def test_an_editable_install_builds_no_dashboard(bare: Path) -> None:
    """An editable install uses the checkout's files, where `make ui` builds the dashboard."""
    done = call(bare, "build_editable('wheels', {'editable_mode': 'compat'})")

    assert done.returncode == 0, done.stderr
    assert not (bare / "admin/ui/static").exists()
    assert not dashboard(names_in(next(bare.glob("wheels/*.whl"))))


def test_the_source_distribution_builds_the_same_wheel(
    clone: Path, wheel: set[str], tmp_path: Path, unpacked: Callable[[Path], Path]
) -> None:
    """A source distribution has the dashboard's sources, not the built files; a wheel built from it
    has the dashboard."""
    done = call(clone, f"print(build_sdist({str(tmp_path)!r}))")
    sources = unpacked(tmp_path / last_line(done))
    assert not (sources / "admin/ui/static").exists()
    assert (sources / "functions/digits/digits.onnx").is_file()
    shutil.copytree(PACKAGES, sources / "admin/dashboard/node_modules", symlinks=True)

    built = call(sources, "print(build_wheel('wheels'))")

    assert names_in(sources / "wheels" / last_line(built)) == wheel


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[Path], Path]:
    """Unpack a source distribution; return its folder."""

    def unpack(archive: Path) -> Path:
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path, filter="data")
        return tmp_path / archive.name.removesuffix(".tar.gz")

    return unpack
