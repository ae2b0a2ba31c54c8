"""A worker answers questions in turn, and says what went wrong."""

import gc
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict
from threading import Thread
from typing import Any

import numpy as np
import pytest

from tinytorch.competition.entry import Technique
from tinytorch.competition.sandbox import contender_worker
from tinytorch.competition.sandbox.building import Built
from tinytorch.competition.sandbox.contender import Contender
from tinytorch.competition.sandbox.contender_worker import contender_from, serve
from tinytorch.competition.sandbox.messages import (
    ANSWER,
    FORWARD,
    GENERATE,
    Channel,
    Message,
    array_fields,
    packed_header,
)

QUESTION = np.arange(6.0).reshape(2, 3)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Channel]]:
    """Serve whatever is built in a thread; give the judge's end."""
    ends, threads = [], []
    monkeypatch.setattr(gc, "freeze", lambda: None)

    def start(forward: Any) -> Channel:
        def build(contender: Contender) -> Built:
            if forward is None:
                raise ValueError("no model")
            return Built(forward, lambda ids, count: ids[:count], lambda: 7, notes=("a note",))

        monkeypatch.setattr(contender_worker, "build", build)
        ours, theirs = map(Channel, socket.socketpair())
        thread = Thread(target=_serve_to_the_end, args=(theirs,))
        thread.start()
        ends.append(ours)
        threads.append(thread)
        return ours

    yield start
    for end in ends:
        end.close()
    for thread in threads:
        thread.join()


def _serve_to_the_end(channel: Channel) -> None:
    try:
        serve(channel, Contender("mlp_sprint"))
    except EOFError:
        channel.close()


def say(channel: Channel, wanted: str) -> dict[str, Any]:
    channel.send_note({"do": wanted})
    return channel.receive().note()


def ask(channel: Channel, question: np.ndarray, kind: int = FORWARD, wanted: int = 0) -> Message:
    body = question.tobytes()
    channel.send(packed_header(kind, *array_fields(question), len(body), wanted=wanted), body)
    return channel.receive()


def test_questions_are_answered_in_turn(served: Callable[[Any], Channel]) -> None:
    channel = served(lambda question: question.T)
    assert say(channel, "load") == {"loaded": {}}
    for number in range(3):
        message = ask(channel, QUESTION + number)
        np.testing.assert_array_equal(message.array(), QUESTION.T + number)
        assert message.kind == ANSWER
        assert message.seconds > 0
        assert message.is_intact


def test_kinds_of_requests_can_be_mixed(served: Callable[[Any], Channel]) -> None:
    channel = served(lambda question: question)
    say(channel, "load")
    ask(channel, QUESTION)
    assert say(channel, "describe") == {
        "described": {"file_bytes": 7, "plans": [], "notes": ["a note"]}
    }
    assert ask(channel, np.arange(5), GENERATE, wanted=2).array().tolist() == [0, 1]
    assert "modules" in say(channel, "modules")


def test_a_changed_question_is_told(served: Callable[[Any], Channel]) -> None:
    def change(question: np.ndarray) -> np.ndarray:
        question += 1
        return question

    channel = served(change)
    say(channel, "load")
    assert not ask(channel, QUESTION).is_intact


def test_errors_are_told_and_the_next_question_is_answered(
    served: Callable[[Any], Channel],
) -> None:
    def divide(question: np.ndarray) -> Any:
        return np.array(1 // int(question[0]))

    channel = served(divide)
    say(channel, "load")
    told = ask(channel, np.array([0])).note()
    assert told["rule"] == "E8"
    assert "ZeroDivisionError" in told["error"]
    assert ask(channel, np.array([1])).array() == 1


def test_words_are_no_answer(served: Callable[[Any], Channel]) -> None:
    channel = served(lambda question: "forty-two")
    say(channel, "load")
    assert ask(channel, QUESTION).note()["rule"] == "A1"


def test_without_a_model_there_is_no_answer(served: Callable[[Any], Channel]) -> None:
    channel = served(None)
    assert "asked before it was loaded" in ask(channel, QUESTION).note()["error"]
    assert say(channel, "load") == {
        "rule": "E8",
        "error": "building it raised ValueError: no model",
    }
    assert "asked before it was loaded" in ask(channel, QUESTION).note()["error"]


def test_a_contender_survives_json() -> None:
    techniques = (Technique("a"), Technique("b", (("Quantize", {"mode": "static"}),)))
    contender = Contender("cnn_marathon", techniques, "/weights", "/code.py:make")
    assert contender_from(json.loads(json.dumps(asdict(contender)))) == contender
