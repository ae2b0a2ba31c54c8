"""Save the model that an optimization recommends, and load it again.

A file holds weights and a recipe, and no code: `load_optimized` takes the original's architecture,
applies the recipe and loads the weights. Setup such as compilation happens then."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import MISSING, Field, dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np

from tinytorch.comparison.outputs import compare_outputs
from tinytorch.core.checkpoints import KEY
from tinytorch.core.files import write_atomically
from tinytorch.core.tensor import Parameter
from tinytorch.errors import CheckpointError, SettingError, TinyTorchError, first_line
from tinytorch.formats.weights_file import describe_weights, read_weights, write_weights
from tinytorch.models.adapter import adapter_for
from tinytorch.models.core import named_tensors
from tinytorch.models.workload import Workload, call_model, check_workload
from tinytorch.models.zoo import ZOO
from tinytorch.transforms.compressed_file import compressed_state, load_compressed
from tinytorch.transforms.plan import Plan
from tinytorch.transforms.quantize.saving import load_quantized, save_quantized
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.recipe import (
    TRANSFORMS,
    Recipe,
    carry_out,
    last_change,
    packages_of,
    rebuilt_plan,
    recipe_text,
)

# ---------------------------------------------------------------- weights of TinyTorch models in a
# compressed weights file that also has the recipe

OWN, RECIPE = "own", "recipe"
SEED = 8


class CoreStorage:
    """Files of TinyTorch models. `is_coded`: in as few bits as they need, which takes longer."""

    def __init__(self, *, is_coded: bool = True) -> None:
        self.is_coded = is_coded
        self.file_format = "compressed weights file" if is_coded else "weights file"

    def shapes(self, model: Any) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all tensors that a file holds of a model."""
        return {name: tensor.shape for name, tensor in named_tensors(model).items()}

    def digests(self, model: Any) -> dict[str, str]:
        """Return a hash of each tensor, by name."""
        found = {}
        for name, tensor in named_tensors(model).items():
            array = tensor.data
            digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
            found[name] = digest.hexdigest()
        return found

    def with_other_weights(self, model: Any) -> Any:
        """Return a copy with random parameters, as after building the architecture again."""
        twin = adapter_for(model).clone(model)
        rng = np.random.default_rng(SEED)
        for tensor in named_tensors(twin).values():
            if tensor.data.dtype.kind == "f" and isinstance(tensor, Parameter):
                spread = float(np.std(tensor.data)) or 1.0
                numbers = rng.standard_normal(tensor.shape) * spread
                tensor.data = numbers.astype(tensor.data.dtype)
        return twin

    def write(self, path: Path, model: Any, recipe: Recipe) -> None:
        """Write the weights and the recipe."""
        metadata = {RECIPE: recipe.to_dict()}
        if not _is_quantized(recipe):
            contents = {OWN: metadata}
            write_weights(path, compressed_state(model), contents, compact=self.is_coded)
            return
        save_quantized(path, model, metadata)
        if self.is_coded:
            file = read_weights(path)
            write_weights(path, file.arrays, file.metadata, compact=True)

    def rebuild(self, path: Path, workload: Workload, recipe: Recipe) -> Any:
        """Rebuild the model of a file up to the saved weights; its hash is not checked."""
        plans = recipe.plans[: recipe.weights_after]
        if _is_quantized(recipe):
            return load_quantized(path, carry_out(workload, plans[:-1]))[0]
        return load_compressed(path, carry_out(workload, plans))[0]


def recipe_in(path: Path) -> Any:
    """Return the recipe of a weights file, or None if it has none."""
    own = describe_weights(path).metadata.get(OWN)
    return own.get(RECIPE) if isinstance(own, Mapping) else None


def _is_quantized(recipe: Recipe) -> bool:
    """Return whether the file holds quantized weights under the names of the float model."""
    plans = recipe.plans[: recipe.weights_after]
    return bool(plans) and TRANSFORMS[plans[-1].transform].holds_integers


# ---------------------------------------------------------------- keeping what an optimization
# recommends in a file, and making the model again from that

