"""Answers of the endpoints that are no conversation. Pure."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

from answers import CREATED, PNG, Answer, Body, count, event, text_of, vector_of


def _whole(document: Body, input: int = 0, output: int = 0) -> Answer:
    return Answer(document, iter(()), input, output)


def embeddings(body: Body, text: str) -> Answer:
    """POST /embeddings, as numbers or as base64 of 32-bit numbers."""
    given = body["input"]
    texts = [given] if isinstance(given, str) or _is_tokens(given) else given
    size = body.get("dimensions") or 8
    vectors: list[Any] = [vector_of(_plain(one), size) for one in texts]
    if body.get("encoding_format") == "base64":
        packed = [struct.pack(f"<{size}f", *vector) for vector in vectors]
        vectors = [base64.b64encode(one).decode() for one in packed]
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(vectors)
    ]
    spent = sum(len(one) if isinstance(one, list) else count(one) for one in texts)
    usage = {"prompt_tokens": spent, "total_tokens": spent}
    return _whole({"object": "list", "data": data, "model": body["model"], "usage": usage}, spent)


def _is_tokens(given: Any) -> bool:
    return bool(given) and all(isinstance(one, int) for one in given)


def _plain(one: Any) -> str:
    return one if isinstance(one, str) else json.dumps(one)


def rerank(body: Body, text: str) -> Answer:
    """POST /rerank: a document counts as near by the words that it shares with the query."""
    wanted = set(body["query"].split())
    documents = [text_of(one) for one in body["documents"]]
    results = [
        {
            "index": index,
            "relevance_score": len(wanted & set(one.split())) / max(1, len(wanted)),
            "document": {"text": one},
        }
        for index, one in enumerate(documents)
    ]
    results.sort(key=lambda one: (-one["relevance_score"], one["index"]))  # type: ignore[operator]
    spent = count(body["query"]) + sum(map(count, documents))
    usage = {"total_tokens": spent}
    document = {"id": "rerank-1", "model": body["model"], "usage": usage}
    return _whole({**document, "results": results[: body.get("top_n") or None]}, spent)


def moderation(body: Body, text: str) -> Answer:
    """POST /moderations: the word `bad` is flagged."""
    given = body["input"] if isinstance(body["input"], list) else [body["input"]]
    flags = ["bad" in text_of(one).split() for one in given]
    results = [
        {
            "flagged": is_flagged,
            "categories": {"violence": is_flagged},
            "category_scores": {"violence": float(is_flagged)},
        }
        for is_flagged in flags
    ]
    return _whole({"id": "modr-1", "model": body["model"], "results": results})


def image(body: Body, text: str) -> Answer:
    """POST /images/generations and /images/edits."""
    spent = count(text)
    usage = {"input_tokens": spent, "output_tokens": 1, "total_tokens": spent + 1}
    usage["input_tokens_details"] = {"text_tokens": spent, "image_tokens": 0}  # type: ignore[assignment]
    packed = base64.b64encode(PNG).decode()
    data = [{"b64_json": packed} for _ in range(int(body.get("n") or 1))]
    name = "image_generation.completed"
    done = {"type": name, "b64_json": packed, "created_at": CREATED, "usage": usage}
    events: Iterator[tuple[bool, bytes]] = iter([(True, event(done, name))])
    return Answer({"created": CREATED, "data": data, "usage": usage}, events, spent, 1)


def transcription(body: Body, text: str) -> Answer:
    """POST /audio/transcriptions and /audio/translations: the text names the file's size."""
    said = f"{len(body['file'])} bytes for {body['model']}"
    spent = count(said)
    usage = {"type": "tokens", "input_tokens": 10, "output_tokens": spent}
    usage["total_tokens"] = 10 + spent

    def events() -> Iterator[tuple[bool, bytes]]:
        for word in said.split():
            yield True, event({"type": "transcript.text.delta", "delta": f"{word} "})
        yield False, event({"type": "transcript.text.done", "text": said, "usage": usage})

    return Answer({"text": said, "usage": usage}, events(), 10, spent)


def token_count(body: Body, text: str) -> Answer:
    """POST /messages/count_tokens."""
    return _whole({"input_tokens": count(text)})
