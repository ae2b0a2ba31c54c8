"""Checkpoints: the state of a model (and its optimizer) in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch import reading
from tinytorch.core.files import write_atomically
from tinytorch.core.kernels import Array
from tinytorch.core.module import Module
from tinytorch.core.optimizers import Optimizer
from tinytorch.errors import CheckpointError, first_line
from tinytorch.reading import shown

__all__ = ["load_checkpoint", "read_arrays", "read_gpt2", "save_checkpoint", "write_arrays"]


OPTIMIZER_PREFIX = "optimizer/"
KEY = "__tinytorch"
"""Marks the files of ``tinytorch.formats``, which hold more than plain arrays."""


def save_checkpoint(
    path: str | Path,
    model: Module,
    optimizer: Optimizer | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a model, and an optimizer if given, atomically. `metadata` must fit into JSON."""
    arrays = dict(model.state_dict())
    if optimizer is not None:
        state = optimizer.state_dict()
        arrays |= {OPTIMIZER_PREFIX + name: array for name, array in state.items()}
    write_arrays(path, arrays, metadata)


def load_checkpoint(
    path: str | Path, model: Module, optimizer: Optimizer | None = None
) -> dict[str, Any]:
    """Load a checkpoint into a model, and into an optimizer if given; returns the metadata.

    Everything is read and checked first: when something does not fit, nothing changes.
    """
    arrays, metadata = read_arrays(path)
    state = {k: v for k, v in arrays.items() if not k.startswith(OPTIMIZER_PREFIX)}
    moments = {
        name.removeprefix(OPTIMIZER_PREFIX): array
        for name, array in arrays.items()
        if name.startswith(OPTIMIZER_PREFIX)
    }
    if optimizer is not None and not moments:
        raise CheckpointError(f"{path} holds no optimizer state")
    before = {name: array.copy() for name, array in model.state_dict().items()}
    try:
        model.load_state_dict(state)
        if optimizer is not None:
            optimizer.load_state_dict(moments)
    except CheckpointError as error:
        model.load_state_dict(before)
        hint = "; it is a file of write_weights() or save_quantized()" if KEY in metadata else ""
        raise CheckpointError(f"{path}: {error}{hint}") from error
    return metadata


def write_arrays(
    path: str | Path, arrays: Mapping[str, Array], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write named arrays as safetensors, atomically."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    texts = {name: json.dumps(value) for name, value in (metadata or {}).items()}
    try:
        with write_atomically(Path(path)) as temporary:
            save_file(contiguous, temporary, metadata=texts)
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def read_arrays(path: str | Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read a safetensors file: arrays by name, and the metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        reading.read_header(path)
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            texts = file.metadata() or {}
        if strange := {str(each.dtype) for each in arrays.values() if each.dtype.isbuiltin != 1}:
            raise TypeError(", ".join(sorted(strange)))  # of a library that another one imported
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise CheckpointError(f"there is no checkpoint at {path}") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as safetensors (truncated, or another format?): {error}"
        ) from error
    except TypeError as error:  # bfloat16 and other formats of eight and sixteen bits
        raise CheckpointError(
            f"{path} holds numbers that NumPy does not have ({error}); save it as float32"
        ) from error
    return arrays, {name: _from_json(text) for name, text in texts.items()}


def _from_json(text: str) -> Any:
    try:
        return reading.parse_json(text)
    except ValueError:
        return text  # written by another tool


# ---------------------------------------------------------------- reading GPT-2 checkpoints in the
# layout that `transformers` writes

# Name in a transformers checkpoint -> our name, for the parts outside and inside of block i.
OUTER = {
    "wte.weight": "token_embedding.weight",
    "wpe.weight": "position_embedding.weight",
    "ln_f.weight": "norm.weight",
    "ln_f.bias": "norm.bias",
}
INNER = {
    "ln_1.weight": "norm1.weight",
    "ln_1.bias": "norm1.bias",
    "attn.c_proj.weight": "attention.out_proj.weight",
    "attn.c_proj.bias": "attention.out_proj.bias",
    "ln_2.weight": "norm2.weight",
    "ln_2.bias": "norm2.bias",
    "mlp.c_fc.weight": "mlp.layers.0.weight",
    "mlp.c_fc.bias": "mlp.layers.0.bias",
    "mlp.c_proj.weight": "mlp.layers.2.weight",
    "mlp.c_proj.bias": "mlp.layers.2.bias",
}
SPARE_NUMBERS, SPARE_BLOCKS = 10_000_000, 100
"""A model that is larger than its weights by more than this, and four times, is not built."""
SIZES = ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")
ACTIVATIONS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}

