"""Odd bodies for /v1: JSON and forms, right, almost right and hostile, and what they mean.

The same generator state always gives the same bytes. What a body means is said by Python's own
parsers, with every reading that another parser may have: see `models_of`.
"""

from __future__ import annotations

import email.parser
import email.policy
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

KIB = 1024
MODEL = "MODEL"
"""Name of the model in all bodies."""
OTHER = "OTHER"
"""A model that the client may not use: no server may get a body that names it."""
RATES = (0.0, 0.05, 0.15, 0.5)
"""Chances that a part of a body is odd, of which one is drawn per body."""

SPELLINGS = (
    *('"model"', '"\\u006dodel"', '"mod\\u0065l"', '"\\u006D\\u006f\\u0064\\u0065\\u006c"'),
    *('"Model"', '"MODEL"', '"m\\u004fdel"', '"model\\u0000"', '"model[]"', '" model"', '"modèl"'),
    *(
        '"model\\u0000x"',
        '"m\u043edel"',
        '"model\\n"',
        "'model'",
        "model",
        '"mod\\el"',
        '"m\\odel"',
    ),
)
NAMES = (
    *('"x"', '"messages"', '"stream"', '"stream_options"', '"input"', '"background"', '""'),
    *('"previous_response_id"', '"conversation"', '"\\ud83d\\ude00"', '"\\u0000"', '"a\\"b"'),
)
VALUES = (
    *("1", "0", "-1", "1.5e3", "true", "false", "null", '""', "[]", "{}", '"text"', '[{"a":[]}]'),
    *('{"model":"OTHER"}', '[{"model":"OTHER"}]', '"\\"model\\":\\"OTHER\\""', '"}],{[\\\\"'),
    *('{"include_usage":true}', '{"include_usage":false,"x":1}', '"é😀"', '"\\ud83d\\ude00"'),
)
ODD_VALUES = (
    *("NaN", "Infinity", "-Infinity", "01", "1.", ".5", "+1", "0x10", "1e", "--1", "1_000", "tru"),
    *(
        "True",
        "None",
        "undefined",
        "'x'",
        '"\\ud800"',
        '"\\udc00x"',
        '"\\x41"',
        '"\\u12"',
        '"\x00"',
    ),
    *('"\x01"', '"\n"', '"\t"', '"\x7f"', "[1,]", '{"a":1,}', "[,1]", "[1 2]", '{"a" 1}', "{1:2}"),
    *("{a:1}", "[", "{", '"', "]", "}", ":", ",", "\\", "", "/**/1", "1//x\n", "#x\n1", "1;"),
    *("1" * 5000, "-" + "9" * 100_000, "1e" + "9" * 400, '"' + "a" * 70_000 + '"'),
    *('"' + "\\\\" * 70_000 + '"', "[" * 600 + "]" * 600, "[" * 5000 + "]" * 5000, "[" * 90_000),
    *('{"a":' * 2000 + "1" + "}" * 2000, " " * 70_000 + "1"),
)
SPACES = ("", "", "", " ", "\n", "\r\n", "\t", "  \n ")
ODD_SPACES = ("\x0b", "\x0c", "\xa0", "\u2028", "\ufeff", "\x00", "/**/", "//\n", "\x1e")
HEADS = (
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\x00",
    b"[",
    b"{",
    b"x",
    b"//\n",
    b")]}',\n",
    b"\x1e",
    b",",
)
TAILS = (
    *(
        b"{}",
        b"\n{}",
        b'{"model":"OTHER"}',
        b"\x00",
        b"x",
        b"}",
        b"]",
        b",",
        b"\xff",
        b"//",
        b"\x1a",
    ),
    *(b"\n", b" ", b"\xef\xbb\xbf", b"null", b"\x00" * 70_000),
)
ODD_BYTES = (
    *(bytes([one]) for one in b'\0\x01\n"\\{}[]:,/\x7f\x80\xff'),
    b"\xed\xa0\x80",
    b"\xc0\x80",
)


