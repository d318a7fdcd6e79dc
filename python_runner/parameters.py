"""The parameters of `predict`: what they are called, what they take, and how values become them."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from python_runner import kinds
from runtime_image.codecs.json_faults import bad_json
from runtime_image.codecs.tensors import shorten
from runtime_image.contract.errors import BAD_INPUT, LoadError, RequestError
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec

CONTEXT: Final = "ctx"
"""Name of the parameter that gets the context."""
WHOLE: Final = "inputs"
"""Name of the parameter that gets all inputs, if it is the only one beside the context."""
_EXPECTED: Final = 'a JSON object {"inputs": {name: value}}'
_AT: Final = re.compile(r"(.*?)(?: - at `(?:key in )?\$([^`]*)`)?", re.DOTALL)
_WANTED: Final = re.compile(r"(.+), got (.+)", re.DOTALL)
_ENUM: Final = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_FIELD: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_SIMPLE: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One named input. `hint` is Any without one; `item` what a list of it has, or `hint`."""

    name: str
    hint: Any
    has_default: bool
    default: Any = None
    is_many: bool = False
    item: Any = Any

    def takes(self, family: kinds.Family) -> bool:
        """Whether its values are of a family."""
        return kinds.family_of(self.item) == family


@dataclass
class Parameters:
    """What `predict` takes. `whole`: one parameter gets all inputs in an object, of type `hint`.

    `signature` is that of the inputs as tensors, None for any others.
    """

    named: tuple[Parameter, ...]
    takes_context: bool
    text: str
    returns: Any = None
    whole: bool = False
    takes_others: bool = False
    hint: Any = dict[str, Any]
    signature: Signature | None = None
    rules: dict[str, InputRule] = field(default_factory=dict)
    inputs: Any = field(init=False)
    """The type of all inputs."""
    _decode: Callable[[bytes], Any] = field(init=False)

    def __post_init__(self) -> None:
        """Make the types that msgspec reads. Raises LoadError for a hint that it cannot read."""
        names = {f"p{at}": one.name for at, one in enumerate(self.named)}
        try:
            self.inputs = self.hint
            if not self.whole:
                self.inputs = msgspec.defstruct(
                    "Inputs",
                    [_member(at, one) for at, one in enumerate(self.named)],
                    rename=names,
                    forbid_unknown_fields=not self.takes_others,
                )
            body = msgspec.defstruct("Body", [(WHOLE, self.inputs)], forbid_unknown_fields=True)
            self._decode = msgspec.json.Decoder(body, dec_hook=kinds.read).decode
        except (TypeError, ValueError) as error:
            raise LoadError(f"predict: its hints cannot be read: {error}") from None

    def from_json(self, body: bytes) -> Any:
        """Return the inputs in short JSON: one value if `whole`, else by name. Raises BAD_INPUT."""
        try:
            given = self._decode(body)
        except msgspec.ValidationError as error:
            raise self._unfit(error, f".{WHOLE}") from None
        except (ValueError, RecursionError) as error:
            raise bad_json(_EXPECTED, body, error) from None
        others = msgspec.json.decode(body)[WHOLE] if self.takes_others else {}
        return self._by_name(given.inputs, others)

    def from_values(self, values: Mapping[str, Any]) -> Any:
        """As `from_json`, of values that are texts, JSON values or bytes. Raises BAD_INPUT."""
        try:
            given = msgspec.convert(values, self.inputs, strict=False, dec_hook=kinds.read)
        except msgspec.ValidationError as error:
            raise self._unfit(error, "") from None
        return self._by_name(given, values)

    def _by_name(self, given: Any, others: Mapping[str, Any]) -> Any:
        if self.whole:
            return given
        found = {}
        for at, one in enumerate(self.named):
            value = getattr(given, f"p{at}")
            if value is not msgspec.UNSET:
                found[one.name] = value
        if self.takes_others:
            return {**others, **found}
        return found

    def _unfit(self, error: msgspec.ValidationError, root: str) -> RequestError:
        """Return the error for what msgspec refused, with the path below the inputs."""
        at = _AT.fullmatch(str(error))
        assert at is not None
        text, path = at[1], (at[2] or "").removeprefix(root).lstrip(".")
        expected, got = text.removeprefix("Expected ").replace("`", ""), "another value"
        if isinstance(error.__cause__, kinds.Unfit):
            expected, got = error.__cause__.expected, error.__cause__.got
            path = (path + error.__cause__.below).lstrip(".")
        elif (wanted := _WANTED.fullmatch(expected)) is not None:
            expected, got = wanted.groups()
        elif (value := _ENUM.fullmatch(text)) is not None:
            expected, got = self._values(path), value[1]
        elif text.startswith("Invalid "):
            expected = text.replace("Invalid", "a valid", 1)
        elif (member := _FIELD.fullmatch(text)) is not None:
            path = f"{path}.{member[2]}".lstrip(".")
            known = ", ".join(one.name for one in self.named)
            is_missing = member[1].startswith("missing")
            expected = "a value" if is_missing else "a known name"
            got = "nothing: it is missing" if is_missing else "an unknown name"
            if not is_missing and "." not in path and known:
                expected = f"one of: {known}"
        return unfit(path or "body", expected, got)

    def _values(self, path: str) -> str:
        """Return which values a parameter may have, if it has few."""
        item = next((one.item for one in self.named if one.name == path), None)
        values = get_args(item) if get_origin(item) is Literal else ()
        if isinstance(item, type) and issubclass(item, Enum):
            values = tuple(one.value for one in item)
        return f"one of: {', '.join(map(repr, values[:20]))}" if values else "a known value"


