"""Baseline and saved result in fresh processes: their times side by side, and what each takes.

What happened before in a process that searches may slow one side down and not the other. Bytes of
parameters and live tensors say what a model needs; memory of the process what an operator sees.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tinytorch.codec import Coded
from tinytorch.comparison.compare import compare
from tinytorch.comparison.comparison import Comparison
from tinytorch.comparison.sides import WorkloadSide
from tinytorch.core.dispatch import active_backend, set_backend
from tinytorch.errors import TinyTorchError, first_line
from tinytorch.measure.child_process import Child, import_path
from tinytorch.measure.memory import ProcessUse, measure_process_use
from tinytorch.models.adapter import adapter_for, owner_of
from tinytorch.models.targets import import_place, load_workload
from tinytorch.models.workload import Workload, call_model
from tinytorch.models.zoo import ZOO

LIMIT_S = 120.0
"""A process that takes longer, such as one that compiles for minutes, is not waited for."""
COMPARED_S, BUDGETS = 300.0, 4.0
"""A comparison may take so many seconds, and so many times its budget: it compiles what was saved,
and calls that are slow take longer than asked for."""
BASELINE, SAVED = "baseline", "saved"


@dataclass(frozen=True)
class ProcessMemory(Coded):
    """What fresh processes take with the baseline and with the saved result.

    What is None has its reason in `not_measured`.
    """

    baseline: ProcessUse | None = None
    saved: ProcessUse | None = None
    not_measured: Mapping[str, str] = field(default_factory=dict)


def measure_process_memory(
    saved: Path, workload: Workload, *, target: str = "", limit_s: float = LIMIT_S
) -> ProcessMemory:
    """Load and call the baseline, and what was saved of it, each in a fresh process.

    With a `target` both are built as it says; else the baseline is read from a file that is written
    for that, and a saved result that needs a function to build its architecture is left out.
    """
    found: dict[str, ProcessUse] = {}
    reasons: dict[str, str] = {}
    with TemporaryDirectory(prefix="tinytorch-") as folder:
        for side, path in ((BASELINE, None), (SAVED, saved)):
            try:
                has_file = path is None and not target
                request = _request(
                    Path(folder), workload, target=target, saved=path, is_written=has_file
                )
                found[side] = ProcessUse.from_dict(_asked(request, limit_s))
            except Exception as error:  # what cannot be pickled, loaded or called is a reason
                ours = isinstance(error, TinyTorchError)
                reasons[side] = first_line(error, with_class=not ours)
    return ProcessMemory(found.get(BASELINE), found.get(SAVED), reasons)


def compare_in_fresh_process(
    saved: Path,
    workload: Workload,
    *,
    target: str = "",
    limit_s: float,
    budget_s: float,
    **settings: Any,
) -> Comparison:
    """Compare the baseline with what was saved of it in a process that has done nothing else.

    Loading both may take `limit_s`. `settings` are those of :func:`compare`, as JSON has them.
    Raises ChildError where the process ends or does not answer.
    """
    with TemporaryDirectory(prefix="tinytorch-") as folder:
        request = _request(
            Path(folder), workload, target=target, saved=saved, is_written=not target
        )
        child = Child(f"{__name__}:BothSides", path=import_path(), purpose="to confirm a result")
        try:
            child.ask("load", timeout_s=limit_s, as_here=_choices(), **request)
            patience_s = COMPARED_S + BUDGETS * budget_s
            answer = child.ask("compare", timeout_s=patience_s, budget_s=budget_s, **settings)
        finally:
            child.close()
    return Comparison.from_dict(answer)


def _choices() -> dict[str, Any]:
    """Return what was chosen for this process and no variable of its environment says."""
    torch = sys.modules.get("torch")
    threads = None if torch is None else torch.get_num_threads()
    return {"backend": active_backend().name, "threads": threads}


def _request(
    folder: Path, workload: Workload, *, target: str, saved: Path | None, is_written: bool
) -> dict[str, Any]:
    """Return what a fresh process is told; the baseline `is_written` where no target makes it."""
    arguments, model = folder / "arguments", folder / "model"
    framework = adapter_for(workload.model, workload.arguments).name
    # A target has its own calibration data; what is loaded without one may need these.
    calibration = tuple(workload.calibration) if is_written and saved is not None else ()
    given = workload.inputs, dict(workload.keywords), calibration
    arguments.write_bytes(pickle.dumps(given))
    if is_written:
        _write(model, workload.model, framework)
    return {
        "framework": framework,
        "module": type(owner_of(workload.model)).__module__,
        "arguments": str(arguments),
        "target": target,
        "model": str(model),
        "saved": None if saved is None else str(saved.absolute()),
    }


def _write(path: Path, model: Any, framework: str) -> None:
    if framework != "pytorch":
        path.write_bytes(pickle.dumps(model))
        return
    from tinytorch.tuning.saving_torch import write_pickled  # pickle would hold tensors twice

    write_pickled(path, model)


def _read(path: Path, framework: str) -> Any:
    if framework != "pytorch":
        return pickle.loads(path.read_bytes())
    from tinytorch.tuning.saving_torch import read_pickled

    return read_pickled(path)


def _asked(request: Mapping[str, Any], limit_s: float) -> Any:
    child = Child(f"{__name__}:answer", path=import_path(), purpose="to measure its memory")
    try:
        return child.ask(timeout_s=limit_s, **request)
    finally:
        child.close()


# ---------------------------------------------------------------- in the fresh process


class Sides:
    """What a request names, with everything imported that both sides need."""

    def __init__(
        self,
        *,
        framework: str,
        module: str,
        arguments: str,
        target: str,
        model: str,
        saved: str | None,
    ) -> None:
        if framework == "pytorch":
            import tinytorch.tuning.saving_torch
        import tinytorch.tuning.loading  # noqa: F401

        with suppress(Exception):  # it may import only once the target has prepared something
            importlib.import_module(module)
        if target and target not in ZOO and ":" in target:
            with suppress(TinyTorchError):
                import_place(target, target.rpartition(":")[0])

        self.inputs, self.keywords, self.calibration = pickle.loads(Path(arguments).read_bytes())
        self._framework, self._target, self._model = framework, target, model
        self._saved = saved

    def baseline(self) -> Any:
        """Make the baseline as its target says, or read it."""
        return self.workload().model

    def workload(self) -> Workload:
        """Make the workload of the baseline, with the inputs of the request."""
        if self._target:
            made = load_workload(self._target)
        else:
            model = _read(Path(self._model), self._framework)
            made = Workload(BASELINE, model, (), self.calibration)
        model = adapter_for(made.model, self.inputs).in_evaluation_mode(made.model)
        return replace(
            made,
            name=BASELINE,
            model=model,
            inputs=self.inputs,
            keywords=self.keywords,
            evaluate=None,
            notes=(),
        )

    def saved(self, target: Any = None) -> Any:
        """Load what was saved, with the architecture of `target` or of the request's."""
        from tinytorch.tuning.loading import load_optimized, load_with_inputs

        assert self._saved is not None
        if target is not None:
            return load_optimized(self._saved, target)
        given = self.inputs, self.keywords
        return load_with_inputs(Path(self._saved), self._target or None, given)

    def called(self, model: Any) -> None:
        """Call a model once, as everybody does for inference."""
        with adapter_for(model, self.inputs).without_gradients():
            call_model(model, *self.inputs, **self.keywords)


