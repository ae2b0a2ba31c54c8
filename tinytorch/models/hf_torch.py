"""Workloads from a folder of a transformers model: class, weights, tokenizer, fitting inputs.

Imported only for such a target.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import transformers

from tinytorch import reading
from tinytorch.errors import TargetError, first_line
from tinytorch.models.hf_quality_torch import (
    LabelledText,
    Quality,
    quality_of,
    read_texts,
    texts_needed,
)
from tinytorch.models.pytorch_compile import without_noise
from tinytorch.models.targets import HF
from tinytorch.models.workload import Workload
from tinytorch.models.zoo import load_corpus, split_corpus

CONFIG = "config.json"
WEIGHTS = ("*.safetensors", "*.bin", "*.safetensors.index.json", "*.bin.index.json")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model")
EXAMPLES, TOKENS, CHARACTERS = 8, 128, 400
MOST_FLOPS = 2e10
"""About what a call on texts or images may take: some tenths of a second on two cores. Attempts are
made of many calls, so that larger models get fewer; how a gain depends on it, `--batch` shows."""
PATCHES = 196
"""Of an image, at 16 pixels each."""
SAMPLES, FRAMES, IMAGE = 16_000, 3_000, 224
"""A second of sound, the frames of Whisper's thirty seconds, and a side of ImageNet's crops."""


def load_hf(folder: str, data: str | Path | None = None) -> Workload:
    """Return the model in a folder with inputs made for it; nothing is fetched or executed.

    The class is the first of the configuration's `architectures`; a folder of sentence-transformers
    is its encoder with the pooling. Without weights they are random, and without a tokenizer the
    tokens are; the notes of the workload say so. With a tokenizer, texts are scored by the task of
    the model: those of `data`, a file of JSON lines with `text` and `label`, or of our novel.
    """
    place = Path(folder)
    target = f"{HF}{folder}"
    if not (place / CONFIG).is_file():
        raise TargetError(
            f"{target}: there is no {place / CONFIG}; pass the folder of a transformers model, as "
            "save_pretrained() writes it"
        )
    try:
        with without_noise(), _without_bars():
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            model, notes = _model(config, place)
            inputs, about_inputs = _inputs(model, place)
            model, about_pooling = _with_pooling(model, place)
            quality, calibration = _quality(model, place, inputs, data)
    except TargetError:
        raise
    except Exception as error:  # transformers raises whatever a file or a class of it makes it
        raise TargetError(f"{target}: {first_line(error)}") from error
    name = "/".join(place.resolve().parts[-2:])  # the last part is often a hash, or "model"
    notes = (*notes, *about_inputs, *about_pooling)
    if quality is None:
        return Workload(name, model, inputs, notes=notes)
    return Workload(
        name,
        model,
        inputs,
        calibration=calibration,
        evaluate=quality,
        metric=quality.metric,
        notes=notes,
    )


@contextmanager
def _without_bars() -> Iterator[None]:
    """Load without progress bars of another program between our lines."""
    logging: Any = transformers.utils.logging
    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_shown:
            logging.enable_progress_bar()


def _model(config: Any, place: Path) -> tuple[Any, tuple[str, ...]]:
    name = next(iter(config.architectures or ()), "")
    kind, other = getattr(transformers, name, None), cast("Any", transformers.AutoModel)
    if has_any(place, WEIGHTS):
        model = (kind or other).from_pretrained(place, local_files_only=True)
        return model.eval(), ()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = other.from_config(config) if kind is None else kind(config)
    return model.eval(), (f"random weights: there are none in {place}",)


def has_any(place: Path, patterns: tuple[str, ...]) -> bool:
    """Return whether a folder has a file of one of these names."""
    return any(True for pattern in patterns for _ in place.glob(pattern))


# ---------------------------------------------------------------- sentence embeddings

MODULES = "modules.json"
POOLINGS = {"cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens"}
OTHER_POOLINGS = (
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
    "pooling_mode_lasttoken",
)


class SentenceEncoder(torch.nn.Module):
    """An encoder with the pooling of sentence-transformers: one vector per text."""

    def __init__(self, encoder: Any, pooling: str, is_normalized: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling, self.is_normalized = pooling, is_normalized

    @property
    def config(self) -> Any:
        return self.encoder.config

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the embeddings (batch, width) of texts."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **types)
        vectors = output.last_hidden_state  # (batch, time, width)
        mask = attention_mask.unsqueeze(-1).to(vectors.dtype)
        if self.pooling == "cls":
            found = vectors[:, 0]
        elif self.pooling == "max":
            lowest = torch.finfo(vectors.dtype).min
            found = vectors.masked_fill(mask == 0, lowest).amax(1)
        else:
            found = (vectors * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(found, dim=-1) if self.is_normalized else found


def _with_pooling(model: Any, place: Path) -> tuple[Any, tuple[str, ...]]:
    """Return the model as sentence-transformers calls it, where the folder is one of its own."""
    if not (place / MODULES).is_file():
        return model, ()
    modules = _settings_in(place / MODULES)
    try:
        kinds = {each["type"].rpartition(".")[2]: str(each["path"]) for each in modules}
    except (TypeError, KeyError, AttributeError) as error:
        raise TargetError(f"{place / MODULES} is no list of modules: {error!r}") from error
    unknown = sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"})
    if unknown or "Pooling" not in kinds:
        return model, (f"only the encoder: {', '.join(unknown) or 'no pooling'} is not known here",)
    about = _settings_in(place / kinds["Pooling"] / CONFIG)
    if not isinstance(about, dict):
        raise TargetError(f"{place / kinds['Pooling'] / CONFIG} holds no settings")
    if any(about.get(name) for name in OTHER_POOLINGS):
        return model, ("only the encoder: its pooling is not known here",)
    pooling = next((kind for kind, name in POOLINGS.items() if about.get(name)), "mean")
    return SentenceEncoder(model, pooling, "Normalize" in kinds).eval(), ()


def _settings_in(path: Path) -> Any:
    try:
        return reading.read_json(path, reading.SETTINGS)
    except (OSError, ValueError) as error:
        raise TargetError(f"{path} cannot be read: {first_line(error)}") from error


# ---------------------------------------------------------------- quality by task

MOST_BATCHES = 40
"""Large models have few rows in a batch, and are judged by fewer texts."""
CALIBRATION, HELD_OUT = 4, 0.25
"""Batches of calibration data, and the share of the novel that models are judged by."""


def _quality(
    model: Any, place: Path, inputs: Mapping[str, Any], data: str | Path | None
) -> tuple[Quality | None, tuple[Mapping[str, Any], ...]]:
    """Return what scores the model, and calibration data; nothing where there is no tokenizer."""
    has_texts = "input_ids" in inputs and has_any(place, TOKENIZERS)
    if not has_texts or model.config.is_encoder_decoder:
        if data is not None:
            raise TargetError(
                f"{HF}{place}: {data} has texts, and this model has no tokenizer or is no encoder "
                "or causal language model"
            )
        return None, ()
    tokenizer = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True)
    rows, length = inputs["input_ids"].shape

    def encode(texts: list[str]) -> Mapping[str, Any]:
        found = encoded_texts(model, tokenizer, texts, length=length)
        return {name: found[name] for name in inputs}

    seen, held_out = split_corpus(load_corpus(), HELD_OUT)
    texts = (
        [
            LabelledText(each)
            for each in passages(held_out, min(texts_needed(model), MOST_BATCHES * rows))
        ]
        if data is None
        else read_texts(data)
    )
    # The example inputs are the first passages.
    later = passages(seen, EXAMPLES + CALIBRATION * rows)[EXAMPLES:]
    calibration = tuple(encode(later[at : at + rows]) for at in range(0, CALIBRATION * rows, rows))
    return quality_of(model, texts, encode, rows=rows), calibration


# ---------------------------------------------------------------- inputs that fit a model


def _inputs(model: Any, place: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    main = model.main_input_name
    notes: tuple[str, ...] = ()
    if main == "input_ids" and has_any(place, TOKENIZERS):
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True)
        count = fitting_examples(model, longest_text(model))
        made = encoded_texts(model, tokenizer, example_texts(count))
    elif main in MADE:
        made = MADE[main](model)
        notes = (f"random example inputs ({main})",)
    else:
        raise TargetError(
            f"{HF}{place}: no example inputs are known for {type(model).__name__}, which takes "
            f"{main!r}; write them into a file: tinytorch new yours.py --from {HF}{place}"
        )
    if model.config.is_encoder_decoder:
        made["decoder_input_ids"] = _decoder_start(model, len(made[main]))
    return made, notes


def fitting_examples(model: Any, positions: int) -> int:
    """Return how many texts or images are in an example input: 8, and fewer of a large model.

    Every parameter but those of embeddings is taken to be used at each of so many `positions`.
    """
    used = model.num_parameters(exclude_embeddings=True)
    return max(1, min(EXAMPLES, int(MOST_FLOPS / max(2 * used * positions, 1))))


def example_texts(count: int = EXAMPLES) -> list[str]:
    """Return passages of the novel that the package has."""
    return passages(load_corpus(), count)


def passages(text: str, count: int) -> list[str]:
    """Return the first passages of a text, all of one length, as many as there are."""
    text = " ".join(text.split())
    count = min(count, len(text) // CHARACTERS)
    return [text[start : start + CHARACTERS] for start in range(0, count * CHARACTERS, CHARACTERS)]


def encoded_texts(
    model: Any, tokenizer: Any, texts: list[str], *, length: int | None = None
) -> dict[str, Any]:
    """Return texts as the model takes them, in one batch, padded to a length or the longest."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    longest = length or longest_text(model)
    settings = {"truncation": True, "max_length": longest, "return_tensors": "pt"}
    encoded = tokenizer(texts, padding="max_length" if length else True, **settings)
    accepted = inspect.signature(model.forward).parameters
    return {name: value for name, value in encoded.items() if name in accepted}


