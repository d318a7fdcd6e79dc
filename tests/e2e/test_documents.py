"""The documents through a real server: what a reader types gives what a reader is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.document_runs import ROOT, desk, documents


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_documents_show_what_happens(tmp_path: Path) -> None:
    """Each console block of README.md and docs/ runs in order and prints what is shown.

    `python -m tests.support.document_runs --write` puts the real output into the documents.
    """
    with desk(tmp_path / "fngate") as place:
        troubles = [
            f"{path.relative_to(ROOT)}: {one.trouble}"
            for path in documents()
            for one in place.run(path.read_text("utf-8"))
            if one.trouble
        ]

    assert not troubles, "\n".join(troubles)