# Settings under which the model would compute something else than ours does.
REQUIRED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def read_gpt2(folder: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read `config.json` and the safetensors files beside it.

    Returns the settings of a `GPT` and the arrays for its `load_state_dict`.
    """
    config = _read_config(folder)
    settings = {
        "vocab_size": config["vocab_size"],
        "embed_dim": config["n_embd"],
        "num_layers": config["n_layer"],
        "num_heads": config["n_head"],
        "max_seq_len": config["n_positions"],
        "hidden_dim": config.get("n_inner") or 4 * config["n_embd"],
        "eps": config.get("layer_norm_epsilon", 1e-5),
        "approximate": ACTIVATIONS[config.get("activation_function", "gelu_new")],
    }
    arrays = _translate(read_shards(folder, lambda path: read_arrays(path)[0]))
    width, hidden = settings["embed_dim"], settings["hidden_dim"]
    tables = (settings["vocab_size"] + settings["max_seq_len"]) * width
    block = 4 * width * width + 2 * width * hidden
    check_described(folder, arrays, blocks=settings["num_layers"], tables=tables, block=block)
    return settings, arrays


def _read_config(folder: Path) -> dict[str, Any]:
    config, path = read_config(folder)
    if config.get("model_type") != "gpt2":
        raise CheckpointError(f"{path}: model_type is {config.get('model_type')!r}, needs 'gpt2'")
    activation = config.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"{path}: activation_function {activation!r} is not one of {known}")
    for name, wanted in REQUIRED.items():
        if config.get(name, wanted) != wanted:
            raise CheckpointError(f"{path}: {name}={config[name]} is not supported")
    check_sizes(config, SIZES, path)
    inner = config.get("n_inner")
    if inner is not None and (type(inner) is not int or inner < 0):
        raise CheckpointError(f"{path}: n_inner must be an integer or null, got {shown(inner)}")
    if type(config.get("layer_norm_epsilon", 0.0)) not in (int, float):
        raise CheckpointError(f"{path}: layer_norm_epsilon must be a number")
    return config


def _translate(theirs: dict[str, Array]) -> dict[str, Array]:
    """Rename the arrays, and cut the joint query-key-value projection into three."""
    ours: dict[str, Array] = {}
    for full_name, array in theirs.items():
        name = full_name.removeprefix("transformer.")
        if name == "lm_head.weight" or name.endswith((".attn.bias", ".attn.masked_bias")):
            continue  # tied to the token embedding; constant causal masks
        part, _, rest = name.removeprefix("h.").partition(".")
        if name.startswith("h.") and rest in INNER:
            ours[f"blocks.{part}.{INNER[rest]}"] = array
        elif name.startswith("h.") and rest.startswith("attn.c_attn."):
            kind = rest.rpartition(".")[2]
            if array.ndim == 0 or array.shape[-1] % 3:
                raise CheckpointError(
                    f"{full_name!r} joins query, key and value, so its width must be a multiple "
                    f"of 3, got shape {array.shape}"
                )
            for projection, piece in zip("qkv", np.split(array, 3, axis=-1), strict=True):
                ours[f"blocks.{part}.attention.{projection}_proj.{kind}"] = piece
        else:
            ours[OUTER.get(name, full_name)] = array  # an unknown name is reported by the model
    return ours


# ---------------------------------------------------------------- a folder as transformers writes
# it: config.json, and the weights in one file or in shards with an index


def read_config(folder: Path) -> tuple[dict[str, Any], Path]:
    """Return the settings in the config.json of a folder, and the path of that."""
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder; pass a local one with config.json and model.safetensors"
        )
    path = folder / "config.json"
    try:
        config: Any = reading.read_json(path, reading.SETTINGS)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds no settings but a {type(config).__name__}")
    return config, path


def check_sizes(config: Mapping[str, Any], names: Iterable[str], path: Path) -> None:
    """Raise unless each of these settings is a whole number above 0."""
    for name in names:
        if type(config.get(name)) is not int or config[name] < 1:
            raise CheckpointError(
                f"{path}: {name} must be an integer above 0, got {shown(config.get(name))}"
            )


def read_shards(folder: Path, read: Callable[[Path], dict[str, Array]]) -> dict[str, Array]:
    """Return the arrays of all weight files of a folder, each read by `read`."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        try:
            content = reading.read_json(index)
            names = sorted({_file_name(each) for each in content["weight_map"].values()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"{index} is not an index of weights: {first_line(error)}"
            ) from error
    arrays: dict[str, Array] = {}
    for name in names:
        arrays |= read(folder / name)
    return arrays


def _file_name(given: Any) -> str:
    """Return the name of a file beside the index; raise ValueError for any other place."""
    if not isinstance(given, str) or given in ("", ".", "..") or set(given) & set("/\\\0"):
        raise ValueError(f"{shown(given)} names no file of this folder")
    return given


def check_described(
    folder: Path, arrays: Mapping[str, Array], *, blocks: int, tables: int, block: int
) -> None:
    """Raise where the model of a config would be far larger than the weights for it.

    `tables` and `block` are the numbers in its embeddings and in each of its blocks.
    """
    wanted = tables + blocks * block
    held = sum(array.size for array in arrays.values())
    if wanted > SPARE_NUMBERS + 4 * held or blocks > SPARE_BLOCKS + len(arrays):
        raise CheckpointError(
            f"{folder}: config.json describes {blocks:.3g} blocks and {wanted:.3g} numbers, and "
            f"its weights are {held:.3g} in {len(arrays)} arrays"
        )
