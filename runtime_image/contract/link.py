"""Constants of the link, version 11: frame layout, kinds, flags, limits.

Every frame is a 16-byte little-endian header, `meta_len` bytes of meta, `body_len` bytes of body:

    u32 body_len | u32 id | u8 kind | u8 flags | u16 meta_len | u32 aux

`id` names a request on the data link; frames with id 0 concern the link itself.
"""

from enum import IntEnum
from struct import Struct
from typing import Final

VERSION: Final = 11
SPOKEN: Final = range(9, VERSION + 1)
"""Versions that a server speaks: replicas which an earlier server started keep theirs, which HELLO
has. In version 9, record and BIND have one `device` in place of `devices`. Version 11 adds links
over TLS, which no earlier replica has. All else is the same."""
HEADER: Final = Struct("<IIBBHI")
BODY_MAX: Final = 320 * 1024 * 1024
"""Bytes; above the largest answer (256 MiB) and the largest request body that can be configured."""
ID_MAX: Final = 0xFFFF_FFFF
ANSWER_MAX: Final = 256 * 1024 * 1024
"""Max bytes of an answer's body."""
CONTROL_MAX: Final = 1024 * 1024
"""Max bytes of a body on a control link: text and numbers only, parsed by the manager."""
REFUTATION_MAX: Final = 500
"""Max characters of the reason in BATCHING_OFF."""
FAILED_MAX: Final = 256 * 1024
"""Max bytes of a RequestError; each of its texts is bounded too."""
STARTED_MAX: Final = 4 * 0xFFFF
"""Max bytes of the ids in one STARTED frame: no replica holds more requests."""
BUSY_MASK: Final = 0xFFFF_FFFF
"""PONG carries the total run time of a replica in milliseconds, modulo 2**32."""
RUN_COUNT: Final = Struct("<I4Q")
"""One entry of a PONG's body, by rising rows: rows of a batch (0 for all further sizes), successful
runs, and their total nanoseconds of decoding, running and encoding, since the load."""
RUN_SIZES_MAX: Final = 128
"""Max batch sizes that a replica counts; all further ones are counted together."""
RUN_NUMBER_MAX: Final = 2**53
"""Max value of such a number: 104 days in nanoseconds. It stays there."""

SLAB_BODY_MIN: Final = 64 * 1024
"""Min bytes of a body that goes through shared memory, where the link has it; a smaller one is as
cheap in a frame. A body of 600 kB in a frame costs the server 2.5 times the processor time."""
ANSWER_SLAB_MAX: Final = 64 * 1024 * 1024
"""Bytes of a slab for answers. Its pages use no memory until they are written."""
SLAB_RANGE: Final = Struct("<IQQ")
"""A body in shared memory: number of the slab, offset and length in bytes."""
SLAB_NOTICE: Final = Struct("<IQ")
"""A message of the side channel: number and size of a slab, with its descriptor as ancillary data.
Size 0 and no descriptor: the slab is retired."""


