"""Dashboard below /ui: its build, and the handlers of its files."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
"""Output folder of the build."""
INDEX: Final = "index.html"
