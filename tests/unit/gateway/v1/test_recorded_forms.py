"""Forms as clients write them, recorded by `tests/support/form_clients/record.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.v1.endpoints import ENDPOINTS
from gateway.v1.multipart import form_type, scan_multipart
from gateway.v1.writing import upstream_body
from registry.errors import BadRequest
from registry.model.servers import ModelApi
from tests.support.odd_bodies import form_models_of
from tests.support.scans import run

RECORDS = Path(__file__).parents[3] / "data" / "forms"
FORMS = sorted(RECORDS.glob("*.form"))
REFUSED = {
    "spring_4_quote": "expected parameters as in RFC 9110",  # name="a"b"
    "curl_form_escape_line": "expected the head of a field to have lines",  # a line end in a name
}
"""Forms that no two parsers read alike."""


def read(path: Path) -> tuple[bytes, bytes]:
    """Return the Content-Type and the body of a record."""
    kind, _, body = path.read_bytes().partition(b"\r\n")
    return kind, body


def test_the_records_are_there() -> None:
    """Fewer records than clients would test less in silence."""
    assert len(FORMS) == 24
    assert {path.stem for path in FORMS} >= REFUSED.keys()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_client_names_its_model(path: Path) -> None:
    """The model is the value that its client has written there, and nothing else changes."""
    kind, body = read(path)
    if path.stem in REFUSED:
        with pytest.raises(BadRequest, match=REFUSED[path.stem]):
            run(scan_multipart(body, kind))
        return
    found = run(scan_multipart(body, kind))
    assert found.model == "whisper-1"
    begin, end = found.place
    endpoint = ENDPOINTS[b"/audio/transcriptions"]
    sent = b"".join(upstream_body(found, endpoint, ModelApi(served_model="org/m")).pieces)
    assert sent == body[:begin] + b"org/m" + body[end:]
    assert form_models_of(sent, form_type(kind).field()) == ["org/m"]
