"""Checkpoints: the state of a model (and its optimizer) in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch.core.files import write_atomically
from tinytorch.core.kernels import Array
from tinytorch.core.module import Module
from tinytorch.core.optimizers import Optimizer
from tinytorch.errors import CheckpointError

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

    if not Path(path).is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            texts = file.metadata() or {}
    except (SafetensorError, OSError) as error:
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
        return json.loads(text)
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
    return settings, _translate(_read_shards(folder))


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder; pass a local one with config.json and model.safetensors"
        )
    path = folder / "config.json"
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds no settings but a {type(config).__name__}")
    if config.get("model_type") != "gpt2":
        raise CheckpointError(f"{path}: model_type is {config.get('model_type')!r}, needs 'gpt2'")
    activation = config.get("activation_function", "gelu_new")
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"{path}: activation_function {activation!r} is not one of {known}")
    for name, wanted in REQUIRED.items():
        if config.get(name, wanted) != wanted:
            raise CheckpointError(f"{path}: {name}={config[name]} is not supported")
    for name in SIZES:
        if not isinstance(config.get(name), int):
            raise CheckpointError(f"{path}: {name} must be an integer, got {config.get(name)!r}")
    return dict(config)


def _read_shards(folder: Path) -> dict[str, Array]:
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        try:
            content = json.loads(index.read_text(encoding="utf-8"))
            names = sorted(set(content["weight_map"].values()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{index} is not an index of weights: {error!r}") from error
    arrays: dict[str, Array] = {}
    for name in names:
        arrays |= read_arrays(folder / name)[0]
    return arrays


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
