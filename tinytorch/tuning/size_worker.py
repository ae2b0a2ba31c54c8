"""The process in which sizes are tried: it may run out of memory without harm to anybody."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, BinaryIO, TextIO

from tinytorch.comparison.worker import end_with_parent, private_channels
from tinytorch.core.dispatch import set_backend
from tinytorch.errors import TinyTorchError
from tinytorch.models.targets import load_workload
from tinytorch.models.workload import Workload
from tinytorch.tuning.size_trial import SizeTrial, be_first_to_go

__all__ = ["SizeWorker", "main"]


def main(request: Mapping[str, Any]) -> None:
    """Load the workload of a request and answer questions about it, a line of JSON each."""
    channel, answers = private_channels()
    requests, process = channel.buffer, os.getpid()
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    be_first_to_go()
    with ExitStack() as stack:
        worker: SizeWorker | None = None
        try:
            worker = SizeWorker(request, requests)
            stack.enter_context(worker.trial.environment())
            reply: dict[str, Any] = {"answer": asdict(worker.trial.facts)}
        except BaseException as error:  # whatever a target does is an answer
            reply = _failure(error)
        _write(answers, reply)
        while worker is not None and (line := requests.readline()):
            reply = worker.reply(json.loads(line))
            if os.getpid() != process:  # a copy that the model has left behind has nothing to say
                os._exit(0)
            _write(answers, reply)
    end_with_group()


def end_with_group() -> None:
    """End this process with all that the target has started, if they are a group of their own."""
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)


class SizeWorker:
    """A workload that came over, and what may be asked about it."""

    def __init__(self, request: Mapping[str, Any], requests: BinaryIO) -> None:
        if request["backend"]:
            set_backend(request["backend"])
        workload = _received(request, requests)
        self.trial = SizeTrial(workload, request["kind"], request["axis"])
        if request["torch"] and "torch" in sys.modules:
            from tinytorch.tuning.size_device_torch import take_settings

            take_settings(request["torch"])

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks for."""
        try:
            return {"answer": getattr(self, request.pop("do"))(**request)}
        except Exception as error:
            return _failure(error)

    def free_bytes(self) -> int:
        return self.trial.free_bytes()

    def fence(self, allowed_bytes: int) -> bool:
        return self.trial.fence(allowed_bytes)

    def attempt(self, size: int, briefly: bool) -> dict[str, Any]:
        return asdict(self.trial.attempt(size, briefly=briefly))

    def time(self, size: int, loops: int) -> float:
        return self.trial.time(size, loops)


def _received(request: Mapping[str, Any], requests: BinaryIO) -> Workload:
    if request["target"] is not None:
        return load_workload(request["target"])
    workload: Workload = pickle.load(requests)  # from the process that has started this one
    return workload


def _failure(error: BaseException) -> dict[str, Any]:
    is_ours = isinstance(error, TinyTorchError)
    text = str(error) if is_ours else f"{type(error).__name__}: {error}"
    return {"error": " ".join(text.split()), "class": type(error).__name__ if is_ours else None}


def _write(answers: TextIO, reply: Mapping[str, Any]) -> None:
    try:
        answers.write(json.dumps(reply) + "\n")
        answers.flush()
    except BrokenPipeError:  # the process that asked is gone
        end_with_group()
        raise
