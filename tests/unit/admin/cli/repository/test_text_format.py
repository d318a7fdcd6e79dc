"""The reader of protobuf's text format, also against protobuf's own."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from admin.cli.repository.text_format import (
    DEPTH_MAX,
    FIELDS_MAX,
    TEXT_MAX,
    MalformedText,
    Message,
    Scalar,
    parse_text,
)

NODE_TYPES = {
    "n": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "f": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    "s": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "b": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "m": descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
}


def plain(message: Message) -> list[tuple[str, Any]]:
    """Return a message as names and plain values."""
    return [
        (one.name, one.value.value if isinstance(one.value, Scalar) else plain(one.value))
        for one in message.fields
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("# only a comment", []),
        ('name: "a"', [("name", "a")]),
        ("name: 'a' \"b\"\n'c' # and\n", [("name", "abc")]),
        ("n: -1 m: 0x1F, o: 017; p: 1.5e2f q: .5 r: -inf", None),
        (
            "m { n: 1 } m: { n: 2 } m < n: 3 >",
            [("m", [("n", 1)]), ("m", [("n", 2)]), ("m", [("n", 3)])],
        ),
        ("dims: [ 3, -1 ]", [("dims", 3), ("dims", -1)]),
        ("dims: []", []),
        ("m [ { n: 1 }, < > ]", [("m", [("n", 1)]), ("m", [])]),
        ("kind: KIND_CPU ok: true", [("kind", "KIND_CPU"), ("ok", "true")]),
        (r's: "\n\t\"\\\101\x41é\u00e9\U0001F600"', [("s", '\n\t"\\AAéé😀')]),
        (r's: "\303\251"', [("s", "é")]),
    ],
)
def test_every_form_of_the_format_is_read(
    text: str, expected: list[tuple[str, Any]] | None
) -> None:
    """Strings, numbers, words, messages and lists, with and without separators."""
    found = plain(parse_text(text))
    assert found == (
        expected
        if expected is not None
        else [("n", -1), ("m", 31), ("o", 15), ("p", 150.0), ("q", 0.5), ("r", float("-inf"))]
    )


def test_fields_know_their_lines() -> None:
    """A field is at its name, a list's item at its own beginning."""
    found = parse_text('\n# c\na: 1\nb {\n  c:\n  "x"\n}\nd: [\n 1,\n 2 ]\n')
    a, b, first, second = found.fields
    assert (a.line, b.line, first.line, second.line) == (3, 4, 9, 10)
    assert isinstance(b.value, Message)
    assert b.value.fields[0].line == 5


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a", 1, "a: expected ':', got 'the end of the file'"),
        ("a: ", 1, "a: expected a value, got 'the end"),
        ("\n\na 1", 3, "a: expected ':', got '1'"),
        ("a {\n b: 1", 2, "expected a field's name or '}', got 'the end"),
        ("a { b: 1 >", 1, "expected a field's name or '}', got '>'"),
        ("}", 1, "expected a field's name, got '}'"),
        ('a: "x\ny"', 1, "expected a field or a value, got '\"x'"),
        ("a: 1b", 1, "expected a number, got '1b'"),
        ("a: 089", 1, "expected an octal number, got '089'"),
        ("a: - x", 1, "a: expected a number, got 'x'"),
        ("a: [1 2]", 1, "a: expected ',' or ']', got '2'"),
        ("[a.b]: 1", 1, "expected a field's name, got '['"),
        ("a: @", 1, "expected a field or a value, got '@'"),
        (r'a: "\q"', 1, "unknown escape"),
        (r'a: "\400"', 1, "unknown escape"),
        (r'a: "\uD800"', 1, "unknown escape"),
        (r'a: "\xff"', 1, "expected UTF-8 in a string"),
        (f"a: {'9' * 65}", 1, "expected a number, got one of 65 characters"),
        ("a {" * (DEPTH_MAX + 2), 1, f"nested deeper than {DEPTH_MAX}"),
        ("a: 1 " * (FIELDS_MAX + 1), 1, f"more than {FIELDS_MAX} fields"),
        (" " * (TEXT_MAX + 1), 1, f"at most {TEXT_MAX} characters"),
    ],
)
def test_other_text_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    """The error names the line, what was expected and what came."""
    with pytest.raises(MalformedText) as found:
        parse_text(text)
    assert message in str(found.value)
    assert found.value.line == line


def node() -> Any:
    """Return a message class with one field of each kind, all repeated."""
    file = descriptor_pb2.FileDescriptorProto(name="n.proto", package="n", syntax="proto3")
    made = file.message_type.add(name="Node")
    for number, (name, kind) in enumerate(NODE_TYPES.items(), 1):
        field = made.field.add(name=name, number=number, type=kind)
        field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
        if name == "m":
            field.type_name = ".n.Node"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("n.Node"))


def filled(kind: Any, chance: random.Random, depth: int) -> Any:
    """Return a random message."""
    made = kind()
    for _ in range(chance.randrange(4)):
        made.n.append(chance.choice((0, 1, -1, 2**63 - 1, -(2**63))))
        made.f.append(chance.choice((0.0, -1.5, 1e300, float("inf"))))
        made.s.append("".join(chance.choice("a\"'\\\n\té😀\x01\x7f") for _ in range(5)))
        made.b.append(chance.random() < 0.5)
        if depth:
            made.m.append(filled(kind, chance, depth - 1))
    return made


def test_protobufs_own_text_is_read_as_it_was_meant() -> None:
    """Whatever protobuf prints, in both its styles, is read with the same values."""
    kind, chance = node(), random.Random(18)
    for _ in range(200):
        made = filled(kind, chance, 2)
        for style in (
            {},
            {"as_one_line": True},
            {"as_utf8": True},
            {"use_short_repeated_primitives": True},
        ):
            found = parse_text(text_format.MessageToString(made, **style))
            assert as_node(found) == sorted_node(made)


def sorted_node(made: Any) -> dict[str, list[Any]]:
    """Return protobuf's message as lists by field."""
    found: dict[str, list[Any]] = {name: list(getattr(made, name)) for name in "nfsb"}
    found["m"] = [sorted_node(one) for one in made.m]
    return found


def as_node(message: Message) -> dict[str, list[Any]]:
    """Return a message that was read in the same form."""
    found: dict[str, list[Any]] = {name: [] for name in "nfsbm"}
    for one in message.fields:
        if isinstance(one.value, Message):
            found[one.name].append(as_node(one.value))
            continue
        value = one.value.value
        if one.name == "b":
            value = value == "true"
        if one.name == "f":
            value = float(value)
        found[one.name].append(value)
    return found


def test_damaged_text_is_read_or_refused() -> None:
    """Nothing but MalformedText is raised, whatever is cut, doubled or put in."""
    chance = random.Random(18)
    text = 'name: "m"\ninput [ { name: "x" dims: [ -1, 0x4 ] } ]\nm { s: \'a\\n\' "b" f: 1.5e3 }\n'
    read = refused = 0
    for _ in range(3000):
        at, to = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        piece = chance.choice(
            ("", "{", "}", "[", '"', "\\", "\x00", "é", "-", ":", text[at:to] * 2)
        )
        try:
            parse_text(text[:at] + piece + text[to:])
            read += 1
        except MalformedText:
            refused += 1
    assert read > 100
    assert refused > 100
