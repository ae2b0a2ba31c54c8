"""What code of entries may do, good and bad: each function makes a contender in its own process."""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Answering = Callable[[np.ndarray], Any]


def same(reference: Any, techniques: frozenset[str]) -> Any:
    """The reference itself."""
    return reference.model


def only_reference(reference: Any) -> Any:
    return reference.model


def by_hand(reference: Any, techniques: frozenset[str]) -> Answering:
    """A function on arrays, which tells what is switched on by the shape of its answer."""
    return lambda question: np.full((len(question), 1 + len(techniques)), 0.5)


class Writer:
    """Has a way of its own to write."""

    def __call__(self, question: np.ndarray) -> np.ndarray:
        return np.eye(73, dtype=np.float32)[(question + 1) % 73]

    def generate(self, ids: np.ndarray, count: int) -> np.ndarray:
        return np.arange(count)


def writer(reference: Any) -> Writer:
    return Writer()


def next_letter(reference: Any) -> Answering:
    """Predicts the next number; it has no way of its own to write."""
    return Writer().__call__


def raising(reference: Any) -> Answering:
    raise KeyError("no such layer")


def raising_later(reference: Any) -> Answering:
    def answer(question: np.ndarray) -> Any:
        print("last words")
        raise ZeroDivisionError("by zero")

    return answer


def leaving(reference: Any) -> Answering:
    return lambda question: os._exit(7)


def hanging(reference: Any) -> Answering:
    return lambda question: time.sleep(600)


def hoarding(reference: Any) -> Answering:
    held = []

    def answer(question: np.ndarray) -> np.ndarray:
        held.append(np.ones(400 << 17))  # 400 MiB
        return question

    return answer


def of_words(reference: Any) -> Answering:
    return lambda question: ["a", "b"]


def changing(reference: Any) -> Answering:
    def answer(question: np.ndarray) -> np.ndarray:
        question[...] = 0
        return question

    return answer


def working_on(reference: Any) -> Answering:
    """Goes on working after its first answer."""

    def work() -> None:
        while True:
            sum(range(1000))

    def answer(question: np.ndarray) -> np.ndarray:
        if threading.active_count() == 1:
            threading.Thread(target=work, daemon=True).start()
        return question

    return answer


def with_patched_clock(reference: Any) -> Answering:
    from tinytorch.competition.sandbox import contender_worker

    time.perf_counter = contender_worker.perf_counter = lambda: 0.0
    return lambda question: (time.sleep(0.02), question)[1]


def speaking(reference: Any) -> Answering:
    """Sends an answer of its own before the one that was asked for."""
    from tinytorch.competition.sandbox.messages import ANSWER, packed_header

    def answer(question: np.ndarray) -> np.ndarray:
        forged = packed_header(ANSWER, 0, (1,), 4) + b"\0" * 4
        for number in range(3, 20):
            try:
                os.write(number, forged) if os.fstat(number).st_mode & 0o140000 == 0o140000 else 0
            except OSError:
                continue
        return question

    return answer


def looking(reference: Any) -> Answering:
    """Answers with what it can see: variables, arguments, its folder, what is tracked."""
    import gc

    def answer(question: np.ndarray) -> np.ndarray:
        texts = [*os.environ, *os.environ.values(), *sys.argv, *os.listdir()]
        texts += [each for each in gc.get_objects() if isinstance(each, str)]
        return np.array(any("SECRET" in each for each in texts))

    return answer
