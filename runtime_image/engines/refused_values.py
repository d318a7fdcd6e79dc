"""Errors of ONNX Runtime that a request's inputs have caused: their values, or their shapes."""

from __future__ import annotations

import re
from typing import Final

TEXT_MAX: Final = 500
"""Max characters of a reason."""
READ_MAX: Final = 4000
"""Max characters of an error that are read: names of a model's nodes may have any length."""
_RUN: Final = re.compile(
    r"\[ONNXRuntimeError\] : (?P<code>\d+) : \w+ : Non-zero status code returned while running"
    r" (?P<operator>\S+) node\. Name:'(?P<node>.*?)' Status Message: (?P<reason>.*)",
    re.DOTALL,
)
_INVALID_ARGUMENT: Final = "2"
"""ORT_INVALID_ARGUMENT (onnxruntime_c_api.h, OrtErrorCode). Operators check most of what they get
with it, and the rest by conditions, whose errors have the code of any other failure."""
_CONDITION: Final = re.compile(
    r" was false|mismatch|must (?:match|not be)|should (?:not )?be"
    r"|[Oo]ut of (?:range|(?:data )?bounds)|not in valid range|is not equal to"
    r"|division by zero|Integer overflow|shape\.Size\(\) must|\Asto(?:d|f|ld|l|ll|ul|ull)\Z"
)
"""The last: text that a Cast cannot read as a number, by the name of the function of C++."""
_RESOURCE: Final = re.compile(r"alloc|memory|cuda|cublas|cudnn|\bfile\b", re.IGNORECASE)
_PLACE: Final = re.compile(
    r" was false\.?\s+(?=\S)|\.(?:h|cc):\d{1,9} \w{1,200}\s+(?=\S)|\[with [^][]{0,999}\]\s+(?=\S)"
)
"""Where ONNX Runtime's source has the condition; the words behind the last place are said."""


def refused_values(error: BaseException) -> str:
    """Return which operator did not take a run's inputs, and why; "" for any other error.

    Only for a model that runs alone: what a handler passes to it is the handler's own.
    """
    if not type(error).__module__.startswith("onnxruntime"):
        return ""
    found = _RUN.match(str(error)[:READ_MAX].rstrip())
    if found is None or _RESOURCE.search(found["reason"]):
        return ""
    if found["code"] != _INVALID_ARGUMENT and not _CONDITION.search(found["reason"]):
        return ""
    ends = [place.end() for place in _PLACE.finditer(found["reason"])]
    reason = found["reason"][max(ends, default=0) :].strip()
    node = f" ({found['node'][:100]})" if found["node"] else ""
    return f"the model's {found['operator'][:100]}{node} does not take these inputs: {reason}"[
        :TEXT_MAX
    ]
