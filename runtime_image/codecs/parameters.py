"""Parameters of a request in the Open Inference Protocol.

Source: KServe Open Inference Protocol, "Inference Request JSON Object"; Triton's "Parameters",
"Schedule Policy", "Sequence" and "Binary data" extensions. Names that nothing here knows are the
client's own and are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from runtime_image.codecs.tensors import bad_body, shorten

SIZE_MAX: Final = 64 * 1024
"""Bytes. Parameters are decoded to objects many times their size."""
RESERVED: Final = "triton_"
"""Prefix of names that the protocol reserves."""
_RESERVED_KEY: Final = b'"' + RESERVED.encode()
_EXPECTED: Final = (
    "parameters as an object, with timeout (microseconds) and priority as integers from 0 and"
    " binary_data_output as a boolean"
)
_COUNT_MAX: Final = 2**63 - 1
_Count = Annotated[int, Meta(ge=0, le=_COUNT_MAX)]


class Parameters(msgspec.Struct, gc=False):
    """Parameters of a request that have a meaning here.

    `timeout` limits the time in the queue, in microseconds, 0 for no limit. `priority`: 1 is the
    highest, 0 the default. The `sequence_` parameters are known in order to be refused.
    """

    binary_data_output: bool | None = None
    timeout: _Count | None = None
    priority: _Count | None = None
    sequence_id: int | str | None = None
    sequence_start: bool | None = None
    sequence_end: bool | None = None


NONE: Final = Parameters()
_parameters: Final = msgspec.json.Decoder(Parameters | None)
_names: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read(raw: Any) -> Parameters:
    """Return the parameters in a piece of JSON (bytes-like); raises BAD_INPUT.

    A sequence's id of 0 or "" stands for no sequence, as its other parameters do if they are false.
    """
    if len(raw) > SIZE_MAX:
        raise bad_body(f"parameters of at most {SIZE_MAX} bytes", f"{len(raw)} bytes")
    try:
        found = _parameters.decode(raw) or NONE
    except (ValueError, RecursionError) as error:
        raise bad_body(_EXPECTED, shorten(str(error))) from None
    for name in ("sequence_id", "sequence_start", "sequence_end"):
        if getattr(found, name):
            raise bad_body("a request without a sequence, which no function has", f"{name}")
    if _RESERVED_KEY in bytes(raw):
        for name in _names.decode(raw):
            if name.startswith(RESERVED):
                raise bad_body(
                    f"parameters whose names do not begin with {RESERVED}", shorten(name)
                )
    return found
