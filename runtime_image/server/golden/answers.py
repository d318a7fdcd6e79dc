"""Reads from the answer of a server what rules compare. The server is a stranger: sizes, parts and
nesting are bounded before anything is built, and what has another form than expected is left out.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from runtime_image.contract.samples import (
    CONTENT_TYPE_MAX,
    PROMPT_MAX,
    TEXT_MAX,
    TOKEN_MAX,
    TOKENS_MAX,
    VECTOR_MAX,
    Answer,
    Picture,
    finite,
)
from runtime_image.server.golden.png import SIGNATURE, read_png, reduced

BODY_MAX: Final = 4 * 2**20
"""Bytes of a body that are read; those behind do not count."""
PARTS_MAX: Final = 50_000
"""Max commas, objects and lists of a body that is parsed."""
ALTERNATIVES_MAX: Final = 20
"""Max likeliest tokens that are read for a place."""
_Object = Mapping[str, Any]


def read_answer(status: int, content_type: str, body: bytes) -> Answer:
    """Return what an answer says. Never raises: what cannot be read is empty."""
    found: dict[str, Any] = {
        "status": status,
        "content_type": content_type.partition(";")[0].strip().lower()[:CONTENT_TYPE_MAX],
        "digest": hashlib.sha256(body).hexdigest(),
    }
    if body.startswith(SIGNATURE):
        return Answer(**found, pixels=_picture(body))
    document = _object(_parsed(body))
    choice = _object(_first(document.get("choices")))
    found |= _generated(document, choice)
    item = _object(_first(document.get("data")))
    found["vector"] = _vector(item.get("embedding"))
    found["pixels"] = _encoded_picture(item.get("b64_json"))
    return Answer(**found)


def _parsed(body: bytes) -> Any:
    """Return the value of a JSON text, None for any other body."""
    if sum(map(body.count, (b",", b"[", b"{"))) > PARTS_MAX:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _generated(document: _Object, choice: _Object) -> dict[str, Any]:
    """Return the members of an Answer that say what a language model has generated."""
    message = _object(choice.get("message"))
    texts = (choice.get("text"), message.get("content"), message.get("reasoning_content"))
    text = next((one for one in texts if isinstance(one, str) and one), "")
    found: dict[str, Any] = {"text": text[:TEXT_MAX]}
    said = _object(choice.get("logprobs"))
    if isinstance(said.get("content"), list):
        found |= _of_chat(said["content"])
    elif isinstance(said.get("token_logprobs"), list):
        used = _object(document.get("usage")).get("prompt_tokens")
        found |= _of_completion(said, used if type(used) is int and used > 0 else 0)
    own = choice.get("prompt_logprobs") or document.get("prompt_logprobs")
    if isinstance(own, list):
        found["prompt"] = _of_prompt(own)
    return found


def _of_chat(content: list[Any]) -> dict[str, Any]:
    """Read `logprobs` of a chat: objects with `token`, `logprob` and `top_logprobs`."""
    tokens, logprobs, alternatives = [], [], []
    for one in map(_object, content[:TOKENS_MAX]):
        logprob = _number(one.get("logprob"))
        if logprob is None:
            return {}
        tops = one.get("top_logprobs")
        pairs = map(_object, tops[:ALTERNATIVES_MAX] if isinstance(tops, list) else ())
        tokens.append(_token(one.get("token")))
        logprobs.append(logprob)
        alternatives.append(_alternatives((two.get("token"), two.get("logprob")) for two in pairs))
    return _tokens(tokens, logprobs, alternatives)


def _of_completion(said: _Object, prompt_tokens: int) -> dict[str, Any]:
    """Read `logprobs` of a completion: lists of tokens, their logarithms and alternatives. The
    first `prompt_tokens` are those of the prompt if it was echoed, which shows in a first token
    without a logarithm."""
    logprobs, tokens, tops = said["token_logprobs"], said.get("tokens"), said.get("top_logprobs")
    tokens = tokens if isinstance(tokens, list) else []
    tops = tops if isinstance(tops, list) else []
    begin = prompt_tokens if logprobs[:1] == [None] else 0
    prompt = [_number(one) for one in logprobs[1:begin][:PROMPT_MAX]] if begin else []
    generated = [_number(one) for one in logprobs[begin:][:TOKENS_MAX]]
    if None in prompt or None in generated:
        return {}
    names = [_token(one) for one in tokens[begin:][: len(generated)]]
    if len(names) < len(generated):
        return {}
    found = [
        _alternatives(islice(_object(one).items(), ALTERNATIVES_MAX))
        for one in tops[begin:][: len(generated)]
    ]
    return {**_tokens(names, generated, found), "prompt": tuple(prompt)}


def _of_prompt(places: list[Any]) -> tuple[float, ...]:
    """Read vLLM's `prompt_logprobs`: for each token but the first an object whose first member is
    that token's."""
    found = []
    for one in places[1 : PROMPT_MAX + 1]:
        first = _object(next(iter(_object(one).values()), None))
        logprob = _number(first.get("logprob"))
        if logprob is None:
            return ()
        found.append(logprob)
    return tuple(found)


def _tokens(names: list[str], logprobs: list[Any], tops: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "tokens": tuple(names),
        "token_logprobs": tuple(logprobs),
        "alternatives": tuple(tops),
    }


def _alternatives(pairs: Any) -> dict[str, float]:
    read = ((_token(token), _number(logprob)) for token, logprob in pairs)
    return {token: logprob for token, logprob in read if logprob is not None}


def _vector(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) > VECTOR_MAX:
        return ()
    found = [_number(one) for one in value]
    return tuple(one for one in found if one is not None) if None not in found else ()


def _encoded_picture(value: Any) -> Picture | None:
    if not isinstance(value, str):
        return None
    try:
        return _picture(base64.b64decode(value, validate=True))
    except ValueError:
        return None


def _picture(data: bytes) -> Picture | None:
    """Return what is compared of a PNG file, None of anything else and of a large one."""
    try:
        return reduced(read_png(data))
    except ValueError:
        return None


def _token(value: Any) -> str:
    return value[:TOKEN_MAX] if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    """Return a finite number, None for anything else."""
    try:
        return finite(value)
    except ValueError:
        return None


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None


def _object(value: Any) -> _Object:
    return value if isinstance(value, dict) else {}
