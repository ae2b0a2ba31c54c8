"""Load a saved model: build the architecture, carry out the recipe, put the weights in.

A folder holds weights and a recipe, and no code. PyTorch models are built without numbers, so that
the float weights are never held; setup such as compilation happens after the weights are in."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tinytorch import reading
from tinytorch.core.checkpoints import KEY
from tinytorch.core.tensor import Parameter
from tinytorch.errors import CheckpointError, first_line
from tinytorch.formats.weights_file import describe_weights, read_weights, write_weights
from tinytorch.measure.memory import release_freed
from tinytorch.models.adapter import adapter_for, owner_of
from tinytorch.models.core import named_tensors
from tinytorch.models.targets import as_workload, load_workload
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import load_zoo
from tinytorch.transforms.compressed_file import compressed_state, load_compressed
from tinytorch.transforms.quantize.saving import load_quantized, save_quantized
from tinytorch.tuning.recipe import TRANSFORMS, Recipe, carry_out

WEIGHTS_FILE, RECIPE_FILE = "model.safetensors", "recipe.json"
ZOO_NAME = "zoo"
"""In the architecture of a recipe: the name of the built-in model that it is."""
Build = Callable[[], Workload]
"""Builds the architecture of a saved model, whatever its weights, with the known inputs."""


class Storage(Protocol):
    """Saving and loading models of one framework."""

    file_format: str

    def shapes(self, model: Any) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all tensors that a file holds of a model."""

    def digests(self, model: Any) -> dict[str, str]:
        """Return a hash of each tensor, by name."""

    def with_other_weights(self, model: Any) -> Any:
        """Return a copy with random parameters, as after building the architecture again."""

    def architecture(self, model: Any) -> dict[str, Any]:
        """Return what the model can be built from without code of the user's; {} where unknown."""

    def built(self, architecture: Mapping[str, Any]) -> Any:
        """Build the model that :meth:`architecture` describes."""

    def emptied(self, build: Build) -> Workload | None:
        """Build without weights in memory; None where the framework always has them."""

    def write(self, path: Path, model: Any, recipe: Recipe) -> None:
        """Write the weights and the recipe."""

    def rebuild(self, path: Path, workload: Workload, recipe: Recipe) -> Any:
        """Rebuild the model of a file up to the saved weights; its hash is not checked."""


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

    def architecture(self, model: Any) -> dict[str, Any]:
        """Return {}: models of TinyTorch are built by code."""
        return {}

    def built(self, architecture: Mapping[str, Any]) -> Any:
        """Raise: no file of TinyTorch's describes a model."""
        raise CheckpointError(f"it describes its model by {sorted(architecture)}; update TinyTorch")

    def emptied(self, build: Build) -> None:
        """Return None: arrays of NumPy hold numbers."""

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


# ---------------------------------------------------------------- loading

FLOATS_HELD = "the float weights are held while loading"
"""How a note begins about a model that cannot be built without numbers."""


def load_optimized(
    path: str | Path, target: Any = None, *, on_note: Callable[[str], None] = lambda note: None
) -> Any:
    """Load the model that :func:`save_optimized` wrote.

    `target` gives the architecture, whose weights do not matter: a function that builds the model
    (or a workload, or a model and its inputs), a target such as "file.py:factory", a workload, or a
    model, which is not changed. Nothing is needed where the file says how the model is built: those
    of transformers, and of the zoo. Inputs are needed where the model is compiled or captured, or
    fused by watching a call.

    Parameters of PyTorch models are built on the `meta` device and filled from the file. Where a
    model cannot be built so, it is built in the ordinary way, and `on_note` hears why.
    """
    place = Path(path)
    if place.is_dir() and not (place / WEIGHTS_FILE).exists() and (place / RECIPE_FILE).is_file():
        return load_files(place)
    weights = place / WEIGHTS_FILE if place.is_dir() else place
    if not weights.is_file():
        what = "no weights in" if place.is_dir() else "no saved model at"
        raise CheckpointError(f"there is {what} {path}; save_optimized() writes one")
    try:
        return _load(weights, target, on_note)
    except CheckpointError as error:
        text = str(error)
        raise CheckpointError(text if str(weights) in text else f"{weights}: {text}") from error


def _load(path: Path, target: Any, on_note: Callable[[str], None]) -> Any:
    recipe = Recipe.from_dict(_read_recipe(path))
    storage = storage_of(recipe.framework)
    build = _building(target, recipe, storage)
    workload = filled_without_floats(path, build, recipe, storage, on_note)
    if workload is None:
        workload = filled(path, build(), recipe, storage)
    model = carry_out(workload, recipe.plans[recipe.weights_after :], is_owned=True)
    release_freed()
    return model