def answer(**request: Any) -> dict[str, Any]:
    """Load one side and call it; return what that takes."""
    sides = Sides(**request)
    load = sides.baseline if request["saved"] is None else sides.saved
    return measure_process_use(load, sides.called).to_dict()


class BothSides:
    """Baseline and saved result in this process, to be compared."""

    def __init__(self, service: object) -> None:
        self._workloads: tuple[Workload, ...] = ()

    def load(self, *, as_here: Mapping[str, Any], **request: Any) -> None:
        """Load both, with the choices of the process that asks."""
        sides = Sides(**request)
        with suppress(TinyTorchError):  # a backend of its own is not known here
            set_backend(as_here["backend"])
        if as_here["threads"] is not None and "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(as_here["threads"])
        baseline = sides.workload()
        self._workloads = baseline, replace(baseline, model=sides.saved(baseline))

    def compare(
        self, *, names: Sequence[str] = (BASELINE, SAVED), **settings: Any
    ) -> dict[str, Any]:
        """Return a comparison of both as they were loaded, which is how a program calls them.

        Copies made for every round change what the C library does with freed memory: beside them a
        call of ViT took 231 ms, and 205 ms without.
        """
        sides = [
            WorkloadSide(each, name=name) for name, each in zip(names, self._workloads, strict=True)
        ]
        for side in sides:
            side.stay_as_it_is("it is timed as it was loaded")
        return compare(*sides, **settings).to_dict()
