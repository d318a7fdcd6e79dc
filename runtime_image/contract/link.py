"""Constants of the link, version 4: frame layout, kinds, flags, limits.

Every frame is a 16-byte little-endian header, `meta_len` bytes of meta, `body_len` bytes of body:

    u32 body_len | u32 id | u8 kind | u8 flags | u16 meta_len | u32 aux

`id` names a request on the data link; id 0 speaks about the link itself.
"""

from enum import IntEnum
from struct import Struct
from typing import Final

VERSION: Final = 4
HEADER: Final = Struct("<IIBBHI")
BODY_MAX: Final = 320 * 1024 * 1024
"""Bytes; above the largest answer (256 MiB) and body anyone may configure."""
ID_MAX: Final = 0xFFFF_FFFF
ANSWER_MAX: Final = 256 * 1024 * 1024
"""Bytes of one answer's body."""
CONTROL_MAX: Final = 1024 * 1024
"""Bytes of a body on a control link: texts and numbers, read by whoever runs everything."""
REFUTATION_MAX: Final = 500
"""Characters of the reason in BATCHING_OFF."""
FAILED_MAX: Final = 256 * 1024
"""Bytes of a RequestError, whose texts are bounded themselves."""
STARTED_MAX: Final = 4 * 0xFFFF
"""Bytes of the ids that one STARTED names: no replica has more requests."""
BUSY_MASK: Final = 0xFFFF_FFFF
"""PONG has the milliseconds of all runs of a replica modulo 2**32."""

SLAB_BODY_MIN: Final = 64 * 1024
"""Bytes from which a body goes through shared memory, where there is any: below, a frame is as
cheap. A body of 600 kB in a frame costs the server 2.5 times the processor time."""
ANSWER_SLAB_MAX: Final = 64 * 1024 * 1024
"""Bytes of a slab for answers. A page costs the replica nothing until it is written."""
SLAB_RANGE: Final = Struct("<IQQ")
"""A body in shared memory: number of the slab, offset and length in bytes."""
SLAB_NOTICE: Final = Struct("<IQ")
"""A message of the side channel: number and size of a slab, its descriptor beside it. Size 0 and
no descriptor: the slab is not used any more."""


class Kind(IntEnum):
    """Frame kinds. 1-15 belong to the control link, 16 and up to the data link."""

    HELLO = 1  # replica -> manager, and gateway -> replica: JSON body
    WELCOME = 2  # manager -> replica: JSON body, data listener's descriptor beside it
    BIND = 3  # manager -> replica: JSON body, the model to load
    LOADED = 4  # replica -> manager: JSON body, what was loaded and measured
    LOAD_FAILED = 5  # replica -> manager: JSON body, the reason
    PING = 6
    PONG = 7  # replica -> manager: aux = milliseconds in which its model has run, modulo 2**32
    DRAIN = 8  # manager -> replica: aux = must have been idle for so many milliseconds, 0 = any
    NOT_IDLE = 9  # replica -> manager: aux = milliseconds since the last request ended
    FIRST_RUN = 10  # replica -> manager: aux = microseconds of the first run
    GOAWAY = 11  # replica -> gateway: aux = last id it will still answer
    BATCHING_OFF = 12  # replica -> manager: JSON body, why it joins no more; and back: join no more
    REQUEST = 16  # gateway -> replica: aux = execution timeout in milliseconds
    RESPONSE = 17  # replica -> gateway: aux = length of the JSON part of a binary answer, or 0
    FAILED = 18  # replica -> gateway: JSON body, a RequestError
    STARTED = 19  # replica -> gateway: body = u32 ids that begin to run now
    NOT_STARTED = 20  # replica -> gateway: this request was not and will not be run; aux = reason
    CANCEL = 21  # gateway -> replica
    CANCELLED = 22  # replica -> gateway: the id is free again
    PART = 23  # replica -> manager: one piece of what FETCH asked for; reserved for streams
    END = 24  # replica -> manager: the end of it; reserved for streams
    WINDOW = 25  # replica -> gateway: id 0, there is room again; ids > 0 reserved for streams
    FREED = 26  # gateway -> replica: body = SLAB_RANGE of an answer that was read
    FETCH = 27  # manager -> trial: aux = the part of a prepared model that is wanted


class Flag(IntEnum):
    """Bits of the header's `flags`."""

    OPTIONAL = 1  # a receiver that does not know this kind skips the frame
    TRACE = 2  # the last meta field is a W3C traceparent
    ALONE = 4  # REQUEST: run in a batch of one, and say when it starts
    FIRST = 8  # RESPONSE: of the replica's first run
    SLAB = 16  # REQUEST, RESPONSE: the body is a SLAB_RANGE, the real body is there


class NotStarted(IntEnum):
    """Why a request was handed back unrun (`aux` of NOT_STARTED)."""

    FULL = 1  # over the replica's limit; a WINDOW frame follows when there is room
    DRAINING = 2  # the replica is going away
    BATCH_TIMEOUT = 3  # its batch ran out of time because of another request; run it alone


META_SEPARATOR: Final = b"\n"
"""Meta is latin-1 text fields joined by this; a header value cannot hold it.

REQUEST: content type, Accept, Inference-Header-Content-Length or "", traceparent (flag TRACE).
"""

ANSWER_META: Final = Struct("<B5I")
"""Meta of a RESPONSE: its place in CONTENT_TYPES, decode_us, batch_us, compute_us, encode_us, rows
in the batch."""
CONTENT_TYPES: Final = ("application/json", "application/octet-stream", "application/x-npy")
"""Content types of a replica's answers."""
