"""Memory of the process: baseline and saved result, each loaded and called in a fresh one.

Bytes of parameters and live tensors say what a model needs; these say what an operator sees."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tinytorch.codec import Coded
from tinytorch.errors import TinyTorchError, first_line
from tinytorch.measure.child_process import Child, import_path
from tinytorch.measure.memory import ProcessUse, measure_process_use
from tinytorch.models.adapter import adapter_for, owner_of
from tinytorch.models.targets import import_place, load_workload
from tinytorch.models.workload import Workload, call_model
from tinytorch.models.zoo import ZOO

LIMIT_S = 120.0
"""A process that takes longer, such as one that compiles for minutes, is not waited for."""
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
                request = _request(Path(folder), workload, target=target, saved=path)
                found[side] = ProcessUse.from_dict(_asked(request, limit_s))
            except Exception as error:  # what cannot be pickled, loaded or called is a reason
                ours = isinstance(error, TinyTorchError)
                reasons[side] = first_line(error, with_class=not ours)
    return ProcessMemory(found.get(BASELINE), found.get(SAVED), reasons)


def _request(
    folder: Path, workload: Workload, *, target: str, saved: Path | None
) -> dict[str, Any]:
    arguments, model = folder / "arguments", folder / "model"
    framework = adapter_for(workload.model, workload.arguments).name
    arguments.write_bytes(pickle.dumps((workload.inputs, dict(workload.keywords))))
    if not target and saved is None:
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


def answer(
    *,
    framework: str,
    module: str,
    arguments: str,
    target: str,
    model: str,
    saved: str | None,
) -> dict[str, Any]:
    """Import what both sides need, then load one of them and call it."""
    if framework == "pytorch":
        import tinytorch.tuning.saving_torch
    with suppress(Exception):  # it may import only once the target has prepared something
        importlib.import_module(module)
    if target and target not in ZOO and ":" in target:
        with suppress(TinyTorchError):
            import_place(target, target.rpartition(":")[0])
    import tinytorch.tuning.loading

    inputs, keywords = pickle.loads(Path(arguments).read_bytes())

    def load() -> Any:
        if saved is not None:
            return tinytorch.tuning.loading.load_with_inputs(
                Path(saved), target or None, (inputs, keywords)
            )
        made = load_workload(target).model if target else _read(Path(model), framework)
        return adapter_for(made, inputs).in_evaluation_mode(made)

    def call(loaded: Any) -> None:
        with adapter_for(loaded, inputs).without_gradients():
            call_model(loaded, *inputs, **keywords)

    return measure_process_use(load, call).to_dict()