class OddBody(NamedTuple):
    """A body and its Content-Type."""

    body: bytes
    content_type: bytes


def odd_json(random: Random) -> bytes:
    """Return a body that should be a JSON object with a model."""
    rate = random.choice(RATES)

    def is_odd() -> bool:
        return random.random() < rate

    def space() -> str:
        return random.choice(ODD_SPACES if is_odd() and is_odd() else SPACES)

    def value() -> str:
        return random.choice(ODD_VALUES if is_odd() and is_odd() else VALUES)

    members = [(random.choice(NAMES), value()) for _ in range(random.choice((0, 1, 1, 2, 4)))]
    if is_odd():
        members += [(f'"{one}"', "1") for one in range(random.choice((20, 990, 1000, 1100)))]
    if is_odd():
        members.append((random.choice(SPELLINGS), random.choice((f'"{OTHER}"', value()))))
    name = random.choice(SPELLINGS) if is_odd() and is_odd() else '"model"'
    model = value() if is_odd() and is_odd() else f'"{MODEL}"'
    if not is_odd() or not is_odd():
        members.insert(
            random.choice((0, len(members), random.randint(0, len(members)))), (name, model)
        )
    texts = (f"{space()}{name}{space()}:{space()}{one}{space()}" for name, one in members)
    text = space() + "{" + ",".join(texts) + "}" + space()
    return _spoilt(random, text.encode("utf-8", "surrogatepass"), rate)


