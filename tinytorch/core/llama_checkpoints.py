"""Reading Llama and Qwen checkpoints in the layout that `transformers` writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinytorch import reading
from tinytorch.core.checkpoints import check_described, check_sizes, read_config, read_shards
from tinytorch.core.kernels import Array
from tinytorch.errors import CheckpointError

__all__ = ["read_llama"]

OUTER = {
    "embed_tokens.weight": "token_embedding.weight",
    "norm.weight": "norm.weight",
    "lm_head.weight": "head.weight",
}
INNER = {
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "self_attn.q_proj": "attention.q_proj",
    "self_attn.k_proj": "attention.k_proj",
    "self_attn.v_proj": "attention.v_proj",
    "self_attn.o_proj": "attention.out_proj",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
    "mlp.gate_proj": "mlp.gate_proj",
    "mlp.up_proj": "mlp.up_proj",
    "mlp.down_proj": "mlp.down_proj",
}
"""Name in a checkpoint -> our name, outside and inside of block i."""

BIASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"bias": True, "out_bias": False},
    "qwen3": {"qk_norm": True},
}
"""Kinds of models that can be read, and what their configuration does not say."""

SIZES = {
    "vocab_size": "vocab_size",
    "embed_dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_seq_len": "max_position_embeddings",
    "hidden_dim": "intermediate_size",
}

KINDS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""Formats of numbers that weights may have; NumPy has no bfloat16, so its bits are read."""


def read_llama(folder: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read `config.json` and the safetensors files beside it.

    Returns the settings of a `Llama` and the arrays, in float32, for its `load_state_dict`.
    """
    config, path = _read_config(folder)
    settings = _settings(config, path)
    arrays = _translate(read_shards(folder, _read_floats), tied=settings["tied"])
    width, heads = settings["embed_dim"], settings["num_heads"]
    depth = settings["head_dim"] or width // heads
    attention = 2 * (heads + settings["num_kv_heads"]) * depth
    check_described(
        folder,
        arrays,
        blocks=settings["num_layers"],
        tables=settings["vocab_size"] * width,
        block=width * (attention + 3 * settings["hidden_dim"]),
    )
    return settings, arrays


def _read_config(folder: Path) -> tuple[dict[str, Any], Path]:
    config, path = read_config(folder)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in BIASES:
        raise CheckpointError(f"{path}: model_type is {kind!r}, needs one of {', '.join(BIASES)}")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise CheckpointError(f"{path}: hidden_act={config['hidden_act']!r} is not supported")
    layers = config.get("layer_types") or []
    full = isinstance(layers, list) and all(each == "full_attention" for each in layers)
    if config.get("use_sliding_window") or not full:
        raise CheckpointError(f"{path}: sliding windows are not supported")
    check_sizes(config, SIZES.values(), path)
    return config, path


def _settings(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: rope_scaling must be an object, got {reading.shown(found)}")
    scaling = dict(found)
    scaling.setdefault("rope_type", scaling.pop("type", "default"))
    theta = scaling.pop("rope_theta", config.get("rope_theta", 10000.0))
    bias = bool(config.get("attention_bias", False))
    wanted: dict[str, Any] = {
        "num_kv_heads": config.get("num_key_value_heads") or config["num_attention_heads"],
        "head_dim": config.get("head_dim"),
        "eps": config.get("rms_norm_eps", 1e-6),
        "theta": theta,
    }
    for name, value in wanted.items():
        kinds = (int, float) if name in ("eps", "theta") else (int,)
        if name == "head_dim" and value is None:
            continue
        if type(value) not in kinds or not 0 < value < math.inf:
            raise CheckpointError(
                f"{path}: {name} must be a number above 0, got {reading.shown(value)}"
            )
    return {
        **{ours: config[theirs] for ours, theirs in SIZES.items()},
        **wanted,
        "scaling": scaling,
        "tied": bool(config.get("tie_word_embeddings", False)),
        "bias": bias,
        "mlp_bias": bool(config.get("mlp_bias", False)),
        **BIASES[config["model_type"]],
    }


def _read_floats(path: Path) -> dict[str, Array]:
    """Read a safetensors file in float32; most checkpoints of this kind hold bfloat16."""
    from safetensors import SafetensorError, deserialize

    try:
        entries: Any = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint at {path}") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be read as safetensors (truncated, or another format?): {error}"
        ) from error
    return {name: _as_float32(entry, f"{path}: {name!r}") for name, entry in entries}


def _as_float32(entry: Mapping[str, Any], what: str) -> Array:
    kind = entry["dtype"]
    if kind not in KINDS:
        raise CheckpointError(f"{what} holds {kind}; needs one of {', '.join(KINDS)}")
    numbers = np.frombuffer(entry["data"], KINDS[kind]).reshape(entry["shape"])
    if kind == "BF16":  # the upper half of a float32
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


def _translate(theirs: Mapping[str, Array], *, tied: bool) -> dict[str, Array]:
    """Rename the arrays; their matrices are (outputs, inputs), ours (inputs, outputs)."""
    ours: dict[str, Array] = {}
    for full_name, array in theirs.items():
        name = full_name.removeprefix("model.")
        if name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight"):
            continue  # follows from the settings; the token embedding
        number, _, rest = name.removeprefix("layers.").partition(".")
        part, _, kind = rest.rpartition(".")
        if name.startswith("layers.") and part in INNER:
            ours[f"blocks.{number}.{INNER[part]}.{kind}"] = array.T
        elif name == "lm_head.weight":
            ours[OUTER[name]] = array.T
        else:
            ours[OUTER.get(name, full_name)] = array  # an unknown name is reported by the model
    return ours