class Kind(IntEnum):
    """Frame kinds. 1-15 belong to the control link, 16 and up to the data link."""

    HELLO = 1  # replica -> manager, and gateway -> replica: JSON body
    WELCOME = 2  # manager -> replica: aux = ms between PINGs; replica -> gateway: body = greeting
    BIND = 3  # manager -> replica: JSON body, the model to load
    LOADED = 4  # replica -> manager: JSON body, result of the load and of the first runs
    LOAD_FAILED = 5  # replica -> manager: JSON body, the reason
    PING = 6  # manager -> replica: aux = PONGs received on this link
    PONG = 7  # replica -> manager: aux = total run time in ms, modulo 2**32; RUN_COUNTs if changed
    DRAIN = 8  # manager -> replica: exit if idle for at least aux milliseconds; 0 = in any case
    NOT_IDLE = 9  # replica -> manager: aux = milliseconds since the last request ended
    FIRST_RUN = 10  # replica -> manager: aux = microseconds of the first run
    GOAWAY = 11  # replica -> gateway: aux = last id that will be answered
    BATCHING_OFF = 12  # replica -> manager: JSON body, reason; manager -> replica: stop batching
    UPGRADE = 13  # manager -> replica: JSON body, a compiled model to serve with
    UPGRADED = 14  # replica -> manager: JSON body, the outcome
    PROBED = 15  # sidecar -> manager: JSON body, the last answer of a starting server
    REQUEST = 16  # gateway -> replica: aux = execution timeout in milliseconds
    RESPONSE = 17  # replica -> gateway: aux = length of the JSON part of a binary answer, or 0
    FAILED = 18  # replica -> gateway: JSON body, a RequestError
    STARTED = 19  # replica -> gateway: body = u32 ids whose run starts now
    NOT_STARTED = 20  # replica -> gateway: this request was not and will not be run; aux = reason
    CANCEL = 21  # gateway -> replica
    CANCELLED = 22  # replica -> gateway: the id is free again
    PART = 23  # replica -> manager: one piece of the file of a FETCH; reserved for streams
    END = 24  # replica -> manager: end of that file; gateway -> sidecar: exchange `id` is over
    WINDOW = 25  # replica -> gateway: id 0: capacity is free again; sidecar: aux = slots offered
    FREED = 26  # gateway -> replica: body = SLAB_RANGE of an answer that has been read
    FETCH = 27  # manager -> trial: aux = requested part of a prepared model; replica -> door: JSON
    # body, a Fetch
    OPEN = 28  # gateway -> sidecar: connect exchange `id`; aux = idle connection, if flag REUSE;
    # sidecar -> gateway on another host: the server of exchange `id` is connected; aux = its port
    RECALL = 29  # sidecar -> gateway: close the idle connection `id`; 0 = tell ends at once
    QUIESCE = 30  # sidecar -> gateway: stop using the link; manager -> sidecar: drain softly
    QUIESCED = 31  # gateway -> sidecar: aux = exchanges that are open or requested
    RESUME = 32  # manager -> sidecar: revoke a soft drain; the sidecar answers NOT_IDLE
    REPORT = 33  # agent -> manager: JSON body, a HostReport
    CONNECT = 34  # gateway -> sidecar, first frame of a channel: body = key, id = exchange
    TUNNEL = 35  # gateway -> sidecar: exchange `id` is a WebSocket, without a limit of time
    SAMPLE = 36  # manager -> sidecar: ask the server its golden sample
    SAMPLED = 37  # sidecar -> manager: JSON body, a Sampled
    UNANSWERED = 38  # gateway -> sidecar: exchange `id` got no answer in time, or its connection
    # was closed without one; the sidecar probes the server
    HEALTH = 39  # sidecar -> manager: JSON body, a Health; only after a PING with the flag HEALTH
    LEARNT = 40  # manager -> sidecar: for HELLO; aux = `known` of a Learnt, body = LEARNT_SECONDS
    PARK = 41  # manager -> sidecar: put an idle server to sleep; aux = max ms of an engine's call,
    # body = IDLE_LEAST. Answered by LIFE, or by NOT_IDLE if an exchange is open
    UNPARK = 42  # manager -> sidecar: wake it; aux as of PARK
    VERIFY = 43  # manager -> sidecar: ask its samples, then serve; aux = max ms of each answer
    LIFE = 44  # sidecar -> manager: JSON body, a Life
    ENROL = 45  # replica -> door: JSON body, an Enrol
    ENROLLED = 46  # door -> replica: JSON body, an Enrolled; replica -> door: it listens
    CERTIFICATE = 47  # manager -> replica that dialled in: JSON body, a Certificate


class Flag(IntEnum):
    """Bits of the header's `flags`."""

    OPTIONAL = 1  # a receiver that does not know this kind skips the frame
    TRACE = 2  # the last meta field is a W3C traceparent
    ALONE = 4  # REQUEST: run in a batch of one, and send STARTED
    FIRST = 8  # RESPONSE: from the replica's first run
    SLAB = 16  # REQUEST, RESPONSE: the frame's body is a SLAB_RANGE that locates the real body
    REUSE = 32  # OPEN: the exchange uses the gateway's idle connection `aux` and needs no answer
    FAILED = 32  # END: the server gave no whole answer in time; an earlier sidecar ignores it
    KEPT = 64  # END: the connection stays open, idle for `aux` ms, under the id of the exchange
    FREE = 128  # OPEN, TUNNEL: the exchange takes no slot and does not count as use
    HEALTH = 128  # PING: the manager knows HEALTH; an earlier release would count and refuse it


class NotStarted(IntEnum):
    """Reason why a request was returned without a run (`aux` of NOT_STARTED)."""

    FULL = 1  # over the replica's limit; a WINDOW frame follows when capacity is free
    DRAINING = 2  # the replica is shutting down
    BATCH_TIMEOUT = 3  # another request of its batch exceeded the timeout; run this one alone
    REFUSED = 4  # the server does not accept connections


CHANNEL_KEY_SIZE: Final = 32
"""Bytes of the body of CONNECT: the key in the sidecar's HELLO, hexadecimal digits."""

SOCKET_NOTICE: Final = Struct("<I")
"""A message of a sidecar's side channel: the id of an OPEN, with the connected socket as ancillary
data."""

META_SEPARATOR: Final = b"\n"
"""Separator of the latin-1 text fields of a REQUEST's meta; header values cannot contain it.

REQUEST: content type, Accept, Inference-Header-Content-Length or "", traceparent (flag TRACE).
"""

ANSWER_META: Final = Struct("<B6I")
"""Meta of a RESPONSE: index into CONTENT_TYPES, decode_us, batch_us, compute_us, encode_us, rows
in the batch, rows of the request."""
CONTENT_TYPES: Final = ("application/json", "application/octet-stream", "application/x-npy")
"""Content types of a replica's answers."""