def load_files(folder: Path) -> Any:
    """Load a model that its last transform has written as files of its own."""
    try:
        fields = reading.read_json(folder / RECIPE_FILE)
    except (CheckpointError, ValueError, OSError) as error:
        raise CheckpointError(f"{folder / RECIPE_FILE}: {error}") from error
    try:
        recipe = Recipe.from_dict(fields)
        last = recipe.plans[-1]
        transform = TRANSFORMS[last.transform](**last.settings)
        if not transform.keeps_files:
            raise CheckpointError(f"there are no weights in {folder}; save_optimized() writes them")
        return transform.read_files(folder)
    except (CheckpointError, ValueError, IndexError, OSError) as error:
        raise CheckpointError(f"{folder}: {error}") from error


def load_with_inputs(path: Path, target: str | None, arguments: tuple[Any, Any]) -> Any:
    """Load a saved model as :func:`load_optimized` does, with inputs to prepare it for.

    Those are for a model that needs no target, and so no workload that would have some.
    """
    if target is not None:
        return load_optimized(path, target)
    weights = path / WEIGHTS_FILE if path.is_dir() else path
    recipe = Recipe.from_dict(_read_recipe(weights))
    build = _building(None, recipe, storage_of(recipe.framework))
    inputs, keywords = arguments
    return load_optimized(path, lambda: replace(build(), inputs=inputs, keywords=keywords))


def filled_without_floats(
    path: Path,
    build: Build,
    recipe: Recipe,
    storage: Storage,
    on_note: Callable[[str], None],
) -> Workload | None:
    """Return the workload with the saved weights, which never had others; None if that fails."""
    try:
        with _without_copy_warnings():
            workload = storage.emptied(build)
        return None if workload is None else filled(path, workload, recipe, storage)
    except Exception as error:  # code of the model runs, on tensors without numbers
        on_note(f"{FLOATS_HELD}: {first_line(error, with_class=False)}")
        return None


@contextmanager
def _without_copy_warnings() -> Iterator[None]:
    """Ignore that the `load_state_dict` of a factory fills nothing: the saved file does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter", UserWarning)
        yield


def filled(path: Path, workload: Workload, recipe: Recipe, storage: Storage) -> Workload:
    """Return the workload with the saved weights in its model, and the plans before them."""
    framework = adapter_for(workload.model, workload.arguments).name
    if recipe.framework != framework:
        raise CheckpointError(
            f"it holds a model of {recipe.framework}, made from a {recipe.model}; a model of "
            f"{framework} was given"
        )
    recipe.check_fits(storage.shapes(workload.model), workload.model)
    model = storage.rebuild(path, workload, recipe)
    if hash_of(storage.digests(model)) != recipe.weights_sha256:
        raise CheckpointError(
            "its weights are not those that were saved: it is damaged, or another version of "
            f"{listed([f'{name} {of}' for name, of in recipe.versions.items()])} wrote it"
        )
    return replace(workload, model=model)


def _building(target: Any, recipe: Recipe, storage: Storage) -> Build:
    """Return what builds the architecture."""
    if target is None:
        if not recipe.architecture:
            raise CheckpointError(
                f"it does not say how a {recipe.model} is built; give a function that builds one: "
                "load_optimized(path, build), whose weights do not matter"
            )
        if ZOO_NAME in recipe.architecture:
            return lambda: load_zoo(recipe.architecture[ZOO_NAME])
        return lambda: _as_workload(storage.built(recipe.architecture))
    if isinstance(target, str):
        return lambda: load_workload(target)
    is_model = not isinstance(target, type) and hasattr(owner_of(target), "forward")
    if isinstance(target, Workload) or is_model or not callable(target):
        return lambda: _as_workload(target)
    return lambda: _as_workload(target())


def _as_workload(made: Any) -> Workload:
    if isinstance(made, Workload):
        return made
    if isinstance(made, tuple) and len(made) == 2:
        return as_workload("model", made)
    return Workload("model", made, ())


def _read_recipe(path: Path) -> Any:
    """Return the recipe of a file of either framework."""
    try:
        texts = reading.read_metadata(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"it cannot be read as safetensors (truncated, or another format?): {error}"
        ) from error
    if RECIPE not in texts:
        return recipe_in(path) if KEY in texts else None
    try:
        return reading.parse_json(texts[RECIPE])
    except ValueError as error:
        raise CheckpointError(f"its recipe is damaged: {error}") from error


# ---------------------------------------------------------------- both


def storage_for(workload: Workload, *, is_coded: bool = False) -> Storage:
    """Return the storage of the framework of a model."""
    framework = adapter_for(workload.model, workload.arguments).name
    return storage_of(framework, is_coded=is_coded)


def storage_of(framework: str, *, is_coded: bool = False) -> Storage:
    """Return the storage of a framework."""
    if framework == "pytorch":
        from tinytorch.tuning.saving_torch import TorchStorage

        return TorchStorage()
    return CoreStorage(is_coded=is_coded)


def hash_of(digests: Mapping[str, str]) -> str:
    """Return one hash of all."""
    lines = "\n".join(f"{name} {digest}" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def listed(names: Sequence[str]) -> str:
    """Return words in a row: a, b and c."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
