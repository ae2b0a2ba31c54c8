"""What the judge's process and a contender's say to each other: arrays and JSON, never code.

A message is a header of fixed size and a body. Both sides take turns, so one receive usually gets
the whole message, and nothing is parsed but numbers.
"""

from __future__ import annotations

import json
import math
import re
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tinytorch.errors import TinyTorchError

NOTE, FORWARD, GENERATE, ANSWER = range(4)
"""The kinds of messages: JSON, the two kinds of questions, and the answer to one."""
DTYPES = tuple(
    np.dtype(name)
    for name in (
        "<f4", "<f8", "<f2", "<i8", "<i4", "<i2", "|i1", "|u1", "<u2", "<u4", "<u8", "|b1"
    )
)  # fmt: skip
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
LARGEST_BYTES = 1 << 20
"""No body is larger; a header that says otherwise is not believed."""
MOST_AXES = 6
MOST_ITEMS, DEEPEST = 50_000, 20
"""Of a note, counted before it is parsed: a byte of JSON may become a hundred of memory."""
LOOKED_EVERY_S = 0.05
BRACKET = re.compile(rb"[\[\]{}]")

# kind, code of the dtype, axes, whether the question is intact, characters wanted, seconds, bytes,
# shape
HEADER = struct.Struct(f"<BBBBIdQ{MOST_AXES}I")
NO_SHAPE = (0,) * MOST_AXES

Array = npt.NDArray[Any]


class MessageError(TinyTorchError, ValueError):
    """Bytes that are no message, or an array that cannot be sent."""


class SilenceError(TinyTorchError, TimeoutError):
    """The other side said nothing for too long."""


class Message(NamedTuple):
    """A message as it arrived. `body` is valid until the next one is received.

    `wanted` is how many characters are to be written.
    """

    kind: int
    body: memoryview
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    wanted: int
    seconds: float
    is_intact: bool

    def array(self) -> Array:
        """Return a copy of the array in the body."""
        return np.frombuffer(bytearray(self.body), self.dtype).reshape(self.shape)

    def note(self) -> dict[str, Any]:
        """Return the content of a message in JSON; always a mapping."""
        body = bytes(self.body)
        _check_size(body)
        try:
            said = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise MessageError(f"a message is no JSON: {error}") from error
        if not isinstance(said, dict):
            raise MessageError(f"a message is a {type(said).__name__}, not a mapping")
        return said


def _check_size(body: bytes) -> None:
    """Raise MessageError for JSON that is nested too deep or has too many items."""
    if body.count(b",") > MOST_ITEMS:
        raise MessageError(f"a message has more than {MOST_ITEMS:,} items")
    depth = 0
    for found in BRACKET.finditer(body):
        depth += 1 if found[0] in b"[{" else -1
        if depth > DEEPEST:
            raise MessageError(f"a message is nested more than {DEEPEST} deep")


def array_fields(array: Array) -> tuple[int, tuple[int, ...]]:
    """Return the code of an array's dtype and its shape; raise if it cannot be sent."""
    code = CODES.get(array.dtype)
    if code is None:
        raise MessageError(f"an array of {array.dtype} cannot be sent; it takes plain numbers")
    if array.ndim > MOST_AXES:
        raise MessageError(f"an array has {array.ndim} axes, and at most {MOST_AXES} can be sent")
    if array.nbytes > LARGEST_BYTES:
        raise MessageError(f"an array of {array.nbytes:,} bytes; at most {LARGEST_BYTES:,} go")
    return code, array.shape


class Channel:
    """One end of a pair of sockets. Without `timeout_s` it waits for ever.

    `while_waiting` is called now and then while nothing arrives, and may raise.
    """

    def __init__(
        self, end: socket.socket, *, while_waiting: Callable[[], None] = lambda: None
    ) -> None:
        self._socket = end
        # One more than the largest message, to see what is too much.
        self._view = memoryview(bytearray(HEADER.size + LARGEST_BYTES + 1))
        self._timeout_s = math.inf
        self._while_waiting = while_waiting

    def allow(self, timeout_s: float) -> None:
        """Set the timeout of each message that is sent or received."""
        self._timeout_s = timeout_s
        # By the kernel: a timeout of Python's own would poll before each call.
        span = struct.pack("@ll", 0, int(min(timeout_s, LOOKED_EVERY_S) * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, span)

    def send_note(self, said: Mapping[str, Any]) -> None:
        """Send a mapping as JSON."""
        body = json.dumps(said, allow_nan=False).encode()
        self.send(packed_header(NOTE, 0, (), len(body)), body)

    def send(self, header: bytes, body: bytes | memoryview) -> None:
        """Send a message whose header was packed."""
        started = time.monotonic()
        try:
            sent = self._socket.sendmsg((header, body))
        except BlockingIOError:
            sent = 0
        if sent == len(header) + len(body):
            return
        rest = memoryview(header + bytes(body))
        while sent < len(rest):
            self._wait(started, "no reader")
            with suppress(BlockingIOError):
                sent += self._socket.send(rest[sent:])

    def receive(self) -> Message:
        """Return the next message; raise EOFError where the other side is gone."""
        view = self._view
        started = time.monotonic()
        got = 0
        while got < HEADER.size:
            got += self._receive_into(view[got:], started)
        kind, code, axes, is_intact, wanted, seconds, nbytes, *sides = HEADER.unpack_from(view)
        if nbytes > LARGEST_BYTES or code >= len(DTYPES) or axes > MOST_AXES or kind > ANSWER:
            raise MessageError("what arrived is no message")
        total = HEADER.size + nbytes
        while got < total:
            got += self._receive_into(view[got:], started)
        if got > total:
            raise MessageError("more than one message arrived at once")
        dtype, shape = DTYPES[code], tuple(sides[:axes])
        if kind != NOTE and math.prod(shape) * dtype.itemsize != nbytes:
            raise MessageError(f"{nbytes} bytes are no array {shape} of {dtype}")
        body = view[HEADER.size : total]
        return Message(kind, body, dtype, shape, wanted, seconds, bool(is_intact))

    def has_unread(self) -> bool:
        """Return whether something has arrived, or the other side is gone."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _receive_into(self, view: memoryview, started: float) -> int:
        while True:
            try:
                got = self._socket.recv_into(view)
            except BlockingIOError:
                self._wait(started, "nothing was said")
                continue
            except ConnectionError as error:
                raise EOFError("the other side is gone") from error
            if not got:
                raise EOFError("the other side is gone")
            return got

    def _wait(self, started: float, what: str) -> None:
        """Raise if it took too long already; look after the other side otherwise."""
        if time.monotonic() - started > self._timeout_s:
            raise SilenceError(f"{what} for {self._timeout_s:g} s")
        self._while_waiting()


def packed_header(
    kind: int,
    code: int,
    shape: tuple[int, ...],
    nbytes: int,
    *,
    wanted: int = 0,
    seconds: float = 0.0,
    is_intact: bool = True,
) -> bytes:
    """Return the header of a message."""
    filled = shape + NO_SHAPE[len(shape) :]
    return HEADER.pack(kind, code, len(shape), is_intact, wanted, seconds, nbytes, *filled)
