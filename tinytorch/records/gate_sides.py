"""The two sides of a gate: where their code is, which Python runs it, and whether it works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinytorch.comparison.processes import WORKER, Isolated
from tinytorch.errors import MeasurementError, ModelError
from tinytorch.measure.child_process import how_it_ended, last_words, run_child
from tinytorch.perf.benchmarking.references import is_installed, place_in_project
from tinytorch.records.gate_origins import Origins

__all__ = ["BASELINE", "CANDIDATE", "GateSide", "Probed"]

BASELINE, CANDIDATE = "baseline", "candidate"
PROBE = Path(__file__).with_name("probe.py")
SIDE_VARIABLE = "TINYTORCH_GATE_SIDE"


@dataclass(frozen=True)
class Probed:
    """What loading a target on one side showed.

    `error` is empty when it works. `is_missing` means that there is no such file, module or
    function. `foreign` are files of the other side that were imported, `origins` where all code
    came from.
    """

    error: str = ""
    is_missing: bool = False
    has_evaluate: bool = False
    python: str = ""
    foreign: tuple[str, ...] = ()
    origins: Origins = field(default_factory=Origins)


@dataclass(frozen=True)
class GateSide:
    """One side: the tree of its code at `top`, and the folder in it where targets are.

    `top` is None for a folder that belongs to no repository, `origin` is the tree that people work
    in. `python` is empty for the interpreter that runs this; one with a folder in its name is
    looked for in `folder`.
    """

    name: str
    label: str
    folder: Path
    top: Path | None = None
    origin: Path | None = None
    python: str = ""
    timeout_s: float = 120.0

    @property
    def interpreter(self) -> str:
        if not self.python:
            return sys.executable
        has_folder = os.path.dirname(self.python) != ""
        # Not resolved: the interpreter of a virtual environment is a link.
        return str(self.folder / self.python) if has_folder else self.python

    def isolated(self, target: str) -> Isolated:
        """Give a target in fresh processes of this side."""
        return Isolated(
            target,
            python=self.interpreter,
            folder=self.folder,
            variables={"PYTHONPATH": self._python_path()},
            timeout_s=self.timeout_s,
        )

    def _python_path(self) -> str:
        """Give the places to import from: those of this tree first, before what is installed.

        Without this an editable install, which leads to the working tree, would win on both sides.
        """
        roots = [self.folder] if self.top is None else [self.folder, self.top]
        own = [place for root in roots for place in (root, root / "src") if place.is_dir()]
        given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        return os.pathsep.join(dict.fromkeys([*map(str, own), *map(self._moved, given)]))

    def _moved(self, place: str) -> str:
        """Give the same place in this side's tree, where it was one in the tree of people."""
        path = Path(place).resolve()
        if self.top is not None and self.origin is not None and path.is_relative_to(self.origin):
            return str(self.top / path.relative_to(self.origin))
        return str(path)

    def set_up(self, command: str) -> None:
        """Run a command of the shell in the folder; raise when it fails.

        A candidate that cannot be prepared has failed; without a baseline nothing can be measured.
        """
        ran = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=os.environ | {SIDE_VARIABLE: self.name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if ran.returncode != 0:
            kind = ModelError if self.name == CANDIDATE else MeasurementError
            said = last_words(ran.stdout)
            raise kind(
                f"the setup command ended with {ran.returncode} for the {self.name} "
                f"({self.label}); it said: {said or 'nothing'}"
            )

    def probe(self, target: str, *, others: Sequence[Path] = ()) -> Probed:
        """Load a target and call it once; `others` are trees that nothing may come from."""
        isolated = self.isolated(target)
        request = json.dumps({"target": target, "worker": str(WORKER)})
        ran = run_child(
            [isolated.python, str(PROBE), request],
            timeout_s=self.timeout_s,
            folder=isolated.folder,
            environment=isolated.environment,
            purpose=f"for the {self.name}",
        )
        if ran.code is None:
            return Probed(
                f"it gave no answer within {self.timeout_s:g} s; allow more with a longer timeout"
            )
        if not ran.output.strip():
            said = last_words(ran.messages) or "nothing"
            return Probed(f"its process {how_it_ended(ran.code)}; it said: {said}")
        return self._understood(target, json.loads(ran.output), others)

    def _understood(self, target: str, seen: dict[str, Any], others: Sequence[Path]) -> Probed:
        origins = self._origins(target, seen["modules"])
        foreign = [
            file
            for file in origins.outside.values()
            if any(Path(file).is_relative_to(tree) for tree in others)
            and not is_installed(Path(file))
        ]
        return Probed(
            error=seen.get("error", ""),
            is_missing=seen.get("is_missing", False),
            has_evaluate=seen.get("has_evaluate", False),
            python=seen["python"],
            foreign=tuple(sorted(foreign)),
            origins=origins,
        )

    def _origins(self, target: str, modules: Mapping[str, str]) -> Origins:
        """Sort the files of imported modules, and that of the target, by whose they are."""
        place = target.rpartition(":")[0]
        files = dict(modules)
        if place.endswith(".py"):
            # The file of a target has a name that no module can have, and no other.
            target_file = self._file(place)
            files = {name: file for name, file in files.items() if file != target_file}
            files[place] = target_file
        own = {name: inside for name, file in files.items() if (inside := self._inside(file))}
        outside = {
            name: file
            for name, file in files.items()
            if name not in own and name.partition(".")[0] not in sys.stdlib_module_names
        }
        return Origins(own, outside, self._told(files.get(place, "")))

    def _told(self, file: str) -> str:
        """Name the file of a target as it is called on every day and machine."""
        if not file or is_installed(Path(file)):
            return ""
        return (self._inside(file) if self.top else "") or place_in_project(Path(file))

    def _file(self, place: str) -> str:
        return os.path.realpath(self.folder / place)

    def _inside(self, file: str) -> str:
        """Give the path of a file of this side in its tree, or nothing for one of others."""
        root = (self.top or self.folder).resolve()
        is_own = Path(file).is_relative_to(root) and not is_installed(Path(file))
        return Path(file).relative_to(root).as_posix() if is_own else ""