WEIGHTS_FILE, RECIPE_FILE = "model.safetensors", "recipe.json"
"""The files of a folder. Both hold the recipe; the one in the weights is used."""
VERSIONS_OF = {"core": ("tinytorch-perf", "numpy"), "pytorch": ("tinytorch-perf", "torch")}
ROUNDING = 1e-5
"""Relative tolerance of outputs of the same weights: only the order of summation may differ."""
CODED_BELOW_BYTES = 2**20
"""Coding weights close to their entropy takes about a second per megabyte, each way. Larger ones
are coded only where that was the goal, or where a stack made zeros and repeated values."""
NOT_AS_WRITTEN = "what is read back is not what was written"
OTHER_MODEL = (
    "the workload's model, with the recommended stack carried out, does not hold what the "
    "recommended model holds; give the workload that was optimized, with the weights that it had"
)


@dataclass(frozen=True)
class SavedModel:
    """A written file or folder: its bytes, the format of the weights, and notes."""

    path: Path
    nbytes: int
    format: str
    notes: tuple[str, ...] = ()


class Storage(Protocol):
    """Saving and loading models of one framework."""

    file_format: str

    def shapes(self, model: Any) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all tensors that a file holds of a model."""

    def digests(self, model: Any) -> dict[str, str]:
        """Return a hash of each tensor, by name."""

    def with_other_weights(self, model: Any) -> Any:
        """Return a copy with random parameters, as after building the architecture again."""

    def write(self, path: Path, model: Any, recipe: Recipe) -> None:
        """Write the weights and the recipe."""

    def rebuild(self, path: Path, workload: Workload, recipe: Recipe) -> Any:
        """Rebuild the model of a file up to the saved weights; its hash is not checked."""


class CannotBeKeptError(CheckpointError):
    """A model in a stack that cannot be rebuilt from its file."""


# ---------------------------------------------------------------- saving


def save_optimized(
    optimization: Optimization, path: str | Path, *, workload: Workload
) -> SavedModel:
    """Write the recommended model, so that :func:`load_optimized` gives it back.

    `workload` is the one that was optimized. A path that ends in ``.safetensors`` becomes one file;
    any other a folder with the weights and the recipe, which is readable then. Before anything
    takes its place, the file is loaded into a copy of the model that has other weights, and what
    comes out must be equal bit for bit. Where the end of a stack cannot be kept so, the weights
    before it are, and `notes` says so.
    """
    best = optimization.recommended
    if best is None:
        raise SettingError(
            f"nothing that was tried on {optimization.name} is recommended, so there is nothing to "
            "save; the baseline stays the best"
        )
    check_workload(workload, "what is saved")
    plans = tuple(rebuilt_plan(each) for each in best.plans)
    is_coded = _is_worth_coding(optimization.settings.goal, workload, plans)
    storage = _storage_for(workload, is_coded=is_coded)
    _check_same(storage, optimization.model, workload, plans)
    recipe = _recipe(optimization.name, best.stack, workload, plans, storage)
    return _save(Path(path), workload, recipe, storage)


def reloaded(workload: Workload, *, name: str, stack: Sequence[str], plans: Sequence[Plan]) -> Any:
    """Return the model of a stack after saving and loading it.

    Raises CheckpointError where that is impossible. Unlike :func:`save_optimized` it calls no
    model to see whether a file gives the same outputs: whoever asks for the model checks it.
    """
    storage = _storage_for(workload)
    recipe = _recipe(
        name, tuple(stack), workload, tuple(rebuilt_plan(each) for each in plans), storage
    )
    with TemporaryDirectory(prefix="tinytorch-") as folder:
        path = Path(folder) / WEIGHTS_FILE
        _save(path, workload, recipe, storage, is_called=False)
        return load_optimized(path, workload)


def _save(
    path: Path, workload: Workload, recipe: Recipe, storage: Storage, *, is_called: bool = True
) -> SavedModel:
    """Write weights as late in a stack as they can be kept."""
    latest, reason = recipe.weights_after, ""
    for count in range(latest, -1, -1):
        recipe = replace(recipe, weights_after=count)
        try:
            saved = _write(path, workload, recipe, storage, is_called=is_called)
        except CannotBeKeptError as error:
            reason = reason or str(error)
            continue
        return replace(saved, notes=tuple(_notes(recipe, latest, reason)))
    raise CheckpointError(f"{recipe.name} cannot be saved: {reason}")


def _is_worth_coding(goal: str, workload: Workload, plans: Sequence[Plan]) -> bool:
    adapter = adapter_for(workload.model, workload.arguments)
    nbytes = sum(each.nbytes for each in adapter.parameters(workload.model))
    makes_repeats = any(TRANSFORMS[each.transform].makes_repeats for each in plans)
    return goal == "size" or makes_repeats or nbytes < CODED_BELOW_BYTES


def _check_same(storage: Storage, model: Any, workload: Workload, plans: Sequence[Plan]) -> None:
    """Raise SettingError unless the plans lead to a model with the same tensors."""
    if model is None:
        return
    unprepared = [each for each in plans if not TRANSFORMS[each.transform].is_prepared]
    built = carry_out(workload, unprepared)
    try:
        ours, theirs = (sorted(storage.digests(each).values()) for each in (built, model))
        is_same = ours == theirs
    except CheckpointError:  # packed weights cannot be read
        is_same = _gives_the_same(workload, model, built)
    if not is_same:
        raise SettingError(OTHER_MODEL)


def _gives_the_same(workload: Workload, expected: Any, model: Any) -> bool:
    """Return whether outputs are equal up to rounding; True if the models cannot be called."""
    try:
        outputs = [_outputs(replace(workload, model=each)) for each in (expected, model)]
    except Exception:  # a model may raise anything, for example without inputs
        return True
    difference = compare_outputs(*outputs)
    is_close = (difference.max_relative_error or 0.0) <= ROUNDING
    return not difference.broken and is_close and difference.equal_share in (None, 1.0)


def _outputs(workload: Workload) -> tuple[Any, ...]:
    adapter = adapter_for(workload.model, workload.arguments)
    inputs = adapter.copy_inputs(workload.inputs)
    named = adapter.copy_inputs(tuple(workload.keywords.values()))
    keywords = dict(zip(workload.keywords, named, strict=True))
    with adapter.preserving(workload.model), adapter.without_gradients():
        return adapter.arrays(call_model(workload.model, *inputs, **keywords))


def _recipe(
    name: str,
    stack: tuple[str, ...],
    workload: Workload,
    plans: tuple[Plan, ...],
    storage: Storage,
) -> Recipe:
    adapter = adapter_for(workload.model, workload.arguments)
    framework = adapter.name
    return Recipe(
        name=name,
        framework=framework,
        device=adapter.device(workload.model, workload.arguments),
        model=type(workload.model).__name__,
        stack=stack,
        plans=plans,
        weights_after=last_change(plans),
        weights_sha256="",
        tensors=storage.shapes(workload.model),
        versions={name: _version(name) for name in VERSIONS_OF[framework]},
        packages=packages_of(plans),
    )


def _write(
    path: Path, workload: Workload, recipe: Recipe, storage: Storage, *, is_called: bool
) -> SavedModel:
    """Write one file or a folder; nothing is left where the model cannot be made from it."""
    model = carry_out(workload, recipe.plans[: recipe.weights_after])
    with _cannot_be_kept():
        recipe = replace(recipe, weights_sha256=_hash(storage.digests(model)))
    is_file = path.suffix == ".safetensors"
    weights = path if is_file else path / WEIGHTS_FILE
    is_new = not is_file and not path.exists()
    try:
        with ExitStack() as both:
            if not is_file:
                beside = both.enter_context(write_atomically(path / RECIPE_FILE))
                beside.write_text(recipe_text(recipe.to_dict()), "utf-8")
            temporary = both.enter_context(write_atomically(weights))
            with _cannot_be_kept():
                storage.write(temporary, model, recipe)
                made = _check_rebuilt(temporary, workload, recipe, storage)
                if is_called and not _gives_the_same(workload, model, made):
                    raise CheckpointError(NOT_AS_WRITTEN)
    except BaseException as error:
        if is_new:
            _remove_if_empty(path)
        if isinstance(error, OSError):
            raise CheckpointError(f"{path} cannot be written: {error}") from error
        raise
    written = [weights] if is_file else [weights, path / RECIPE_FILE]
    nbytes = sum(each.stat().st_size for each in written)
    return SavedModel(path, nbytes, storage.file_format)


def _check_rebuilt(path: Path, workload: Workload, recipe: Recipe, storage: Storage) -> Any:
    other = replace(workload, model=storage.with_other_weights(workload.model))
    made = storage.rebuild(path, other, recipe)
    if _hash(storage.digests(made)) != recipe.weights_sha256:
        raise CheckpointError(NOT_AS_WRITTEN)
    return made


@contextmanager
def _cannot_be_kept() -> Iterator[None]:
    """Turn errors of the model, but not of the disk, into CannotBeKeptError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        disk = error.__cause__
        if isinstance(disk, OSError):
            raise disk from error
        reason = str(error) if isinstance(error, TinyTorchError) else first_line(error)
        raise CannotBeKeptError(reason) from error


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # it was never created, or is not empty
        folder.rmdir()


