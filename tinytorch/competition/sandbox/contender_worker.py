"""A contender's own process: confine it, build what was asked for, answer question by question.

Everything that the loop calls is bound before code of an entry is imported, so that what the code
puts in its place is not called. Nothing relies on that: the judge has its own clock."""

from __future__ import annotations

import gc
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from tinytorch.competition.entry import Technique
from tinytorch.competition.sandbox.building import Built, build, prepare
from tinytorch.competition.sandbox.contender import Contender
from tinytorch.competition.sandbox.messages import (
    ANSWER,
    FORWARD,
    GENERATE,
    NOTE,
    Channel,
    Message,
    MessageError,
    array_fields,
    packed_header,
)
from tinytorch.competition.sandbox.restrictions import Restrictions, restrict
from tinytorch.core.autograd import no_grad
from tinytorch.errors import first_line

# ---------------------------------------------------------------- what is said of an error that
# the code of an entry raised: what it is, and in which line


def failure_text(doing: str, error: BaseException, contender: Contender) -> str:
    """Return in one line what was raised, first the line of the entry's own code that led to it.

    It reads as ``model.py:14 in make: building it raised ZeroDivisionError: division by zero``.
    """
    said = f"{doing} raised {first_line(error)}"
    if contender.code is None:
        return said
    home = Path(contender.code.rpartition(":")[0]).parent
    homes = (home, home.resolve())
    place = next((found for each in _chain(error) if (found := _place_in(homes, each))), "")
    return f"{place}: {said}" if place else said


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it came from, the last first."""
    met: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in met:  # code may tie them to a ring
        met.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _place_in(homes: tuple[Path, ...], error: BaseException) -> str:
    """Name the innermost line of an error's traceback that lies in the folder, or nothing."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        home = next((each for each in homes if path.is_relative_to(each)), None)
        if home is not None:
            place = f"{path.relative_to(home)}:{line} in {frame.f_code.co_name}"
    return place


# ---------------------------------------------------------------- a contender's own process:
# confine it, build what was asked for, answer question by question


def main(descriptor: int) -> None:
    """Answer on a socket until the judge closes it."""
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        first = channel.receive().note()
        contender = contender_from(first["contender"])
        prepare(contender.event)
        restrict(Restrictions(**first["restrictions"]))
        gc.collect()
        channel.send_note({"ready": {}})
        serve(channel, contender)
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the judge has what it wanted, whatever threads of an entry are doing
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def serve(channel: Channel, contender: Contender) -> None:
    """Do what notes ask for, and answer questions, until the judge is gone."""
    before = _packages()
    answer_questions = answering_on(channel, contender)
    built: Built | None = None
    message = channel.receive()
    while True:
        if message.kind != NOTE and built is not None:
            with no_grad():
                message = answer_questions(built, message)
            continue
        wanted = message.note().get("do") if message.kind == NOTE else ""
        if wanted == "load":
            built = _load(channel, contender)
        elif wanted == "describe" and built is not None:
            _describe(channel, built, contender)
        elif wanted == "modules":
            channel.send_note({"modules": sorted(_packages() - before)})
        else:
            channel.send_note({"rule": "E8", "error": "it was asked before it was loaded"})
        message = channel.receive()


def _load(channel: Channel, contender: Contender) -> Built | None:
    try:
        built = build(contender)
    except BaseException as error:  # code of an entry may raise anything
        channel.send_note({"rule": "E8", "error": failure_text("building it", error, contender)})
        return None
    gc.collect()
    gc.freeze()  # what was loaded stays, and need not be traversed again and again
    channel.send_note({"loaded": {}})
    return built


def _describe(channel: Channel, built: Built, contender: Contender) -> None:
    try:
        size = built.count_bytes()
    except Exception as error:  # a model may raise anything when it is written
        channel.send_note({"rule": "E8", "error": failure_text("writing it", error, contender)})
        return
    described = {"file_bytes": size, "plans": built.plans, "notes": built.notes}
    channel.send_note({"described": described})


def answering_on(channel: Channel, contender: Contender) -> Callable[[Built, Message], Message]:
    """Return the function that answers; all that it calls is bound before an entry's code runs."""
    clock, pid, leave, own = perf_counter, os.getpid, os._exit, os.getpid()
    as_array, from_buffer = np.ascontiguousarray, np.frombuffer
    fields_of, pack, send, receive = array_fields, packed_header, channel.send, channel.receive

    def answer_questions(built: Built, message: Message) -> Message:
        """Answer this question and those after it; give the first message that is none."""
        forward, generate = built.forward, built.generate
        while message.kind in (FORWARD, GENERATE):
            kind, body, dtype, shape, wanted, _, _ = message
            memory = bytearray(body)
            question = from_buffer(memory, dtype).reshape(shape)
            try:
                started = clock()
                given = forward(question) if kind == FORWARD else generate(question, wanted)
                output = as_array(given)
                answer = output.tobytes()  # a copy: not computed later
                inner_s = clock() - started
                code, axes = fields_of(output)
            except BaseException as error:  # code of an entry may raise anything
                rule = "A1" if isinstance(error, MessageError) else "E8"
                said = failure_text("answering", error, contender)
                channel.send_note({"rule": rule, "error": said})
            else:
                if pid() != own:
                    leave(0)  # a copy of this process has nothing to say
                is_intact = memory == body
                header = pack(ANSWER, code, axes, len(answer), seconds=inner_s, is_intact=is_intact)
                send(header, answer)
            message = receive()
        return message

    return answer_questions


def contender_from(said: Mapping[str, Any]) -> Contender:
    """Return the contender that a note holds."""
    techniques = tuple(
        Technique(each["name"], tuple((name, settings) for name, settings in each["transforms"]))
        for each in said["techniques"]
    )
    return Contender(said["event"], techniques, said["weights"], said["code"])


def _packages() -> frozenset[str]:
    """Return the packages that are imported, without those of Python itself."""
    tops = {each.partition(".")[0] for each in list(sys.modules)}
    return frozenset(each for each in tops - sys.stdlib_module_names if not each.startswith("__"))
