"""The dashboard below /ui: its built files, served, and how they are built."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
"""Where the build puts the files."""
INDEX: Final = "index.html"
