"""The Open Inference Protocol's form of an error.

Source: KServe Open Inference Protocol, "Inference Response JSON Error Object".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gateway import problems
from gateway.replies import Reply

if TYPE_CHECKING:
    from registry.errors import FnError

CODE: Final = "Fn-Problem"
"""Header with fngate's code of the problem."""
_CONTENT_TYPE: Final = "Content-Type"
LINE_MAX: Final = 128
"""Bytes of a request line that `is_protocols` needs."""
_LINE: Final = re.compile(rb"\s{0,8}[!-~]{1,32} (?:https?://[!-.0->@-~]{0,80})?/v2(?:[/?#\s]|$)")


def reply(error: FnError, *, for_admin: bool = False) -> Reply:
    """Return the answer for an error: `{"error": text}`.

    Status and headers are those of its problem document. `for_admin` adds what only administrators
    may read to the text.
    """
    status, headers, *_ = problems.reply(error)
    kept = (header for header in headers if header[0] != _CONTENT_TYPE)
    shaped = ((_CONTENT_TYPE, "application/json"), (CODE, error.code), *kept)
    return Reply(
        status, shaped, problems.encoded({"error": problems.line(error, for_admin=for_admin)})
    )


def is_protocols(line: bytes) -> bool:
    """Return whether a request that begins with these bytes is one of the protocol: its client
    reads errors in this form, also of a head that is no HTTP."""
    return _LINE.match(line) is not None
