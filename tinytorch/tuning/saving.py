"""Save the model that an optimization recommends, as weights and a recipe, without code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import MISSING, Field, dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tinytorch.comparison.outputs import compare_outputs
from tinytorch.core.files import write_atomically
from tinytorch.errors import CheckpointError, SettingError, TinyTorchError, first_line
from tinytorch.models.adapter import adapter_for
from tinytorch.models.workload import Workload, call_model, check_workload
from tinytorch.models.zoo import ZOO
from tinytorch.showing import saved_texts
from tinytorch.transforms.plan import Plan
from tinytorch.tuning.fresh_process import SAVED, ProcessMemory, measure_process_memory
from tinytorch.tuning.loading import (
    RECIPE_FILE,
    WEIGHTS_FILE,
    ZOO_NAME,
    Storage,
    filled_without_floats,
    hash_of,
    listed,
    load_optimized,
    storage_for,
)
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

# ---------------------------------------------------------------- keeping what an optimization
# recommends in a file, and making the model again from that

LOADER_FILE, README_FILE = "load.py", "README.md"
"""The weights hold the recipe, too, and it is used; this file is for readers."""
SUFFIX = ".safetensors"
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
    """A written file or folder: its bytes, the format of the weights, and notes.

    `process` is what processes take with it and with the baseline, where that was measured.
    """

    path: Path
    nbytes: int
    format: str
    notes: tuple[str, ...] = ()
    process: ProcessMemory | None = None


class CannotBeKeptError(CheckpointError):
    """A model in a stack that cannot be rebuilt from its file."""


# ---------------------------------------------------------------- saving


def save_result(
    optimization: Optimization,
    path: str | Path,
    *,
    workload: Workload | None = None,
    target: str = "",
) -> SavedModel:
    """Write the recommended model as :func:`save_optimized` does, and what processes take with it.

    They are started, and load and call the baseline and the saved model, unless that was done.
    """
    workload = workload or optimization.workload
    if workload is None:
        raise SettingError(
            "this result was read back and has no model; save(path, workload=...) with the one "
            "that was optimized"
        )
    optimization = replace(optimization, target=target or optimization.target)
    optimization = with_process_memory(optimization, workload)
    return save_optimized(optimization, path, workload=workload)


def with_process_memory(optimization: Optimization, workload: Workload) -> Optimization:
    """Return a result that knows what processes take with the baseline and with the saved model."""
    if optimization.process is not None or optimization.recommended is None:
        return optimization
    with TemporaryDirectory(prefix="tinytorch-") as folder:
        is_folder = _keeps_files(optimization.recommended.plans)
        path = Path(folder) if is_folder else Path(folder) / WEIGHTS_FILE
        try:
            save_optimized(optimization, path, workload=workload)
        except TinyTorchError as error:
            return replace(optimization, process=ProcessMemory(not_measured={SAVED: str(error)}))
        found = measure_process_memory(path, workload, target=optimization.target)
    return replace(optimization, process=found)


def save_optimized(
    optimization: Optimization, path: str | Path, *, workload: Workload
) -> SavedModel:
    """Write the recommended model, so that :func:`load_optimized` gives it back.

    `workload` is the one that was optimized. A path that ends in ``.safetensors`` becomes one file;
    any other a folder with the weights, the recipe, a program that loads them (``load.py``) and
    what was measured (``README.md``). Before anything
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
    if _keeps_files(plans):
        return _save_files(Path(path), optimization, workload, plans)
    is_coded = _is_worth_coding(optimization.settings.goal, workload, plans)
    storage = storage_for(workload, is_coded=is_coded)
    _check_same(storage, optimization.model, workload, plans)
    recipe = _recipe(
        optimization.name, best.stack, workload, plans, storage, target=optimization.target
    )
    saved = _save(Path(path), workload, recipe, storage, about=optimization)
    return replace(saved, process=optimization.process)


