"""Property tests of the event stream parser: the cuts between reads do not matter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from admin.client.sse import Event, Parser

LINE_ENDS = ("\n", "\r", "\r\n")

text = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=20)
kinds = text.filter(bool)
events = st.lists(
    st.builds(Event, id=text, type=kinds, data=st.lists(text, min_size=1).map("\n".join)),
    max_size=5,
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Event], bytes]:
    """Events, and a stream of them with all line ends and with comments between."""
    sent = draw(events)
    parts = []
    for event in sent:
        data = [f"data: {one}" for one in event.data.split("\n")]
        lines = [f":{draw(text)}", f"id: {event.id}", f"event: {event.type}", *data, ""]
        # One kind per event: a CR followed by the LF of an empty line would be one line end.
        end = draw(st.sampled_from(LINE_ENDS))
        parts += [line + end for line in lines]
    return sent, "".join(parts).encode()


def cut(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


@given(st.data())
def test_cuts_change_nothing(data: st.DataObject) -> None:
    """Every event is read back, with any cuts, line ends and comments."""
    sent, stream = data.draw(streams())
    parser = Parser()

    read = [event for piece in data.draw(st.composite(cut)(stream)) for event in parser.feed(piece)]

    assert read == sent
    assert parser.last_id == (sent[-1].id if sent else "")


@given(st.data(), st.binary(max_size=200))
def test_any_bytes_are_parsed_alike_in_pieces(data: st.DataObject, stream: bytes) -> None:
    """Any bytes, invalid UTF-8 included, give the same events in pieces as in one read."""
    whole, parser = Parser(), Parser()

    read = [event for piece in data.draw(st.composite(cut)(stream)) for event in parser.feed(piece)]

    assert read == whole.feed(stream)
