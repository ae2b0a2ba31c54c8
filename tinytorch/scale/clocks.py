"""Clocks of ranks against that of rank 0, asked before and after the steps, never in between."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter_ns

from tinytorch.scale.rank_file import Clock

PINGS = 60
TIMEOUT_S = 10.0
_MOMENT = struct.Struct("!q")

Read = Callable[[], int]


class ClockServer:
    """Answers every byte with the moment at which it came, in a thread of rank 0."""

    def __init__(self, read: Read = perf_counter_ns) -> None:
        self._read = read
        self._socket = socket.create_server(("", 0), backlog=256)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="tinytorch-clock", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            try:
                while connection.recv(1):
                    connection.sendall(_MOMENT.pack(self._read()))
            except OSError:
                return

    def close(self) -> None:
        """Answer nobody any more; closing alone would leave a thread that still accepts."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def ask_clock(address: tuple[str, int], *, read: Read = perf_counter_ns) -> Clock:
    """Return how far the clock of the server is ahead, by the quickest of some answers.

    The answer was given between question and reply; half of that time is the most it can err.
    Raises OSError where nobody answers.
    """
    with socket.create_connection(address, timeout=TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found = []
        for _ in range(PINGS):
            asked = read()
            connection.sendall(b"?")
            answer = b""
            while len(answer) < _MOMENT.size:
                part = connection.recv(_MOMENT.size - len(answer))
                if not part:
                    raise ConnectionError("the clock of rank 0 has closed")
                answer += part
            heard = read()
            there = _MOMENT.unpack(answer)[0]
            found.append((heard - asked, there - (asked + heard) / 2, heard))
    took, offset, at = min(found)
    return Clock(at // 1000, offset / 1000, took / 2000)


def offset_at(clocks: Sequence[Clock], moment: float) -> float:
    """Return how far rank 0's clock was ahead at a moment, drifting evenly between two answers."""
    if not clocks:
        return 0.0
    first, last = clocks[0], clocks[-1]
    if last.at == first.at:
        return first.offset
    return first.offset + (last.offset - first.offset) * (moment - first.at) / (last.at - first.at)
