"""Values of config.pbtxt by its schema; every field that is not read becomes a finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from admin.cli.repository.fields import Findings, Known
from admin.cli.repository.text_format import Field, Message, Scalar
from runtime_image.contract.proposals import did_you_mean, nearest

INT_MAX: Final = 2**63 - 1
_SHOWN_MAX: Final = 60
_BOOLEANS: Final[dict[tuple[str, object], bool]] = {
    **{("word", word): True for word in ("true", "True", "t")},
    **{("word", word): False for word in ("false", "False", "f")},
    ("number", 1): True,
    ("number", 0): False,
}


@dataclass(slots=True)
class Values:
    """The fields of a message that are read, each with its line."""

    line: int = 0
    fields: dict[str, list[tuple[object, int]]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def line_of(self, name: str) -> int:
        """Return the line of the last value of a field, that of the message without one, which is 0
        for the whole file."""
        found = self.fields.get(name)
        return found[-1][1] if found else self.line

    def text(self, name: str) -> str:
        """Return a string or an enumerator, "" without one."""
        return str(self._last(name, ""))

    def number(self, name: str, default: int = 0) -> int:
        """Return an integer."""
        found = self._last(name, default)
        assert isinstance(found, int)
        return found

    def flag(self, name: str) -> bool:
        """Return a boolean, False without one."""
        return bool(self._last(name, False))

    def message(self, name: str) -> Values:
        """Return a message, an empty one without it."""
        found = self._last(name, None)
        return found if isinstance(found, Values) else Values(self.line)

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return the integers of a repeated field."""
        return tuple(one for one, _ in self.fields.get(name, ()) if isinstance(one, int))

    def messages(self, name: str) -> list[Values]:
        """Return the messages of a repeated field."""
        return [one for one, _ in self.fields.get(name, ()) if isinstance(one, Values)]

    def _last(self, name: str, default: object) -> object:
        found = self.fields.get(name)
        return found[-1][0] if found else default


def read_values(
    source: Message, known: Mapping[str, Known], findings: Findings, line: int = 0, at: str = ""
) -> Values:
    """Return what is read of a message, located at dotted path `at`.

    What the schema ignores or refuses, or does not have, is added to `findings`, unless it has its
    default value.
    """
    found = Values(line)
    for one in source.fields:
        path = f"{at}.{one.name}" if at else one.name
        rule = known.get(one.name)
        if rule is None:
            findings.refuse(one.line, path, _unknown(one.name, known))
            continue
        if not rule.repeated and one.name in found.fields:
            findings.refuse(one.line, path, "the field is there twice")
            continue
        value = _value(one, rule, findings, path)
        if value is None:
            continue
        if rule.fate == "read":
            found.fields.setdefault(one.name, []).append((value, one.line))
        elif value or isinstance(value, Values):
            add = findings.ignore if rule.fate == "ignored" else findings.refuse
            add(one.line, path, rule.why)
    return found


def _unknown(name: str, known: Mapping[str, Known]) -> str:
    near = nearest(name, known, limit=1)
    return f"no field of Triton's configuration that fngate knows{did_you_mean(near)}"


def _value(one: Field, rule: Known, findings: Findings, path: str) -> object:
    """Return the value as the schema's type; None if it has another, which is a finding."""
    value = one.value
    if isinstance(value, Message):
        if rule.kind == "message":
            inner = rule.fields
            return (
                Values(one.line)
                if inner is None
                else read_values(value, inner, findings, one.line, path)
            )
    elif rule.kind != "message" and (found := _scalar(value, rule)) is not None:
        return found
    got = "a message" if isinstance(value, Message) else repr(value.value)[:_SHOWN_MAX]
    findings.refuse(one.line, path, f"expected {_expected(rule)}, got {got}")
    return None


def _scalar(value: Scalar, rule: Known) -> str | int | float | bool | None:
    raw = value.value
    if rule.kind == "string":
        return raw if value.kind == "string" else None
    if rule.kind == "bool":
        return _BOOLEANS.get((value.kind, raw))
    if rule.kind == "enum":
        return _enumerator(value, rule.words)
    if value.kind != "number" or (rule.kind == "int" and not isinstance(raw, int)):
        return None
    return raw if isinstance(raw, float) or abs(int(raw)) <= INT_MAX else None


def _enumerator(value: Scalar, words: tuple[str, ...]) -> str | None:
    """Return an enumerator; "" for the default, which comes first. Without `words` any is taken."""
    raw = value.value
    if value.kind == "number":
        return str(raw) if not words else None
    if value.kind != "word" or (words and raw not in words):
        return None
    return "" if words and raw == words[0] else str(raw)


def _expected(rule: Known) -> str:
    if rule.words:
        return f"one of {', '.join(rule.words)}"
    return {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "string": "a string in quotes",
        "enum": "an enumerator",
        "message": "a message in { }",
    }[rule.kind]
