"""Trying sizes in a child process, which is started anew when it did not survive one."""

from __future__ import annotations

import json
import os
import pickle
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

from tinytorch import errors
from tinytorch.core.dispatch import active_backend
from tinytorch.errors import MeasurementError, ModelError, TinyTorchError
from tinytorch.measure.child_process import end_child, how_it_ended, last_words, start_child
from tinytorch.perf.acceleration.size_trial import REFUSED, Attempt, TrialFacts
from tinytorch.workloads.preparation import preparations_of
from tinytorch.workloads.workload import Workload

__all__ = ["ENDED", "LATE", "CannotSendError", "SizeProcess"]

START = (
    "import json, sys; request = json.loads(sys.argv[1]); sys.path[:] = request['path']; "
    "from tinytorch.perf.acceleration.size_worker import main; main(request)"
)
ENDED, LATE = "ended", "late"
LOADING_S = 600.0
"""A large model may take minutes to load; a process that says nothing for longer is ended."""
WATCHED_EVERY_S = 0.5
WORDS_KEPT = 200
IN_PROGRAM = "; a class that lies in an imported file, or a target file.py:factory, can be"


class CannotSendError(Exception):
    """A workload that no other process can have, for a reason."""


class _Died(Exception):
    """The process is gone; `kind` is ENDED or LATE."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class _Raised(Exception):
    """Something that no error of ours stands for was raised there."""


class SizeProcess:
    """A workload in a process of its own, given by its target or sent over.

    `timeout_s` is how long an answer may take, `restarting_s` the time that was spent on starting
    the process anew. `while_waiting` is called now and then, so that somebody can see life.
    """

    is_isolated = True

    def __init__(
        self,
        source: Workload | str,
        kind: str,
        axis: int | None = None,
        *,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.while_waiting = while_waiting
        self._target = source if isinstance(source, str) else None
        self._workload = None if isinstance(source, str) else _lean(source)
        self._kind, self._axis = kind, axis
        self._fenced_at: int | None = None
        self._child: subprocess.Popen[Any] | None = None
        self.timeout_s = LOADING_S
        self.restarting_s = 0.0
        self.facts = self._start()

    @contextmanager
    def environment(self) -> Iterator[None]:
        """End the process with the block."""
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            end_child(self._child)
            self._messages.close()
        self._child = None

    def free_bytes(self) -> int:
        """Give the memory that is left where the model is."""
        return int(self._measured(do="free_bytes"))

    def fence(self, allowed_bytes: int) -> bool:
        """Let what needs more than this fail there; say whether it will."""
        self._fenced_at = allowed_bytes
        return bool(self._measured(do="fence", allowed_bytes=allowed_bytes))

    def attempt(self, size: int, *, briefly: bool = False) -> Attempt:
        """Call the model at a size; what becomes of the process is part of the answer."""
        try:
            found = Attempt(**self._asked(do="attempt", size=size, briefly=briefly))
        except (_Died, _Raised, CannotSendError) as error:
            kind = error.kind if isinstance(error, _Died) else ENDED
            self.close()  # whatever that was, the next size shall not suffer from it
            return Attempt(size, kind=kind, failure=f"its process {error}")
        if found.kind == REFUSED:
            self._leave_failed_device()
        return found

    def time(self, size: int, loops: int) -> float:
        """Give the seconds of a call at a size, on fresh inputs, after one that is not timed."""
        try:
            return float(self._measured(do="time", size=size, loops=loops))
        except ModelError:
            self._leave_failed_device()
            raise

    # ------------------------------------------------------------ the process

    def _leave_failed_device(self) -> None:
        """End a process whose kernel may have failed: its device computes nothing any more."""
        if self.facts.device.startswith("cuda"):
            self.close()

    def _start(self) -> TrialFacts:
        request = {
            "target": self._target,
            "kind": self._kind,
            "axis": self._axis,
            "path": _import_path(),
            "backend": active_backend().name,
            "torch": _torch_settings(),
        }
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._child = start_child(
            [sys.executable, "-c", START, json.dumps(request)],
            purpose="to try sizes in",
            stdout=subprocess.PIPE,
            stderr=self._messages,
        )
        try:
            if self._workload is not None:
                self._send_over(self._workload)
            facts = self._answer(LOADING_S)
            return TrialFacts(**facts | {"notes": tuple(facts["notes"])})
        except _Died as error:
            raise CannotSendError(f"another process with it {error}") from error
        except _Raised as error:
            self.close()
            hint = IN_PROGRAM if "'__main__'" in str(error) else ""
            raise CannotSendError(f"another process with it {error}{hint}") from error
        except BaseException:
            self.close()
            raise

    def _send_over(self, workload: Workload) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            pickle.dump(workload, self._child.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # reading its answer says what has happened
        except Exception as error:  # objects may raise anything when they are pickled
            text = " ".join(str(error).split())[:WORDS_KEPT]
            raise CannotSendError(f"it cannot be sent to another process ({text})") from error

    def _measured(self, **request: Any) -> Any:
        """Ask for what must be answered, by a process that is still there."""
        try:
            return self._asked(**request)
        except (_Died, _Raised, CannotSendError) as error:
            self.close()
            raise MeasurementError(f"its process {error}") from error

    def _asked(self, **request: Any) -> Any:
        if self._child is None:
            started = perf_counter()
            self._start()
            self.restarting_s += perf_counter() - started
            if self._fenced_at is not None:
                self._asked(do="fence", allowed_bytes=self._fenced_at)
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            self._child.stdin.write((json.dumps(request) + "\n").encode())
            self._child.stdin.flush()
        except OSError:
            pass  # when it has ended, reading the answer says how
        return self._answer(self.timeout_s)

    def _answer(self, timeout_s: float) -> Any:
        assert self._child is not None
        line = self._read_line(timeout_s)
        if not line.endswith(b"\n"):
            code = self._child.wait()
            self._messages.seek(0)
            words = last_words(self._messages.read().decode("utf-8", "replace"), WORDS_KEPT)
            self.close()
            raise _Died(ENDED, how_it_ended(code) + (f"; it said: {words}" if words else ""))
        answer = json.loads(line)
        if "error" not in answer:
            return answer["answer"]
        known = getattr(errors, answer["class"] or "", None)
        if known is None:
            raise _Raised(f"raised {answer['error']}")
        error: TinyTorchError = known(answer["error"])
        raise error

    def _read_line(self, timeout_s: float) -> bytes:
        assert self._child is not None
        pipe = self._child.stdout
        assert pipe is not None
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            end = perf_counter() + timeout_s
            while not selector.select(min(WATCHED_EVERY_S, max(0.0, end - perf_counter()))):
                self.while_waiting()
                if perf_counter() > end:
                    self.close()
                    raise _Died(LATE, f"gave no answer within {timeout_s:.3g} s and was ended")
        return bytes(pipe.readline())


def _lean(workload: Workload) -> Workload:
    """Leave out what is not called, and say what cannot be copied at all."""
    prepared = preparations_of(workload.model)
    if prepared:
        what = ", ".join(each.what for each in prepared)
        raise CannotSendError(f"it was prepared in this process ({what}), and copies are not")
    return replace(workload, calibration=(), evaluate=None)


def _import_path() -> list[str]:
    """Give the folders that a target may be imported from: those here, and the working one."""
    here = os.getcwd()
    found = [path or here for path in sys.path]
    return found if here in found else [here, *found]


def _torch_settings() -> dict[str, Any] | None:
    if "torch" not in sys.modules:
        return None
    from tinytorch.perf.acceleration.size_device_torch import settings_in_force

    return settings_in_force()
