"""Tiny models of transformers, untrained, as workloads with calibration data."""

import torch
from parts import require_part
from torch_workloads import seeded, workload

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
VOCABULARY = 50


def llama(**changes):
    transformers = require_part("transformers")
    settings = SIZES | TOKENS | {"vocab_size": VOCABULARY, "intermediate_size": 48}
    config = transformers.LlamaConfig(**settings | {"num_key_value_heads": 2} | changes)
    return seeded(transformers.LlamaForCausalLM, config)


def gpt2(**changes):
    transformers = require_part("transformers")
    settings = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4}
    config = transformers.GPT2Config(**settings | TOKENS | {"n_positions": 32} | changes)
    return seeded(transformers.GPT2LMHeadModel, config)


def bert(**changes):
    transformers = require_part("transformers")
    settings = SIZES | {"vocab_size": VOCABULARY, "intermediate_size": 64}
    config = transformers.BertConfig(**settings | {"num_labels": 5, "pad_token_id": 1} | changes)
    return seeded(transformers.BertForSequenceClassification, config)


def vit(**changes):
    transformers = require_part("transformers")
    image = {"image_size": 16, "patch_size": 8, "num_labels": 5}
    config = transformers.ViTConfig(**SIZES | {"intermediate_size": 64} | image | changes)
    return seeded(transformers.ViTForImageClassification, config)


def resnet(**changes):
    transformers = require_part("transformers")
    settings = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 3], "num_labels": 5}
    config = transformers.ResNetConfig(**settings | changes)
    return seeded(transformers.ResNetForImageClassification, config)


WINDOWED = {"head_dim": 8, "sliding_window": 8, "tie_word_embeddings": False}
DECODERS = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 96},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 8}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {"num_key_value_heads": 1, "head_dim": 8}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", WINDOWED),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", WINDOWED),
    "opt": ("OPTForCausalLM", "OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"n_layer": 2, "n_head": 4}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {"num_local_experts": 3}),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["local"], 2]], "window_size": 8},
    ),
}
OTHER_NAMES = {  # what these models call by another name, or do not have
    "gpt2": (*SIZES, "intermediate_size", "max_position_embeddings"),
    "bloom": ("num_hidden_layers", "num_attention_heads"),
    "gpt_neo": ("num_hidden_layers", "num_attention_heads"),
}
HEADS = {"num_key_value_heads": 2}
WITHOUT_GROUPS = ("gpt2", "opt", "bloom", "gpt_neox", "gpt_neo")


def decoder(name, dtype=torch.float32, **changes):
    """Give a language model whose texts have no end, and are various: its weights are large."""
    transformers = require_part("transformers")
    model, config, own = DECODERS[name]
    settings = SIZES | TOKENS | {"vocab_size": VOCABULARY, "initializer_range": 0.3}
    settings |= {"num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 96}
    for other in OTHER_NAMES.get(name, ()):
        settings.pop(other)
    grouped = {} if name in WITHOUT_GROUPS else HEADS
    made = getattr(transformers, config)(**settings | grouped | own | changes)
    given = seeded(getattr(transformers, model), made).to(dtype).eval()
    given.generation_config.eos_token_id = None
    given.generation_config.pad_token_id = 0
    return given


def prompts(batch=3, length=7, seed=1):
    """Give token ids, and a mask that pads all but the first on the left."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCABULARY, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        mask[row, : min(2 * row, length - 1)] = 0
    return ids, mask


def generated(model, ids, mask=None, count=20, **settings):
    """Give what a model's own `generate` gives."""
    mask = torch.ones_like(ids) if mask is None else mask
    settings = {"do_sample": False} | settings
    return model.generate(ids, attention_mask=mask, max_new_tokens=count, **settings)


MODELS = {"llama": llama, "gpt2": gpt2, "bert": bert, "vit": vit, "resnet": resnet}


def tiny(name, dtype=torch.float32, **changes):
    """Give a workload: token ids for language models, images for the others."""
    model = MODELS[name](**changes)
    if name in ("vit", "resnet"):
        return workload(model, 2, 3, 16, 16, dtype=dtype)
    return workload(model, 2, 7, vocabulary=VOCABULARY, dtype=dtype)


def continued(model, ids, count=5):
    """Let a language model go on with a text, by its most likely tokens."""
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
    )


def continued_without_cache(model, ids, count=5):
    """Do the same by calling the model anew for each token, all but the end of the text allowed."""
    for _ in range(count):
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[:, -1].clone()
        logits[:, TOKENS["eos_token_id"]] = -torch.inf
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    return ids