def _notes(recipe: Recipe, latest: int, reason: str) -> Iterator[str]:
    count = recipe.weights_after
    names = [each.transform for each in recipe.plans]
    if count < latest:
        where = f"before {names[count]}" if count else "of the original"
        yield (
            f"the file holds the weights {where}; {_done_again(names[count:latest])}, because "
            f"what comes of it cannot be kept: {reason}"
        )
    if names[latest:]:
        yield _done_again(names[latest:])
    if any(TRANSFORMS[name].is_prepared for name in names):
        yield "load_optimized() needs a workload, with the inputs to prepare the model for"


def _done_again(names: Sequence[str]) -> str:
    return f"{_listed(names)} {'is' if len(names) == 1 else 'are'} carried out again when loading"


# ---------------------------------------------------------------- loading


def load_optimized(path: str | Path, workload_or_model: Any) -> Any:
    """Load the model that :func:`save_optimized` wrote, into the original's architecture.

    The weights of what is given do not matter, and it is not changed. A workload is needed where
    the model is compiled or captured, or fused by watching a call: for its inputs.
    """
    given = workload_or_model
    workload = given if isinstance(given, Workload) else Workload("model", given, ())
    place = Path(path)
    weights = place / WEIGHTS_FILE if place.is_dir() else place
    if not weights.is_file():
        what = "no weights in" if place.is_dir() else "no saved model at"
        raise CheckpointError(f"there is {what} {path}; save_optimized() writes one")
    try:
        return _load(weights, workload)
    except CheckpointError as error:
        text = str(error)
        raise CheckpointError(text if str(weights) in text else f"{weights}: {text}") from error