def unfit(path: str, expected: str, got: str) -> RequestError:
    """Return the BAD_INPUT error of the value at `path`, such as "top_k" or "items[0].price"."""
    path = shorten(path)
    message = f"{path}: expected {expected}, got {got}"
    name = re.split(r"[.\[]", path, maxsplit=1)[0]
    return RequestError(BAD_INPUT, message, input=name, expected=expected, got=got)


def _member(at: int, one: Parameter) -> tuple[str, Any] | tuple[str, Any, Any]:
    if not one.has_default:
        return f"p{at}", one.hint
    return f"p{at}", typing.Union[one.hint, msgspec.UnsetType], msgspec.UNSET  # noqa: UP007


def read_parameters(
    function: Callable[..., Any], rules: dict[str, InputRule], *, is_batch: bool
) -> Parameters:
    """Return what `predict` takes. Raises LoadError. In batches each parameter gets a list."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise LoadError(f"predict: its parameters cannot be read: {error}") from None
    hints = _hints(function)
    named, takes_context, takes_others = [], False, False
    for name, one in signature.parameters.items():
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            takes_others = True
        elif one.kind not in _SIMPLE:
            raise LoadError(f"predict: expected parameters with names, got {one}")
        elif name == CONTEXT:
            takes_context = True
        else:
            named.append(_parameter(name, one, hints.get(name, Any), is_batch=is_batch))
    shown = [one.replace(annotation=_Shown.of(hints, one)) for one in signature.parameters.values()]
    text = f"predict{signature.replace(parameters=shown)}"
    returns = hints.get("return")
    if [one.name for one in named] == [WHOLE] and not named[0].has_default:
        hint = named[0].hint
        hint = dict[str, Any] if hint in (Any, dict) else hint
        return Parameters((), takes_context, text, returns, whole=True, hint=hint, rules=rules)
    tensors = None if rules or takes_others else _tensors(named)
    return Parameters(
        tuple(named),
        takes_context,
        text,
        returns,
        takes_others=takes_others,
        signature=tensors,
        rules=rules,
    )


class _Shown(str):
    """A hint as a reader knows it."""

    __slots__ = ()
    __repr__ = str.__str__

    @classmethod
    def of(cls, hints: Mapping[str, Any], one: inspect.Parameter) -> Any:
        """Return the hint of a parameter as it is shown."""
        if one.name not in hints:
            return one.empty
        bare = _bare(hints[one.name])
        rest = "" if bare is hints[one.name] else " | None"
        family = kinds.family_of(bare)
        if family == "array":
            return cls(f"NDArray[{kinds.dtype_of(bare) or 'Any'}]{rest}")
        return cls(f"Image{rest}") if family == "picture" else hints[one.name]


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints = typing.get_type_hints(inspect.unwrap(target), include_extras=True)
    except Exception as error:  # noqa: BLE001 - hints are code of the handler
        raise LoadError(f"predict: its hints cannot be read: {error!r}") from None
    return {name: kinds.mended(hint) for name, hint in hints.items()}


def _parameter(name: str, one: inspect.Parameter, hint: Any, *, is_batch: bool) -> Parameter:
    if is_batch and hint is not Any:
        if get_origin(hint) not in (list, Sequence):
            raise LoadError(f"predict: {name}: expected list[...], since calls come in batches")
        hint = get_args(hint)[0]
    bare = _bare(hint)
    is_many = get_origin(bare) in (list, tuple, set, frozenset, Sequence)
    items = get_args(bare)
    item = _bare(items[0]) if is_many and items else bare
    if kinds.family_of(item) is None and _is_foreign(item):
        raise LoadError(f"predict: {name}: {kinds.unknown(item)}")
    has_default = one.default is not inspect.Parameter.empty
    return Parameter(name, hint, has_default, one.default, is_many, item)


def _bare(hint: Any) -> Any:
    """Return a hint without Annotated and without None."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (typing.Union, UnionType):
        kept = [one for one in get_args(hint) if one is not NoneType]
        return _bare(kept[0]) if len(kept) == 1 else hint
    return hint


def _is_foreign(hint: Any) -> bool:
    """Whether msgspec would ask a hook for it. Raises LoadError for what it cannot have at all."""
    if not isinstance(hint, type) or hint.__module__ == "builtins":
        return False
    from msgspec.inspect import CustomType, type_info

    try:
        return isinstance(type_info(hint), CustomType)
    except TypeError as error:
        raise LoadError(f"predict: its hints cannot be read: {error}") from None


def _tensors(named: Sequence[Parameter]) -> Signature | None:
    """Return the signature of parameters that are arrays of known dtypes, all of them required."""
    specs = []
    for one in named:
        if one.has_default or one.is_many or not one.takes("array") or one.hint is not one.item:
            return None
        dtype = kinds.dtype_of(one.hint)
        if dtype is None:
            return None
        specs.append(TensorSpec(one.name, dtype, None))
    return Signature("tensors", tuple(specs), ()) if specs else None
