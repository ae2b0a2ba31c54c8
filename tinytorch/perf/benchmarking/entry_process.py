"""Starting a fresh process for an entry of a suite, and what becomes of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinytorch.measure.child_process import how_it_ended, last_words, run_child
from tinytorch.measure.owned_folders import owned_folder, remove_stale_folders
from tinytorch.measure.samples import Samples
from tinytorch.perf.benchmarking.entries import Entry

__all__ = ["EntryAnswer", "run_entry"]

START = (
    "import json, sys; request = json.loads(sys.argv[1]); sys.path[:] = request['path']; "
    "from tinytorch.perf.benchmarking.entry_worker import main; main(request)"
)
WORDS_KEPT = 300
FOLDERS = "bench"


@dataclass(frozen=True)
class EntryAnswer:
    """What the process of an entry found, or in `failure` why there is nothing."""

    samples: Mapping[str, Samples] = field(default_factory=dict)
    environment: Mapping[str, Any] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    failure: str | None = None


def run_entry(entry: Entry, *, timeout_s: float) -> EntryAnswer:
    """Measure an entry in a fresh process; never raise for what happens there.

    The process, and what it started, are ended when it takes longer than `timeout_s`, when this
    call is interrupted, and when this process dies. What the target prints is shown only as part
    of a failure.
    """
    remove_stale_folders(FOLDERS)
    with owned_folder(FOLDERS) as folder:
        answer = folder / "answer.json"
        request = {"entry": entry.to_dict(), "answer": str(answer), "path": _import_path()}
        child = run_child(
            [sys.executable, "-c", START, json.dumps(request)], timeout_s=timeout_s, together=True
        )
        if child.code is None:
            return EntryAnswer(
                failure=f"gave no result within {timeout_s:g} s and was ended; "
                "allow more with a longer timeout"
            )
        if not answer.exists():
            words = last_words(child.output, WORDS_KEPT)
            said = f"; it said: {words}" if words else ""
            return EntryAnswer(failure=f"its process {_without_answer(child.code)}{said}")
        return _read(answer)


def _import_path() -> list[str]:
    """Give the folders that a target may be imported from: those here, and the working one."""
    here = os.getcwd()
    found = [path or here for path in sys.path]
    return found if here in found else [here, *found]


def _read(answer: Path) -> EntryAnswer:
    fields = json.loads(answer.read_text("utf-8"))
    if "failure" in fields:
        return EntryAnswer(failure=fields["failure"])
    return EntryAnswer(
        samples={name: Samples.from_dict(each) for name, each in fields["samples"].items()},
        environment=fields["environment"],
        details=fields["details"],
        notes=tuple(fields["notes"]),
    )


def _without_answer(code: int) -> str:
    # Some targets leave by themselves, without an error that anybody could see.
    return how_it_ended(code) if code < 0 else f"{how_it_ended(code)} and without an answer"
