"""What goes through a channel comes out as it went in, and nonsense is refused."""

import json
import socket
from collections.abc import Iterator
from threading import Thread

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinytorch.competition.sandbox.messages import (
    ANSWER,
    CODES,
    FORWARD,
    LARGEST_BYTES,
    MOST_AXES,
    NOTE,
    Channel,
    MessageError,
    SilenceError,
    array_fields,
    packed_header,
)

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | NUMBERS | st.text()


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    made = tuple(map(Channel, socket.socketpair()))
    yield made[0], made[1]
    for each in made:
        each.close()


def pair() -> tuple[socket.socket, Channel]:
    ours, theirs = socket.socketpair()
    return ours, Channel(theirs)


@given(
    arrays.arrays(
        st.sampled_from(list(CODES)),
        arrays.array_shapes(min_dims=0, max_dims=MOST_AXES, min_side=0),
    ),
    st.integers(0, 2**32 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
)
def test_arrays_arrive_as_they_were_sent(
    array: np.ndarray, wanted: int, seconds: float, is_intact: bool
) -> None:
    ours, theirs = map(Channel, socket.socketpair())
    code, shape = array_fields(array)
    body = array.tobytes()
    header = packed_header(
        ANSWER, code, shape, len(body), wanted=wanted, seconds=seconds, is_intact=is_intact
    )
    ours.send(header, body)
    message = theirs.receive()
    assert message.array().tobytes() == body
    assert (message.array().dtype, message.array().shape) == (array.dtype, array.shape)
    assert (message.wanted, message.seconds, message.is_intact) == (wanted, seconds, is_intact)
    ours.close()
    theirs.close()


@settings(max_examples=30)
@given(st.dictionaries(st.text(), PLAIN | st.lists(PLAIN)))
def test_notes_arrive_as_they_were_sent(said: dict[str, object]) -> None:
    ours, theirs = map(Channel, socket.socketpair())
    ours.send_note(said)
    message = theirs.receive()
    assert message.kind == NOTE
    assert message.note() == said
    ours.close()
    theirs.close()


def test_an_array_larger_than_all_buffers_arrives(ends: tuple[Channel, Channel]) -> None:
    array = np.arange(LARGEST_BYTES // 8, dtype=np.float64)
    body = array.tobytes()
    header = packed_header(FORWARD, *array_fields(array), len(body))
    sender = Thread(target=lambda: ends[0].send(header, body))
    sender.start()
    received = ends[1].receive().array()
    sender.join()
    np.testing.assert_array_equal(received, array)


@given(st.binary(min_size=1, max_size=200))
def test_arbitrary_bytes_never_become_more_than_a_message(noise: bytes) -> None:
    ours, theirs = pair()
    ours.sendall(noise)
    ours.close()
    try:
        message = theirs.receive()
        assert len(message.body) <= len(noise)
    except (MessageError, EOFError):
        pass
    theirs.close()


@pytest.mark.parametrize(
    "header",
    [
        packed_header(ANSWER, 200, (1,), 4),
        packed_header(99, 0, (1,), 4),
        packed_header(ANSWER, 0, (1,), LARGEST_BYTES + 1),
        packed_header(ANSWER, 0, (3, 3), 4),
        packed_header(ANSWER, 0, (2**31, 2**31, 2**31), 4),
    ],
)
def test_headers_that_lie_are_refused(header: bytes) -> None:
    ours, theirs = pair()
    ours.sendall(header + b"\0" * 4)
    with pytest.raises(MessageError, match=r"no message|are no array"):
        theirs.receive()
    ours.close()
    theirs.close()


def test_two_messages_at_once_are_refused() -> None:
    ours, theirs = pair()
    ours.sendall(2 * (packed_header(ANSWER, 0, (1,), 4) + b"\0" * 4))
    with pytest.raises(MessageError, match="more than one message"):
        theirs.receive()
    ours.close()
    theirs.close()


@pytest.mark.parametrize("text", [b"{", b"[1]", b"\xff\xfe", b"3", b"[" * 50_000])
def test_a_note_is_a_mapping(text: bytes) -> None:
    ours, theirs = pair()
    ours.sendall(packed_header(NOTE, 0, (), len(text)) + text)
    with pytest.raises(MessageError, match=r"no JSON|not a mapping|nested"):
        theirs.receive().note()
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    "text", [b'{"a":' + 30 * b"[" + 30 * b"]" + b"}", b"[" + b"1," * 60_000 + b"1]"]
)
def test_depth_and_items_are_counted_before_a_note_is_parsed(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pair()
    monkeypatch.setattr(json, "loads", lambda body: pytest.fail("it was parsed"))
    ours.sendall(packed_header(NOTE, 0, (), len(text)) + text)
    with pytest.raises(MessageError, match=r"nested more than|more than 50,000 items"):
        theirs.receive().note()
    ours.close()
    theirs.close()


def test_somebody_looks_while_nothing_arrives() -> None:
    looked: list[int] = []
    ours, theirs = socket.socketpair()
    channel = Channel(theirs, while_waiting=lambda: looked.append(1))
    channel.allow(0.2)
    with pytest.raises(SilenceError):
        channel.receive()
    assert len(looked) >= 2
    ours.close()
    theirs.close()


@pytest.mark.parametrize("part", [b"", b"\1", packed_header(ANSWER, 0, (1,), 4)])
def test_silence_has_an_end_also_within_a_message(part: bytes) -> None:
    ours, theirs = pair()
    theirs.allow(0.01)
    ours.sendall(part)
    with pytest.raises(SilenceError, match=r"nothing was said for 0\.01 s"):
        theirs.receive()
    ours.close()
    theirs.close()


def test_nobody_listening_has_an_end(ends: tuple[Channel, Channel]) -> None:
    ends[0].allow(0.01)
    body = bytes(8 << 20)
    header = packed_header(FORWARD, 0, (2 << 20,), len(body))
    with pytest.raises(SilenceError, match="no reader"):
        ends[0].send(header, body)


def test_a_closed_end_is_the_end(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    assert ends[1].has_unread()
    with pytest.raises(EOFError):
        ends[1].receive()


def test_what_has_arrived_is_seen_before_it_is_read(ends: tuple[Channel, Channel]) -> None:
    assert not ends[1].has_unread()
    ends[0].send_note({"a": 1})
    assert ends[1].has_unread()
    assert ends[1].receive().note() == {"a": 1}
    assert not ends[1].has_unread()


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.array([None]), "plain numbers"),
        (np.array(["a"]), "plain numbers"),
        (np.array([1j]), "plain numbers"),
        (np.zeros((1,) * 7), "7 axes"),
        (np.broadcast_to(np.zeros(1), (LARGEST_BYTES,)), "bytes; at most"),
    ],
)
def test_what_cannot_be_sent_is_said(array: np.ndarray, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        array_fields(array)
