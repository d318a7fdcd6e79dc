"""Build backend (PEP 517, PEP 660): setuptools, with the dashboard in every wheel.

A wheel builds the dashboard first, with Node from the PATH or else from the package that
`get_requires_for_build_wheel` requests; its types come from the OpenAPI document, which
`admin.documents.openapi` makes with msgspec alone. FN_NO_UI=1 builds a wheel without the dashboard.
An editable install never builds it: `make ui` and `make run` do. A source distribution has the
sources of the dashboard and never the built files.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any, Final

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.build_py import build_py

from admin.ui import FOLDER
from admin.ui import build as ui

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# The Makefile gives the reason for this mode, and a user cannot change it: no warning.
warnings.filterwarnings("ignore", message="Compat editable installs")

ROOT: Final = Path(__file__).parent
IMAGE_FILES: Final = ("Dockerfile.runtime", "Dockerfile.server", "requirements.lock")
"""Files at the root of a checkout that `fnctl image build` reads; a wheel has them in
`runtime_image`."""
UI_PACKAGE: Final = "admin.ui"
Config = dict[str, Any] | None


def is_without_ui() -> bool:
    """Return whether FN_NO_UI asks for a wheel without the dashboard."""
    return os.environ.get("FN_NO_UI", "") not in ("", "0")


def get_requires_for_build_wheel(config_settings: Config = None) -> list[str]:
    """Return what a wheel's build needs: Node too, where it will be used and is not there."""
    needs: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if is_without_ui() or ui.is_current(ui.SOURCES, FOLDER) or ui.find_node():
        return needs
    return [*needs, ui.NODE_PACKAGE]


def build_wheel(
    wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel with the dashboard; end the build where that cannot be built."""
    if not is_without_ui():
        try:
            ui.build(ui.SOURCES, FOLDER, may_fetch_node=False)
        except ui.CannotBuild as error:
            sys.exit(
                f"error: the dashboard cannot be built: {error}\n"
                "To build a wheel without the dashboard, set FN_NO_UI=1."
            )
    # setuptools never removes files of an earlier build, and the names of built files have hashes.
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name


class BuildPy(build_py):  # type: ignore[misc] # setuptools is skipped by mypy
    """Copies the packages: without the dashboard for FN_NO_UI, and with IMAGE_FILES."""

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        """Return the data files of one package."""
        if package == UI_PACKAGE and is_without_ui():
            return []
        files: list[str] = super().find_data_files(package, src_dir)
        return files

    def run(self) -> None:
        """Copy everything. An editable install has the files in the checkout."""
        super().run()
        if not self.editable_mode:
            for name in IMAGE_FILES:
                self.copy_file(str(ROOT / name), str(Path(self.build_lib, "runtime_image", name)))