def write_stack(
    folder: Path,
    workload: Workload,
    *,
    name: str,
    stack: Sequence[str],
    plans: Sequence[Plan],
    goal: str = "",
) -> Path:
    """Write a stack as :func:`save_optimized` does, and return what `load_optimized` reads.

    Raises CheckpointError where that is impossible. No model is called to see whether a file gives
    the same outputs: whoever loads it checks it.
    """
    plans = tuple(rebuilt_plan(each) for each in plans)
    storage = storage_for(workload, is_coded=_is_worth_coding(goal, workload, plans))
    recipe = _recipe(name, tuple(stack), workload, plans, storage)
    if _keeps_files(plans):
        _write_files(folder, carry_out(workload, plans), recipe)
        return folder
    path = folder / WEIGHTS_FILE
    _save(path, workload, recipe, storage, is_called=False)
    return path


def bytes_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [each for each in path.iterdir() if each.is_file()]
    return sum(each.stat().st_size for each in files)


def _save(
    path: Path,
    workload: Workload,
    recipe: Recipe,
    storage: Storage,
    *,
    is_called: bool = True,
    about: Optimization | None = None,
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
        saved = replace(saved, notes=(*_notes(recipe, latest, reason), *saved.notes))
        if about is None or path.suffix == SUFFIX:
            return saved
        return _with_texts(saved, about, recipe, _shapes(workload))
    raise CheckpointError(f"{recipe.name} cannot be saved: {reason}")


def _keeps_files(plans: Sequence[Plan]) -> bool:
    return bool(plans) and TRANSFORMS[plans[-1].transform].keeps_files


def _save_files(
    path: Path, optimization: Optimization, workload: Workload, plans: tuple[Plan, ...]
) -> SavedModel:
    """Save a model as the files of its engine, with the recipe and what was measured."""
    assert optimization.recommended is not None
    if path.suffix == SUFFIX:
        raise SettingError(
            f"{optimization.recommended.name} is saved as files of its own: give a folder, "
            f"such as {path.with_suffix('')}"
        )
    storage = storage_for(workload)
    stack, target = optimization.recommended.stack, optimization.target
    recipe = _recipe(optimization.name, stack, workload, plans, storage, target=target)
    model = optimization.model
    made = carry_out(workload, plans) if model is None or model is workload.model else model
    try:
        recipe = _write_files(path, made, recipe)
        loaded = load_optimized(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    if not _gives_the_same(workload, made, loaded):
        raise CheckpointError(NOT_AS_WRITTEN)
    nbytes = bytes_of(path)
    kind = f"files of {plans[-1].transform}"
    saved = SavedModel(path, nbytes, kind, process=optimization.process)
    return _with_texts(saved, optimization, recipe, _shapes(workload))


def _write_files(path: Path, model: Any, recipe: Recipe) -> Recipe:
    """Write the files of an engine, then the recipe with their hash."""
    last = recipe.plans[-1]
    path.mkdir(parents=True, exist_ok=True)
    (path / WEIGHTS_FILE).unlink(missing_ok=True)  # of a result that was there before
    TRANSFORMS[last.transform](**last.settings).write_files(model, path)
    recipe = replace(recipe, weights_after=len(recipe.plans))
    with write_atomically(path / RECIPE_FILE) as file:
        file.write_text(recipe_text(recipe.to_dict()), "utf-8")
    return recipe


def _shapes(workload: Workload) -> tuple[str, ...]:
    """Return the shapes of the inputs, with the names of those that have some."""
    named = [*enumerate(workload.inputs), *workload.keywords.items()]
    return tuple(f"{name}: {tuple(x.shape)}" for name, x in named if hasattr(x, "shape"))


def _with_texts(
    saved: SavedModel, optimization: Optimization, recipe: Recipe, shapes: Sequence[str]
) -> SavedModel:
    """Write how to load what was saved, and what was measured of it."""
    readme = saved_texts().readme_text(optimization, recipe, shapes, saved.notes)
    loader = loader_text(optimization, recipe, saved.path)
    added = 0
    for name, text in ((LOADER_FILE, loader), (README_FILE, readme)):
        try:
            with write_atomically(saved.path / name) as file:
                file.write_text(text, "utf-8")
        except OSError as error:
            raise CheckpointError(f"{saved.path / name} cannot be written: {error}") from error
        added += len(text.encode())
    return replace(saved, nbytes=saved.nbytes + added)


def loader_text(optimization: Optimization, recipe: Recipe, folder: Path) -> str:
    """Return the program in a folder that loads what is saved there."""
    lines = [
        f'"""Load {_plain(recipe.name)}, optimized by {_plain(" + ".join(recipe.stack))}."""',
        "",
        "from pathlib import Path",
        "",
        "from tinytorch import load_optimized",
        "",
        "HERE = Path(__file__).parent",
        *_loader_target(optimization.target, recipe, folder),
        '    """Return the saved model, ready to be called; `target` builds its architecture."""',
        "    return load_optimized(HERE, target)",
    ]
    return "\n".join(lines) + "\n"


def _loader_target(target: str, recipe: Recipe, folder: Path) -> Iterator[str]:
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        file = Path(os.path.relpath(Path(place).resolve(), folder.resolve())).as_posix()
        yield f"TARGET = str(HERE / {_literal(file)}) + {_literal(f':{name}')}"
    elif _keeps_files(recipe.plans) or (recipe.architecture and not _needs_inputs(recipe)):
        yield "TARGET = None  # the weights file says how the model is built"
    elif target:
        yield f"TARGET = {_literal(target)}"
    else:
        yield from ("", "", "def load(target):")
        return
    yield from ("", "", "def load(target=TARGET):")


def _needs_inputs(recipe: Recipe) -> bool:
    return any(TRANSFORMS[each.transform].is_prepared for each in recipe.plans)


def _is_worth_coding(goal: str, workload: Workload, plans: Sequence[Plan]) -> bool:
    adapter = adapter_for(workload.model, workload.arguments)
    nbytes = adapter.held_bytes(workload.model)
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
    *,
    target: str = "",
) -> Recipe:
    adapter = adapter_for(workload.model, workload.arguments)
    framework = adapter.name
    return Recipe(
        name=name,
        framework=framework,
        device=workload.device,
        model=type(workload.model).__name__,
        stack=stack,
        plans=plans,
        weights_after=last_change(plans),
        weights_sha256="",
        tensors=storage.shapes(workload.model),
        versions={name: _version(name) for name in VERSIONS_OF[framework]},
        packages=packages_of(plans),
        architecture={ZOO_NAME: target} if target in ZOO else storage.architecture(workload.model),
    )


def _write(
    path: Path, workload: Workload, recipe: Recipe, storage: Storage, *, is_called: bool
) -> SavedModel:
    """Write one file or a folder; nothing is left where the model cannot be made from it."""
    model = carry_out(workload, recipe.plans[: recipe.weights_after])
    with _cannot_be_kept():
        recipe = replace(recipe, weights_sha256=hash_of(storage.digests(model)))
    is_file = path.suffix == SUFFIX
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
                made, notes = _check_rebuilt(temporary, workload, recipe, storage)
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
    return SavedModel(path, nbytes, storage.file_format, notes)


def _check_rebuilt(
    path: Path, workload: Workload, recipe: Recipe, storage: Storage
) -> tuple[Any, tuple[str, ...]]:
    """Return the model made of a file and other weights than those in it, and notes."""
    notes: list[str] = []
    made = filled_without_floats(path, lambda: workload, recipe, storage, notes.append)
    if made is None:
        other = replace(workload, model=storage.with_other_weights(workload.model))
        model = storage.rebuild(path, other, recipe)
        if hash_of(storage.digests(model)) != recipe.weights_sha256:
            raise CheckpointError(NOT_AS_WRITTEN)
        return model, tuple(notes)
    return made.model, ()


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
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'} carried out again when loading"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


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


def _plain(text: str) -> str:
    """Return a text in one line that ends no string of a program."""
    return _one_line(text).replace("\\", "/").replace('"', "'")


def _one_line(text: str) -> str:
    return " ".join(text.split())
