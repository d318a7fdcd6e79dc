"""Table [openai] of a server function that answers at /v1, and its conversion to settings."""

from __future__ import annotations

import re
from typing import Final, Literal

from pydantic import Field

from registry.manifest.checks import Section, Text, refused
from registry.model.servers import ModelApi
from registry.names import NAME_RULE, is_name

_AT: Final = "openai"
_BASE: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_DEFAULTS: Final = ModelApi()


class OpenAITable(Section):
    """Table [openai]."""

    served_model: Text = _DEFAULTS.served_model
    """Name of the model at the server. Requests get it in place of the function's name, and answers
    the other way round, except in an event, a line or an answer of more than 1 MiB. Empty to leave
    both as they are."""
    base: Text = _DEFAULTS.base
    """Path below which the server has the endpoints, such as `/v1` or `/api/v1`."""
    usage: Literal["ask", "as_sent"] = _DEFAULTS.usage
    """How the tokens of streams are known. `ask` adds `stream_options.include_usage` to chat and
    completion streams, and takes the usage out again that only fngate has asked for: the whole
    event, unless it has more than the usage. `as_sent` changes nothing."""
    body_mib: int = Field(default=_DEFAULTS.body_mib, ge=1, le=256)
    """Maximum size of a request's body in MiB: it is read before the function is known."""
    comment_after_s: float = Field(default=_DEFAULTS.comment_after_s, ge=0, le=3600)
    """Seconds after which a stream that waits for its replica gets a first comment, so that proxies
    keep the connection. Others follow each 10 s, or as often if that is shorter. 0 for never."""
    on_disconnect: Literal["abort", "drain"] = _DEFAULTS.on_disconnect
    """The end of an answer whose client has left: `abort` ends the request at the server,
    `drain` lets it finish."""
    upstream_key: Text = _DEFAULTS.upstream_key
    """Name of a secret whose value the server gets as its key, in place of the client's, which
    never gets there. The deploy needs a key of scope `admin`."""


def model_api(table: OpenAITable) -> ModelApi:
    """Convert the table to settings. Raises BadManifest."""
    if not table.served_model.isprintable():
        raise refused(f"{_AT}.served_model", "printable characters", table.served_model)
    if not _BASE.fullmatch(table.base) or any(one in (".", "..") for one in table.base.split("/")):
        raise refused(f"{_AT}.base", "a path such as /v1, without / at its end", table.base)
    if table.upstream_key and not is_name(table.upstream_key):
        raise refused(f"{_AT}.upstream_key", NAME_RULE, table.upstream_key)
    return ModelApi(**table.model_dump())
