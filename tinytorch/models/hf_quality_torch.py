"""How good the outputs of a transformers model are, by its task: a score for each held-out text.

Perplexity for causal language models, accuracy where texts have labels, else agreement with the
baseline: of the chosen classes, or of the directions of embeddings. Imported only for such targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tinytorch import reading
from tinytorch.errors import TargetError
from tinytorch.models.pytorch import tensors_in
from tinytorch.models.workload import Scores

LIKELIHOOD, ACCURACY = "log-likelihood per token", "accuracy"
AGREEMENT, SIMILARITY = "agreement with the baseline", "cosine similarity to the baseline"
TEXTS, TEXTS_OF_CLASSES = 64, 320
"""Agreement on classes is 0 or 1 per text: no difference in 300 texts bounds it by 1%."""


@dataclass(frozen=True)
class LabelledText:
    """A text of a user's file; the label may be missing."""

    text: str
    label: Any = None


def read_texts(path: str | Path) -> list[LabelledText]:
    """Return the rows of a file with one JSON object a line, with `text` and perhaps `label`."""
    found = []
    try:
        lines = reading.read_text(path).split("\n")  # other ends of lines may stand in texts
    except (OSError, ValueError) as error:
        raise TargetError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = reading.parse_json(line)
        except ValueError as error:
            raise TargetError(f"{path}:{number} is no JSON: {error}") from error
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise TargetError(f'{path}:{number} needs a text: {{"text": "...", "label": ...}}')
        found.append(LabelledText(row["text"], row.get("label")))
    if not found:
        raise TargetError(f"{path} has no texts")
    return found


@dataclass(frozen=True)
class Quality:
    """Scores the outputs of a model on encoded texts, the baseline's being known where needed.

    Calling it gives one score per text. All batches have the size of the example inputs, which is
    what engines and captured graphs take; rows that fill up the last one are left out.
    """

    metric: str
    baseline: Any = field(repr=False)
    batches: tuple[Mapping[str, Any], ...] = field(repr=False)
    count: int
    labels: tuple[int, ...] = ()
    _known: list[Any] = field(default_factory=list, repr=False)

    def __call__(self, model: Any) -> Scores:
        outputs = [self._output(model, batch) for batch in self.batches]
        if model is self.baseline and not self._known:
            self._known.extend(outputs)
        scores = SCORERS[self.metric](self, outputs)
        return np.concatenate(scores).astype(np.float64)[: self.count]

    def _output(self, model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
        device = next((each.device for each in self.baseline.parameters()), torch.device("cpu"))
        with torch.no_grad():
            output = model(**{name: value.to(device) for name, value in batch.items()})
        logits = getattr(output, "logits", None)
        found = logits if logits is not None else tensors_in(output)[0]
        return found.detach().float().cpu()

    def expected(self) -> list[torch.Tensor]:
        """Return the outputs of the baseline, which are computed once."""
        if not self._known:
            self._known.extend(self._output(self.baseline, batch) for batch in self.batches)
        return self._known


def quality_of(
    model: Any,
    texts: Sequence[LabelledText],
    encode: Callable[[list[str]], Mapping[str, Any]],
    *,
    rows: int,
) -> Quality:
    """Return what scores a model of this class; `encode` gives inputs of the example's size.

    Raise TargetError for labels that the model does not know.
    """
    is_causal = type(model).__name__ in set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    labels = () if is_causal else _labels(model, texts)
    padded = [each.text for each in texts]
    padded += [padded[-1]] * (-len(padded) % rows)
    batches = tuple(encode(padded[at : at + rows]) for at in range(0, len(padded), rows))
    if is_causal:
        metric = LIKELIHOOD
    elif labels:
        metric = ACCURACY
    else:
        metric = AGREEMENT if _has_classes(model) else SIMILARITY
    return Quality(metric, model, batches, len(texts), labels)


def texts_needed(model: Any) -> int:
    """Return how many texts a verdict takes."""
    is_causal = type(model).__name__ in set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    return TEXTS if is_causal else TEXTS_OF_CLASSES


def _has_classes(model: Any) -> bool:
    name = type(model).__name__
    return name.endswith(("Classification", "MaskedLM", "PreTraining", "QuestionAnswering"))


def _labels(model: Any, texts: Sequence[LabelledText]) -> tuple[int, ...]:
    given = [each.label for each in texts]
    if all(each is None for each in given):
        return ()
    if not type(model).__name__.endswith("ForSequenceClassification"):
        raise TargetError(
            f"labels are for models that classify texts, and this is a {type(model).__name__}; "
            "leave them out"
        )
    known = {**model.config.label2id, **{str(each): each for each in model.config.id2label}}
    unknown = [(at, each) for at, each in enumerate(given, 1) if str(each) not in known]
    if unknown:
        at, label = unknown[0]
        names = ", ".join(map(str, model.config.label2id))
        raise TargetError(f"text {at} has the label {label!r}; the model knows {names}")
    return tuple(int(known[str(each)]) for each in given)


# ---------------------------------------------------------------- scores, higher is better


def _likelihoods(quality: Quality, outputs: list[torch.Tensor]) -> list[Any]:
    """Mean log-likelihood of the tokens of each text in nats; perplexity is exp(-mean)."""
    found = []
    for logits, batch in zip(outputs, quality.batches, strict=True):
        ids = batch["input_ids"][:, 1:]
        mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))[:, 1:].float()
        of_tokens = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        found.append(((of_tokens * mask).sum(1) / mask.sum(1).clamp(min=1)).numpy())
    return found


def _accuracies(quality: Quality, outputs: list[torch.Tensor]) -> list[Any]:
    chosen = torch.cat([each.argmax(-1) for each in outputs])[: quality.count]
    return [(chosen == torch.tensor(quality.labels)).float().numpy()]


def _agreements(quality: Quality, outputs: list[torch.Tensor]) -> list[Any]:
    """The share of positions of each text, one where there is one, with the baseline's class."""
    pairs = zip(outputs, quality.expected(), strict=True)
    found = []
    for (ours, theirs), batch in zip(pairs, quality.batches, strict=True):
        same = (ours.argmax(-1) == theirs.argmax(-1)).float().reshape(len(ours), -1)
        mask = batch.get("attention_mask")
        counts = torch.ones_like(same) if mask is None or mask.shape != same.shape else mask.float()
        found.append(((same * counts).sum(1) / counts.sum(1).clamp(min=1)).numpy())
    return found


def _similarities(quality: Quality, outputs: list[torch.Tensor]) -> list[Any]:
    """The cosine of each vector and the baseline's, averaged over the tokens of a text."""
    pairs = zip(outputs, quality.expected(), strict=True)
    found = []
    for (ours, theirs), batch in zip(pairs, quality.batches, strict=True):
        cosine = torch.cosine_similarity(ours, theirs, dim=-1).reshape(len(ours), -1)
        mask = batch.get("attention_mask")
        counts = (
            torch.ones_like(cosine) if mask is None or mask.shape != cosine.shape else mask.float()
        )
        found.append(((cosine * counts).sum(1) / counts.sum(1).clamp(min=1)).numpy())
    return found


SCORERS: Mapping[str, Callable[[Quality, list[torch.Tensor]], list[Any]]] = {
    LIKELIHOOD: _likelihoods,
    ACCURACY: _accuracies,
    AGREEMENT: _agreements,
    SIMILARITY: _similarities,
}
