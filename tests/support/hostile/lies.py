"""Protocol violations: frames no honest replica sends, over the real sockets of its links."""

import contextlib
import json
import os
import socket
import struct
import sys
from pathlib import Path

from trying import waited

HEADER = struct.Struct("<IIBBHI")
HELLO, LOADED, LOAD_FAILED, PING, PONG, NOT_IDLE, FIRST_RUN, GOAWAY = 1, 4, 5, 6, 7, 9, 10, 11
BATCHING_OFF = 12
RESPONSE, FAILED, STARTED, NOT_STARTED, PART, WINDOW = 17, 18, 19, 20, 23, 25
OPTIONAL = 1
META = struct.pack("<B6I", 0, 1, 2, 3, 4, 1, 1)
MANY = 200_000
BIG = 64 * 2**20


def frame(kind, id=0, body=b"", *, meta=b"", flags=0, aux=0, length=None):
    length = len(body) if length is None else length
    return HEADER.pack(length, id, kind, flags, len(meta), aux) + meta + body


def answer(id, meta=META, body=b"{}", **fields):
    return frame(RESPONSE, id, body, meta=meta, **fields)


def loaded(**changes):
    fields = {"limit": 2, "marks_started": True, "memory_mib": 50.0, "phases": {"load": 1.0}}
    return frame(LOADED, body=json.dumps({**fields, **changes}).encode())


def failed(reason):
    return frame(LOAD_FAILED, body=json.dumps({"stage": "load", "reason": reason}).encode())


DEEP = b"[" * 100_000
DATA_LIES = {
    "a length of 4 GiB": lambda id: frame(RESPONSE, id, length=2**32 - 1),
    "an answer over the limit": lambda id: frame(RESPONSE, id, meta=META, length=257 * 2**20),
    "an unknown kind": lambda id: frame(77, id),
    "a reserved kind": lambda id: frame(PART, id),
    "a control frame": lambda id: frame(PING),
    "an answer to nobody": lambda id: answer(id + 1000),
    "nobody handed back": lambda id: frame(NOT_STARTED, id + 1000, aux=1),
    "a type that is not on the list": lambda id: answer(id, b"\x03" + META[1:]),
    "times with a header": lambda id: answer(id, META + b"\r\nSet-Cookie: a=b"),
    "a time that is missing": lambda id: answer(id, META[:-4]),
    "a head longer than all": lambda id: answer(id, aux=3),
    "a second greeting": lambda id: frame(HELLO, aux=3),
    "half an id": lambda id: frame(STARTED, body=b"123"),
    "an error that is none": lambda id: frame(FAILED, id, b"{"),
    "an error without a bottom": lambda id: frame(FAILED, id, DEEP),
    "an error of 64 MiB": lambda id: frame(FAILED, id, b'"' + b"x" * BIG + b'"'),
    "starts of 16 million": lambda id: frame(STARTED, body=b"\1\0\0\0" * (BIG // 4)),
    "starts without end": lambda id: frame(STARTED, body=struct.pack("<I", id)) * MANY,
    "room without end": lambda id: frame(WINDOW) * MANY,
    "leave without end": lambda id: frame(GOAWAY, aux=id) * MANY,
    "options without end": lambda id: frame(99, flags=OPTIONAL) * MANY,
}
CONTROL_LIES = {
    "a length of 4 GiB": lambda: frame(LOADED, length=2**32 - 1),
    "a report of 64 MiB": lambda: frame(LOADED, body=b'"' + b"x" * BIG + b'"'),
    "a report without a bottom": lambda: frame(LOADED, body=DEEP),
    "an unknown kind": lambda: frame(77),
    "an answer": lambda: answer(1),
    "a second greeting": lambda: frame(HELLO, body=b"{}"),
    "loaded twice": loaded,
    "no limit": lambda: loaded(limit=10**9),
    "a limit below 0": lambda: loaded(limit=-1),
    "memory that is no number": lambda: loaded(memory_mib=float("nan")),
    "memory without end": lambda: loaded(memory_mib=1e300),
    "phases without end": lambda: loaded(phases={"load": float("inf")}),
    "failed after all": lambda: failed("it did not load\ud800\x1b]0;owned\x07"),
    "failures without end": lambda: failed("no") * 20_000,
    "busy without end": lambda: frame(NOT_IDLE) * MANY,
    "answers to no PING": lambda: frame(PONG) * MANY,
    "first runs without end": lambda: frame(FIRST_RUN, aux=5) * MANY,
    "refutations without end": lambda: frame(BATCHING_OFF, body=b"{}") * MANY,
}


def own_id():
    """Return the number of the current request, as the replica's own frames carry it."""
    frame = sys._getframe()
    while "members" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["members"][0].job.id


def sockets():
    """Find the sockets of control link, data link and side channel; return duplicates."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not str(Path("/proc/self/fd", name).readlink()).startswith("socket:"):
                continue
        except OSError:
            continue
        sock = socket.socket(fileno=os.dup(int(name)))
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            paths = str(sock.getpeername()) + str(sock.getsockname())
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_SEQPACKET:
                found["side"] = sock
            else:
                found["control" if "ctl.sock" in paths else "data"] = sock
    return found


def write(sock, data):
    """Write all of `data`; return the name of the error if the other side hung up."""
    sock.settimeout(5)
    try:
        sock.sendall(data)
    except OSError as error:
        return type(error).__name__
    return "sent"


def data_lie(order):
    """Send one of DATA_LIES, then a normal answer. If the link ended, wait before writing again, so
    that the gateway can notice the end."""
    said = write(sockets()["data"], DATA_LIES[order["lie"]](own_id()))
    waited(0.3)
    return said


def control_lie(order):
    """Send one of CONTROL_LIES, then wait to be killed."""
    write(sockets()["control"], CONTROL_LIES[order["lie"]]())
    waited(order["seconds"])
    return "still here"


def descriptors(order):
    """Send unsolicited descriptors with frames over one link, then wait to be killed."""
    sock, kind = sockets()[order["link"]], PONG if order["link"] == "control" else WINDOW
    with contextlib.suppress(OSError):
        for _ in range(100):
            socket.send_fds(sock, [frame(kind)], [0, 1, 2])
    waited(order["seconds"])
    return "sent"


def stall(order):
    """Start an answer and never finish it, nor send anything else on that link."""
    write(sockets()["data"], frame(RESPONSE, own_id(), b"{", meta=META, length=1000))
    waited(order["seconds"])
    return "stalled"


def usurp(order):
    """Answer all other requests on its link."""
    body = b'{"outputs":{"said":"usurped"},"revision":"hostile@1"}'
    waited(order["seconds"])
    write(sockets()["data"], answer(own_id() + 1, body=body))
    return "usurped"


ATTACKS = {
    "control_lie": control_lie,
    "data_lie": data_lie,
    "descriptors": descriptors,
    "stall": stall,
    "usurp": usurp,
}
