"""Content negotiation: an answer follows Accept if possible, else the request's format."""

import pytest

from runtime_image.codecs.accept import SHORT, AnswerForm, choose, media_type
from runtime_image.contract.errors import NOT_ACCEPTABLE, RequestError
from runtime_image.contract.signature import Signature, TensorSpec

SIGNATURE = Signature(
    "tensors",
    (),
    (
        TensorSpec("y", "FP32", (-1,)),
        TensorSpec("z", "FP32", (-1,)),
        TensorSpec("s", "BYTES", (1,)),
    ),
)
OIP = AnswerForm("oip", outputs=("z",))
BINARY = AnswerForm("oip-binary", outputs=("z",), binary=("z",))


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "short"),
        ("*/*", "short"),
        ("application/json", "short"),
        ("application/*", "short"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "short"),
        ("application/x-npy", "npy"),
        ("APPLICATION/X-NPY ; q=0.5", "npy"),
        ("application/json;q=0.5, application/x-npy;q=0.9", "npy"),
        ("application/json;q=0, */*;q=0.1", "npy"),
        ("*/*;q=0.1, application/x-npy", "npy"),
        ("application/json;q=nan, application/x-npy;q=0.1", "npy"),
        ("application/json;q=high, application/x-npy;q=0.1", "npy"),
    ],
)
def test_quality_and_range_decide(accept: str, form: str) -> None:
    """The best quality wins, the most specific media range decides it, the default wins ties."""
    assert choose(accept, SHORT, SIGNATURE).form == form


@pytest.mark.parametrize(
    "accept", ["text/html", "application/json;q=0", ",,", "application/octet-stream", ";q=1"]
)
def test_a_refusal_lists_the_available_formats(accept: str) -> None:
    """If no format is acceptable, the error lists the available formats."""
    with pytest.raises(RequestError, match="application/json, application/x-npy") as caught:
        choose(accept, SHORT, SIGNATURE)
    assert caught.value.code == NOT_ACCEPTABLE


def test_an_npy_answer_holds_the_named_or_first_output() -> None:
    """output=NAME selects the output; the default is the first wanted or declared one."""
    assert choose("application/x-npy", SHORT, SIGNATURE).tensor == "y"
    assert choose('application/x-npy;output="z"', SHORT, SIGNATURE).tensor == "z"
    assert choose("application/x-npy", OIP, SIGNATURE).tensor == "z"
    bare = Signature("tensors", (), ())
    assert choose("application/x-npy", SHORT, bare).tensor == ""


@pytest.mark.parametrize("name", ["w", "s"])
def test_an_npy_answer_needs_a_numeric_output(name: str) -> None:
    """An unknown output and a string output are not available as npy."""
    with pytest.raises(RequestError, match=name) as caught:
        choose(f"application/x-npy;output={name}", SHORT, SIGNATURE)
    assert caught.value.code == NOT_ACCEPTABLE


def test_json_functions_answer_in_json_only() -> None:
    """Without declared tensors there is no npy answer."""
    with pytest.raises(RequestError):
        choose("application/x-npy", SHORT, Signature("json", (), ()))


def test_the_open_inference_protocol_keeps_its_form() -> None:
    """A protocol request is answered in its JSON or binary form, with the requested outputs."""
    assert choose("*/*", OIP, SIGNATURE) is OIP
    assert choose("application/json", OIP, SIGNATURE) is OIP
    assert choose("application/json", BINARY, SIGNATURE) == AnswerForm("oip", outputs=("z",))
    assert choose("application/*", BINARY, SIGNATURE) is BINARY
    raw = choose("application/octet-stream", OIP, SIGNATURE)
    assert (raw.form, raw.outputs, raw.binary_all) == ("oip-binary", ("z",), True)


def test_media_types_are_split() -> None:
    """Type and parameter names become lower case; values keep their case and lose their quotes."""
    assert media_type('Application/X-NPY; Input="In.1" ;x') == (
        "application/x-npy",
        {"input": "In.1", "x": ""},
    )
    assert media_type("") == ("", {})