def longest_text(model: Any) -> int:
    """Return how many tokens of a text an example input has at most."""
    return min(_positions(model), TOKENS)


def _positions(model: Any) -> int:
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    text = model.config.get_text_config()
    found = (getattr(text, name, None) for name in names)
    return next((each for each in found if isinstance(each, int) and each > 0), TOKENS)


def _tokens(model: Any) -> dict[str, Any]:
    length = min(_positions(model) // 2, TOKENS)
    size = (fitting_examples(model, length), length)
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.randint(0, vocabulary, size, generator=_seeded())
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _pixels(model: Any) -> dict[str, Any]:
    config = getattr(model.config, "vision_config", model.config)
    size = getattr(config, "image_size", None) or IMAGE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    count = fitting_examples(model, PATCHES)
    shape = (count, getattr(config, "num_channels", 3), height, width)
    return {"pixel_values": _normal(model, shape)}


def _features(model: Any) -> dict[str, Any]:
    frames = 2 * getattr(model.config, "max_source_positions", FRAMES // 2)
    return {"input_features": _normal(model, (1, model.config.num_mel_bins, frames))}


MADE: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "input_ids": _tokens,
    "pixel_values": _pixels,
    "input_values": lambda model: {"input_values": _normal(model, (2, SAMPLES))},
    "input_features": _features,
}
"""The name of a model's main input -> what makes some."""


def _decoder_start(model: Any, examples: int) -> Any:
    start = getattr(model.generation_config, "decoder_start_token_id", None)
    return torch.full((examples, 1), start or 0)


def _normal(model: Any, shape: tuple[int, ...]) -> Any:
    return torch.randn(shape, generator=_seeded()).to(model.dtype)


def _seeded() -> Any:
    return torch.Generator().manual_seed(0)