def huge_json(random: Random, mib: int) -> bytes:
    """Return a body of about `mib` MiB, hostile to parsers."""
    size = mib * KIB * KIB
    first = f'{{"model":"{MODEL}","x":'.encode()
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: first + b'"' + b"a" * size + b'"}',
        lambda: first + b'"' + b'\\"' * (size // 2) + b'"}',
        lambda: first + b"[" * size + b"}",
        lambda: first + b"[" + b"[]," * (size // 3) + b"0]}",
        lambda: first + b"[" + b'"",' * (size // 3) + b"0]}",
        lambda: first + b"[" + b"1," * (size // 2) + b"0]}",
        lambda: first + b"{" + b'"a":1,' * (size // 6) + b'"b":0}}',
        lambda: first + b"1" * size + b"}",
        lambda: first + b" " * size + b"1}",
        lambda: b'{"model":"' + b"a" * size + b'"}',
        lambda: b'{"' + b"a" * size + b'":1,"model":"%b"}' % MODEL.encode(),
        lambda: b'{"a":1' + b',"a":1' * (size // 6) + b',"model":"%b"}' % MODEL.encode(),
        lambda: b'{"stream_options":{"a":1' + b',"a":1' * (size // 6) + b'},"model":"x"}',
        lambda: first + b'"' + "é".encode() * (size // 2) + b'"}',
        lambda: random.randbytes(size),
        lambda: b"\0" * size,
    )
    return random.choice(kinds)()


def odd_form(random: Random) -> OddBody:
    """Return a body that should be a form with a model, and its Content-Type."""
    rate = random.choice(RATES)

    def one_of(usual: tuple[bytes, ...], odd: tuple[bytes, ...]) -> bytes:
        return random.choice(odd if random.random() < rate else usual)

    boundary = one_of((b"----x1Y2", b"B1"), (b"b" * 70, b"b" * 71, b"", b"a b", b'a"b', b"-"))
    quoted = one_of((boundary, b'"%b"' % boundary), (b'"%b' % boundary, boundary + b" ", b"z"))
    kind = one_of(
        (b"multipart/form-data; boundary=" + quoted,),
        (
            *(b"multipart/form-data", b"application/json", b""),
            b"multipart/mixed; boundary=" + quoted,
            b"multipart/form-data; charset=utf-16; boundary=" + quoted,
            b"multipart/form-data; boundary=z; boundary=" + quoted,
        ),
    )
    line = one_of((b"\r\n",), (b"\n", b"\r", b"\r\r\n"))

    def part(name: bytes, value: bytes, more: bytes = b"") -> bytes:
        name = one_of(
            (b'"%b"' % name,), (name, b'"%b' % name, b"'%b'" % name, b'"mod\\el"', b"model")
        )
        head = b"Content-Disposition: form-data; name=" + name + more
        head += one_of(
            (b"", line + b"Content-Type: text/plain"),
            (
                *(b"; name=model", b"; filename=a", b"; name*=utf-8''model", line + b" folded"),
                *(b'; filename="a\\";name=model"', line, line + b"X:" + b"y" * 9000),
                line + b"Content-Transfer-Encoding: quoted-printable",
                line + b'Content-Disposition: form-data; name="model"',
            ),
        )
        between = one_of((line + line,), (line, line + b" " + line, b"\n\n"))
        return b"--" + boundary + line + head + between + value + line

    parts = [
        part(b"model", one_of((MODEL.encode(),), (b"", b"\0", b"x" * 300, b"\xff", b"M=4fDEL")))
    ]
    inner = b'\n--%b\nContent-Disposition: form-data; name="model"\n\nOTHER\n' % boundary
    odd_values = (
        inner,
        inner.replace(b"\n", b"\r\n"),
        b"--" + boundary + b"--",
        random.randbytes(99),
    )
    for _ in range(random.choice((0, 1, 1, 3))):
        name = one_of(
            (b"file", b"prompt", b"stream"), (b"model", b"Model", b"model[]", b"_charset_")
        )
        more = one_of((b"", b'; filename="a.wav"'), (b'; filename="\xff\\"',))
        value = one_of((b"text", b"", b"RIFF\0\0"), (b"OTHER", *odd_values))
        parts.insert(random.randint(0, len(parts)), part(name, value, more))
    if random.random() < rate / 3:
        parts *= random.choice((2, 8, 25))
    body = b"".join(parts) + b"--" + boundary + one_of((b"--" + line,), (b"", b"--x", b"-- \r\n"))
    return OddBody(_spoilt(random, body, rate / 2), kind)


FILE_NAMES = (
    *(
        b"a.wav",
        b'12\\" remix.wav',
        b"12%22.wav",
        b"C:\\dir\\a.wav",
        b"a;b=c.wav",
        b"na\xc3\xafve.wav",
    ),
    *(b"", b"a\\", b"a\\\\", b"name=model", b"a; filename=b", b'a"b.wav', b"a%0D%0Ab"),
)
FIELD_NAMES = (
    *(b"prompt", b"image[]", b"metadata[model]", b"a%22b", b"a%0D%0Ab", b'a\\"b', b"a\\\\b"),
    *(b"\xc3\xb6", b"x" * 200, b"my model", b"models"),
)
TEXT_TYPES = (
    *(b"", b"", b"\r\nContent-Type: text/plain", b"\r\nContent-Type: text/plain; charset=UTF-8"),
    b"\r\nContent-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit",
    *(b'\r\nContent-Type: text/plain;charset="us-ascii"', b"\r\nContent-Length: 5"),
    b"\r\nContent-Transfer-Encoding: quoted-printable",
)


def client_form(random: Random) -> OddBody:
    """Return a form as some client may write it, with MODEL as its model, and its Content-Type."""
    boundary = random.choice((b"----x1Y2", b"===17===", b"a'()+_,-./:=?", b"b" * 70, b"a b"))
    is_bare = not re.search(rb"[ ,]", boundary) and random.random() < 0.5
    kind = b"multipart/form-data; boundary=" + (boundary if is_bare else b'"%b"' % boundary)
    kind += random.choice((b"", b"; charset=UTF-8", b";charset=iso-8859-1"))

    def part(name: bytes, value: bytes, more: bytes = b"", kinds: bytes = b"") -> bytes:
        lines = [b'Content-Disposition: form-data; name="%b"%b' % (name, more)]
        lines += [line for line in kinds.split(b"\r\n") if line]
        random.shuffle(lines)
        return b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, b"\r\n".join(lines), value)

    values = (b"", b"\r\n", b"RIFF\0--" + boundary[:-1], b"--", b"OTHER", random.randbytes(40))
    parts = [part(b"model", MODEL.encode(), kinds=random.choice(TEXT_TYPES))]
    for _ in range(random.choice((0, 1, 2, 5, 30))):
        name, value = random.choice(FIELD_NAMES), random.choice(values)
        more, kinds = b"", random.choice(TEXT_TYPES)
        if random.random() < 0.5:
            more = b'; filename="%b"' % random.choice(FILE_NAMES)
            if b"\\" in name and b'"' in more[12:-1]:
                continue  # no client escapes one of both names alone
            kinds = random.choice((b"", b"\r\nContent-Type: audio/wav"))
        parts.insert(random.randint(0, len(parts)), part(name, value, more, kinds))
    before = random.choice((b"", b"", b"\r\n", b"preamble\r\n"))
    behind = random.choice((b"", b"\r\n", b"\r\n\r\n", b"\r\nepilogue\r\n--\r\n"))
    return OddBody(before + b"".join(parts) + b"--%b--" % boundary + behind, kind)


def mutated(random: Random, form: OddBody) -> OddBody:
    """Return a form with some pieces of it, or of the grammar, in other places."""
    body, pieces = (
        form.body,
        (b"\r\n", b'"', b"\\", b";", b"--", b"name=", b"model", b"\n", b"=", b""),
    )
    for _ in range(random.choice((1, 1, 2, 4))):
        at, end = sorted((random.randint(0, len(body)), random.randint(0, len(body))))
        piece = random.choice((*pieces, body[at : min(end, at + 80)]))
        place = random.randint(0, len(body))
        body = body[:place] + piece + body[place + random.choice((0, 0, 1, len(piece))) :]
    return OddBody(body, form.content_type)


def _spoilt(random: Random, body: bytes, rate: float) -> bytes:
    """Return the body with something before, behind, missing or changed, at some rate."""
    if random.random() < rate / 3:
        body = random.choice(HEADS) + body
    if random.random() < rate / 3:
        body += random.choice(TAILS)
    if random.random() < rate / 3:
        body = body[: random.randint(0, len(body))]
    while random.random() < rate / 2:
        at = random.randint(0, len(body))
        body = body[:at] + random.choice(ODD_BYTES) + body[at + random.choice((0, 0, 1, 3)) :]
    if random.random() < rate / 20:
        body = body.decode("utf-8", "replace").encode(random.choice(("utf-16", "utf-32", "utf-7")))
    return body


def models_of(body: bytes) -> set[str]:
    """Return all that a server may take for the model of a JSON body; empty if it is none.

    Duplicates, other cases and names that end at a NUL count. Raises ValueError if the body is not
    JSON to a lenient parser.
    """
    pairs: list[tuple[str, Any]] = _strictly_ordered(body)
    names = ((name.partition("\0")[0].strip().casefold(), value) for name, value in pairs)
    return {value for name, value in names if name == "model" and isinstance(value, str)}


def _strictly_ordered(body: bytes) -> list[tuple[str, Any]]:
    """Return the members of the top level in their order. Raises ValueError."""
    members: list[tuple[str, Any]] = []

    def take(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members[:] = pairs  # the outermost object comes last
        return dict(pairs)

    try:
        document = json.loads(body, object_pairs_hook=take, parse_int=len, parse_float=len)
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(document, dict):
        raise ValueError("no object")
    return members


def form_models_of(body: bytes, content_type: bytes) -> list[str]:
    """Return the values of the fields `model` as a lenient parser of mail finds them.

    Raises ValueError if there is no form.
    """
    head = b"Content-Type: %b\r\n\r\n" % content_type
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    if not message.is_multipart():
        raise ValueError("no form")
    parts = [part for part in message.iter_parts() if _name_of(part) == "model"]
    return [(part.get_payload(decode=True) or b"").decode("utf-8", "replace") for part in parts]


def _name_of(part: Any) -> str:
    return str(part.get_param("name", "", "content-disposition"))
