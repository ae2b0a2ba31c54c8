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
