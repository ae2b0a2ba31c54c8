"""What the judge's process and a contender's say to each other: arrays and JSON, never code.

A message is a header of fixed size and a body. Both sides take turns, so one receive usually gets
the whole message, and nothing is parsed but numbers.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tinytorch.errors import TinyTorchError

__all__ = [
    "ANSWER",
    "FORWARD",
    "GENERATE",
    "LARGEST_BYTES",
    "NOTE",
    "Channel",
    "Message",
    "MessageError",
    "SilenceError",
    "array_fields",
]

NOTE, FORWARD, GENERATE, ANSWER = range(4)
"""The kinds of messages: JSON, the two kinds of questions, and the answer to one."""
DTYPES = tuple(
    np.dtype(name)
    for name in (
        "<f4", "<f8", "<f2", "<i8", "<i4", "<i2", "|i1", "|u1", "<u2", "<u4", "<u8", "|b1"
    )
)  # fmt: skip
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
LARGEST_BYTES = 64 << 20
"""No body is larger; a header that says otherwise is not believed."""
MOST_AXES = 6
USUAL_BYTES = 1 << 20

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
        try:
            said = json.loads(bytes(self.body))
        except (ValueError, RecursionError) as error:
            raise MessageError(f"a message is no JSON: {error}") from error
        if not isinstance(said, dict):
            raise MessageError(f"a message is a {type(said).__name__}, not a mapping")
        return said


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
    """One end of a pair of sockets. Without `timeout_s` it waits for ever."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._view = memoryview(bytearray(USUAL_BYTES))
        self._deadline_s: float | None = None

    def allow(self, timeout_s: float) -> None:
        """Set the timeout of each message that is sent or received."""
        self._deadline_s = timeout_s
        # By the kernel: a timeout of Python's own would poll before each call.
        span = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, span)

    def send_note(self, said: Mapping[str, Any]) -> None:
        """Send a mapping as JSON."""
        body = json.dumps(said, allow_nan=False).encode()
        self.send(packed_header(NOTE, 0, (), len(body)), body)

    def send(self, header: bytes, body: bytes | memoryview) -> None:
        """Send a message whose header was packed."""
        try:
            sent = self._socket.sendmsg((header, body))
            if sent < len(header) + len(body):
                self._send_rest(header, body, sent)
        except BlockingIOError as error:
            raise SilenceError(f"no reader for {self._deadline_s:g} s") from error

    def _send_rest(self, header: bytes, body: bytes | memoryview, sent: int) -> None:
        self._socket.sendall(memoryview(header + bytes(body))[sent:])

    def receive(self) -> Message:
        """Return the next message; raise EOFError where the other side is gone."""
        view = self._view
        started = time.monotonic()
        got = self._receive_into(view)
        while got < HEADER.size:
            got += self._receive_into(view[got:], started)
        kind, code, axes, is_intact, wanted, seconds, nbytes, *sides = HEADER.unpack_from(view)
        if nbytes > LARGEST_BYTES or code >= len(DTYPES) or axes > MOST_AXES or kind > ANSWER:
            raise MessageError("what arrived is no message")
        total = HEADER.size + nbytes
        if total > len(view):
            view = self._grow(total, got)
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

    def _receive_into(self, view: memoryview, started: float | None = None) -> int:
        limit = self._deadline_s
        is_late = started is not None and limit is not None and time.monotonic() - started > limit
        try:
            got = 0 if is_late else self._socket.recv_into(view)
        except BlockingIOError:
            is_late = True
        except ConnectionError as error:
            raise EOFError("the other side is gone") from error
        if is_late:
            raise SilenceError(f"nothing was said for {limit:g} s")
        if not got:
            raise EOFError("the other side is gone")
        return got

    def _grow(self, total: int, got: int) -> memoryview:
        larger = memoryview(bytearray(total + 1))  # one more, to see what is too much
        larger[:got] = self._view[:got]
        self._view = larger
        return larger


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
