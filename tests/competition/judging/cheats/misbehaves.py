"""Does what a contender must not do, as the name of its technique says."""

import os
import sys

import numpy as np

from tinytorch.competition.sandbox import contender_worker
from tinytorch.competition.sandbox.messages import NOTE, packed_header
from tinytorch.core.tensor import Tensor


def deep_note():
    """Send a note to the judge that its reader gets lost in."""
    frame = sys._getframe()
    while "channel" not in frame.f_locals:
        frame = frame.f_back
    frame.f_locals["channel"].send(*note_of(b"[" * 200_000))


def odd_description():
    """Tell the judge an impossible size."""
    contender_worker._describe = lambda channel, *_: channel.send(
        *note_of(b'{"described": {"file_bytes": 1e400, "plans": [], "notes": []}}')
    )


def note_of(body):
    return packed_header(NOTE, 0, (), len(body)), body


def loop():
    while True:
        pass


def hoard():
    held = [np.ones(64 << 17) for _ in range(40)]  # 40 times 64 MiB
    return held[0][:10]


AT_LOADING = {"a-deep-note": deep_note, "an-odd-description": odd_description}
ANSWERS = {
    "leaving": lambda: os._exit(3),
    "looping": loop,
    "hoarding": hoard,
    "giant-answers": lambda: np.zeros(20 << 20, np.float32),
    "no-axes": lambda: np.float32(1),
    "other-shapes": lambda: np.zeros(10, np.float32),
    "words": lambda: "seven",
    "huge-numbers": lambda: np.full((1, 10), 1e308),
    "truths": lambda: np.ones((1, 10), bool),
    "raising": lambda: [][1],
}
PEACEFUL = 320


def make(reference, techniques):
    (how,) = techniques
    model, asked = reference.model, [0]
    if how in AT_LOADING:
        AT_LOADING[how]()
        return lambda question: model(Tensor(question)).data

    def forward(question):
        asked[0] += 1
        if asked[0] > PEACEFUL and asked[0] % 2:
            return ANSWERS[how]()
        return model(Tensor(question)).data

    return forward