def _load(path: Path, workload: Workload) -> Any:
    storage = _storage_for(workload)
    framework = adapter_for(workload.model, workload.arguments).name
    recipe = Recipe.from_dict(_read_recipe(path))
    if recipe.framework != framework:
        raise CheckpointError(
            f"it holds a model of {recipe.framework}, made from a {recipe.model}; a model of "
            f"{framework} was given"
        )
    recipe.check_fits(storage.shapes(workload.model), workload.model)
    model = storage.rebuild(path, workload, recipe)
    if _hash(storage.digests(model)) != recipe.weights_sha256:
        raise CheckpointError(
            "its weights are not those that were saved: it is damaged, or another version of "
            f"{_listed([f'{name} {of}' for name, of in recipe.versions.items()])} wrote it"
        )
    return carry_out(replace(workload, model=model), recipe.plans[recipe.weights_after :])


def _read_recipe(path: Path) -> Any:
    """Return the recipe of a file of either framework."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            texts = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"it cannot be read as safetensors (truncated, or another format?): {error}"
        ) from error
    if RECIPE not in texts:
        return recipe_in(path) if KEY in texts else None
    try:
        return json.loads(texts[RECIPE])
    except ValueError as error:
        raise CheckpointError(f"its recipe is damaged: {error}") from error


# ---------------------------------------------------------------- both


def _storage_for(workload: Workload, *, is_coded: bool = False) -> Storage:
    if adapter_for(workload.model, workload.arguments).name == "pytorch":
        from tinytorch.tuning.saving_torch import TorchStorage

        return TorchStorage()
    return CoreStorage(is_coded=is_coded)


def _hash(digests: dict[str, str]) -> str:
    lines = "\n".join(f"{name} {digest}" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


# ---------------------------------------------------------------- a short program that does again
# what an optimization recommends

MOST_SECONDS = 10.0
"""Time budget of the comparison in the program, at most that of the optimization."""
USUAL_MARGIN, USUAL_SEED = 0.01, 0
"""The defaults of compare()."""
OWN_TARGET = "file.py:factory"
WIDEST = 100


def snippet(optimization: Optimization, *, target: str = "", saved: str = "") -> str:
    """Return a Python program that applies the recommended stack and compares it again.

    `target` is what the workload is loaded from, unless the optimization knows; a built-in one is
    known by its name, and without one the program says where to put one's own. `saved` is where the
    model was saved.
    """
    best = optimization.recommended
    if best is None:
        raise SettingError(
            f"nothing that was tried on {optimization.name} is recommended, so there is nothing to "
            "do again"
        )
    plans = [rebuilt_plan(each) for each in best.plans]
    target = target or optimization.target or _built_in(optimization.name)
    lines = [
        f"# {_one_line(optimization.name)}: {_one_line(best.name)}",
        *_imports(plans),
        "",
        *_loading(target),
        *(["workload.model.eval()"] if optimization.was_training else []),
        "model = workload.model",
        *_transforms(plans),
        "    current = replace(workload, model=model)",
        "    model = transform.apply(current, transform.plan(current))",
        *(_loading_saved(saved) if saved else ()),
        "",
        f"print(compare(workload, replace(workload, model=model){_settings(optimization)}))",
    ]
    return "\n".join(lines) + "\n"


def _built_in(name: str) -> str:
    return name if name in ZOO else ""


def _imports(plans: Sequence[Plan]) -> Iterator[str]:
    yield "from dataclasses import replace"
    yield ""
    yield "from rich import print"
    yield ""
    yield "from tinytorch import compare, load_workload"
    names: dict[str, set[str]] = {}
    for plan in plans:
        module = TRANSFORMS[plan.transform].__module__
        names.setdefault(module, set()).add(plan.transform)
    for package in sorted(names):
        yield f"from {package} import {', '.join(sorted(names[package], key=str.lower))}"


def _loading(target: str) -> Iterator[str]:
    if not target:
        yield "# Put your own here: factory() gives a Workload, or a model and its inputs."
    yield f"workload = load_workload({_literal(target or OWN_TARGET)})"


def _loading_saved(saved: str) -> Iterator[str]:
    yield ""
    yield "# The same model from where it was saved:"
    yield "# from tinytorch import load_optimized"
    yield f"# model = load_optimized({_literal(saved)}, workload)"


def _transforms(plans: Sequence[Plan]) -> Iterator[str]:
    calls = [_call(plan) for plan in plans]
    line = f"for transform in [{', '.join(calls)}]:"
    if len(line) <= WIDEST:
        yield line
        return
    yield "for transform in ["
    yield from (f"    {call}," for call in calls)
    yield "]:"


def _call(plan: Plan) -> str:
    """Write a transform with the settings that are not its usual ones."""
    own = [
        f"{each.name}={_literal(plan.settings[each.name])}"
        for each in fields(TRANSFORMS[plan.transform])
        if plan.settings[each.name] != _usual(each)
    ]
    return f"{plan.transform}({', '.join(own)})"


def _usual(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _settings(optimization: Optimization) -> str:
    settings = optimization.settings
    given: dict[str, float] = {"budget_s": min(MOST_SECONDS, settings.budget_s)}
    if settings.max_accuracy_drop != USUAL_MARGIN:
        given["margin"] = settings.max_accuracy_drop
    if settings.seed != USUAL_SEED:
        given["seed"] = settings.seed
    return "".join(f", {name}={value!r}" for name, value in given.items())


def _literal(value: Any) -> str:
    """Write a value as Python has it, texts in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        inner = ", ".join(map(_literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())
