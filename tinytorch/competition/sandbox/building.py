"""Building a contender: the reference, with techniques carried out on it, or what code makes."""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tinytorch import reading
from tinytorch.competition.entry import Technique, files_below
from tinytorch.competition.events import find_event
from tinytorch.competition.sandbox.contender import Contender
from tinytorch.competition.techniques import KV_CACHE, resolve
from tinytorch.core.checkpoints import KEY, load_checkpoint
from tinytorch.core.module import Module
from tinytorch.core.tensor import Tensor
from tinytorch.core.transformers import GPT
from tinytorch.errors import CheckpointError, TargetError
from tinytorch.models.adapter import adapter_for
from tinytorch.models.targets import import_place
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import CONTEXT, load_zoo, text_data
from tinytorch.transforms.plan import Plan
from tinytorch.tuning.loading import load_optimized

SIZE_OF_CODE = "its size is that of its folder and of the weights it was given, which it may hold"

Array = npt.NDArray[Any]
Forward = Callable[[Array], Any]
Generate = Callable[[Array, int], Any]


@dataclass(frozen=True)
class Built:
    """A contender that can be asked, and what is known of it.

    `forward` takes examples (batch, ...), `generate` a prompt (time,) and how many characters are
    to follow. Both are meant to be called without gradients. `count_bytes` finds out what it takes
    on disk, which is no part of loading it.
    """

    forward: Forward
    generate: Generate
    count_bytes: Callable[[], int]
    plans: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


def prepare(event: str) -> None:
    """Read public data and code that all contenders of an event need: loading is the model's."""
    import_module("safetensors.numpy")
    if find_event(event).model == "gpt":
        text_data(held_out=False)


def build(contender: Contender) -> Built:
    """Build a contender in this process. Where it has code, this runs it."""
    workload = load_zoo(find_event(contender.event).model)
    if contender.weights is not None:
        workload = replace(workload, model=_load_weights(contender.weights, workload))
    if contender.code is not None:
        return _build_from_code(contender, workload)
    workload, plans, notes = _carry_out(contender.techniques, workload)
    has_cache = any(each.name == KV_CACHE for each in contender.techniques)
    forward, generate = callables_of(workload.model, use_cache=has_cache)

    def count_bytes() -> int:
        # What is on disk makes the model, and so does what would be written of it.
        given = [] if contender.weights is None else [bytes_below(Path(contender.weights))]
        return min([saved_bytes(workload.model), *given])

    return Built(forward, generate, count_bytes, plans, notes)


# ---------------------------------------------------------------- declared techniques


def _load_weights(path: str, workload: Workload) -> Any:
    """Return the reference's model with other weights, or the result of `save_optimized`."""
    if Path(path).is_dir():
        return load_optimized(path, workload)
    try:
        is_optimized = KEY in reading.read_metadata(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error
    if is_optimized:
        return load_optimized(path, workload)
    load_checkpoint(path, workload.model)
    return workload.model


def _carry_out(
    techniques: Sequence[Technique], workload: Workload
) -> tuple[Workload, tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    plans: list[Mapping[str, Any]] = []
    notes: list[str] = []
    for technique in techniques:
        if technique.name == KV_CACHE and not technique.transforms:
            if not isinstance(workload.model, GPT):
                notes.append(f"{KV_CACHE} found nothing to do: only the GPT writes text")
            continue
        made: list[Plan] = []
        for transform in resolve(technique):
            plan = transform.plan(workload)
            if not plan.is_empty:
                workload = replace(workload, model=transform.apply(workload, plan))
            made.append(plan)
        plans += [each.to_dict() for each in made]
        if all(each.is_empty for each in made):
            notes.append(f"{technique.name} found nothing to do{_reason(made)}")
    if isinstance(workload.model, Module):
        workload.model.eval()
    return workload, tuple(plans), tuple(notes)


def _reason(plans: Sequence[Plan]) -> str:
    reasons = [each.reason for plan in plans for each in plan.skipped]
    return f": {reasons[0]}" if reasons else ""


# ---------------------------------------------------------------- code


def _build_from_code(contender: Contender, workload: Workload) -> Built:
    """Import the file and let its function make whatever can be called."""
    assert contender.code is not None
    place, _, name = contender.code.rpartition(":")
    make = getattr(import_place(contender.code, place), name, None)
    if not callable(make):
        raise TargetError(f"{contender.code}: {Path(place).name} has no function {name!r}")
    switched_on = frozenset(each.name for each in contender.techniques)
    notes: tuple[str, ...] = ()
    if _takes_techniques(make):
        made = make(workload, switched_on)
    else:
        made = make(workload)
        if switched_on:
            notes += (f"{name}() takes no techniques, so none of them can be switched off",)
    if any(each.name == "size" for each in find_event(contender.event).measures):
        notes += (SIZE_OF_CODE,)
    forward, generate = callables_of(made, use_cache=KV_CACHE in switched_on)
    # What code consists of is counted by the judge, who does not ask it.
    return Built(forward, generate, lambda: 0, notes=notes)


def _takes_techniques(make: Callable[..., Any]) -> bool:
    try:
        inspect.signature(make).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _is_torch_module(made: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(made, torch.nn.Module)


# ---------------------------------------------------------------- calling and sizes


def callables_of(model: Any, *, use_cache: bool) -> tuple[Forward, Generate]:
    """Return how a model is called with arrays, whatever it is made of."""
    if _is_torch_module(model):
        from tinytorch.competition.sandbox.building_torch import forward_of

        forward = forward_of(model)
        return forward, _greedy(forward)
    if isinstance(model, Module):
        model.eval()
        return _core_forward(model), _core_generate(model, use_cache=use_cache)
    plain: Forward | None = model if callable(model) else getattr(model, "forward", None)
    if plain is None:
        raise TargetError(
            f"what was made is a {type(model).__name__}; give a model of TinyTorch or PyTorch, or "
            "a function from array to array"
        )
    return plain, getattr(model, "generate", None) or _greedy(plain)


def _core_forward(model: Module) -> Forward:
    def forward(array: Array) -> Any:
        return model(Tensor(array)).data

    return forward


def _core_generate(model: Module, *, use_cache: bool) -> Generate:
    if not isinstance(model, GPT):
        return _greedy(_core_forward(model))

    def generate(ids: Array, count: int) -> Any:
        return model.generate(ids, count, use_cache=use_cache).data[len(ids) :]

    return generate


def _greedy(forward: Forward) -> Generate:
    """Write by reading the whole text again for each character."""

    def generate(ids: Array, count: int) -> Array:
        text = list(ids)
        for _ in range(count):
            logits = np.asarray(forward(np.array(text[-CONTEXT:])[None]))
            text.append(int(logits[0, -1].argmax()))
        return np.array(text[len(ids) :], np.int64)

    return generate


def saved_bytes(model: Any) -> int:
    """Return the bytes of a file that a model was really written to."""
    with tempfile.TemporaryDirectory(prefix="tinytorch-") as folder:
        path = Path(folder) / "model"
        adapter_for(model).save(model, path)
        return path.stat().st_size


def bytes_below(place: Path) -> int:
    """Return the bytes of a file, or of all files in a folder that belong to an entry."""
    if place.is_file():
        return place.stat().st_size
    folder = place.resolve()
    return sum((folder / name).stat().st_size for name in files_below(folder))
