"""The three events: what is asked of a model, and what of its answers is measured."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tinytorch.comparison.accuracy import NOT_WORSE, WORSE, AccuracyComparison, compare_accuracy
from tinytorch.competition.rounds import Round
from tinytorch.errors import DTypeError, SettingError, ShapeError, did_you_mean
from tinytorch.measure.estimate import INCONCLUSIVE
from tinytorch.models import zoo
from tinytorch.models.digits import draw_digits
from tinytorch.models.workload import Scores
from tinytorch.models.zoo import load_zoo

Division = Literal["closed", "open", "learner"]
DIVISIONS: tuple[Division, ...] = ("closed", "open", "learner")
TIERS: tuple[float, ...] = (0.99, 0.999)
"""The shares of the reference's accuracy that an entry may be asked to keep."""


@dataclass(frozen=True)
class Measure:
    """One thing that is measured of both sides in each heat; less is better.

    The score of a measure is the reference's value over the entry's.
    """

    name: str
    unit: Literal["s", "byte", "ratio"]
    about: str
    is_scored: bool = True


@dataclass(frozen=True)
class Event:
    """One event. `model` is the reference's name in the zoo.

    A request holds `batch` examples. In every heat both sides answer the same `examples` questions
    that neither has seen before.
    """

    name: str
    title: str
    model: str
    about: str
    batch: int
    examples: int
    metric: str
    measures: tuple[Measure, ...]

    @property
    def scored(self) -> tuple[str, ...]:
        """The names of the measures whose geometric mean is the score."""
        return tuple(each.name for each in self.measures if each.is_scored)


PEAK_MEMORY = "what the process grows by, at most, after it has started"

EVENTS: dict[str, Event] = {
    event.name: event
    for event in (
        Event(
            "mlp_sprint",
            "MLP Sprint",
            "mlp",
            "read one drawn digit after the other: the time that nine of ten answers keep to",
            batch=1,
            examples=2_000,
            metric="accuracy",
            measures=(
                Measure("p90 latency", "s", "90th percentile of the time to answer one image"),
                Measure("peak memory", "byte", PEAK_MEMORY, is_scored=False),
            ),
        ),
        Event(
            "cnn_marathon",
            "CNN Marathon",
            "cnn",
            "read drawn digits, 50 at a time, without a pause: the time for each of them",
            batch=50,
            examples=5_000,
            metric="accuracy",
            measures=(
                Measure("time per image", "s", "mean over all images of a heat"),
                Measure("peak memory", "byte", PEAK_MEMORY, is_scored=False),
            ),
        ),
        Event(
            "transformer_decathlon",
            "Transformer Decathlon",
            "gpt",
            "read and write English, one character at a time: ten disciplines",
            batch=1,
            examples=100,
            metric="log-likelihood per character",
            measures=(
                Measure("prefill", "s", "median time to read 16 characters"),
                Measure("decode", "s", "median time per written character, 48 after 16"),
                Measure("p99", "s", "99th percentile of the time to read 64 characters"),
                Measure("peak memory", "byte", PEAK_MEMORY),
                Measure("size", "byte", "what the model takes on disk"),
                Measure("load time", "s", "from the file to a model that can be called"),
                Measure("cold start", "s", "the first answer after loading"),
                Measure("perplexity", "ratio", "of the next character, on held-out text"),
                Measure("scaling", "ratio", "median time for 64 characters over that for 16"),
                Measure("CPU time", "s", "processor time of the whole heat"),
            ),
        ),
    )
}


def find_event(name: str) -> Event:
    """Return the event of this name."""
    if name not in EVENTS:
        raise SettingError(f"no event {name!r}; {did_you_mean(name, EVENTS)}")
    return EVENTS[name]


# ---------------------------------------------------------------- tiers: how much of the
# reference's accuracy has to be left, and whether it is

KEPT, LOST = "kept", "lost"
SAME_ANSWER = 1e-3
"""Scores that differ by less than this share of the margin come from the same answer, rounded."""


def tier_margin(event: Event, tier: float, reference_score: float) -> float:
    """Return the accuracy margin of a tier: how far the mean score may drop.

    For accuracy it is a share of the reference's. For a log-likelihood, the perplexity may grow to
    1 / tier of the reference's.
    """
    if event.metric == "accuracy":
        return (1 - tier) * reference_score
    return -math.log(tier)


def compare_in_tier(event: Event, tier: float, ours: Scores, theirs: Scores) -> AccuracyComparison:
    """Compare the scores of an entry with the reference's, with the margin of a tier."""
    margin = tier_margin(event, tier, float(ours.mean()))
    return compare_accuracy(ours, theirs, margin=margin, metric=event.metric)


def tier_verdict(found: AccuracyComparison) -> str:
    """Return whether the tier is `kept`, `lost` or `inconclusive`.

    It is kept by non-inferiority, or where all texts are found as likely as by the reference: then
    the bound only says how few texts there are, and a thousand would not be enough for 99.9%.
    That digits are read alike says less, so there the bound decides.
    """
    if found.verdict == NOT_WORSE or _is_same(found):
        return KEPT
    return LOST if found.verdict == WORSE else INCONCLUSIVE


def _is_same(found: AccuracyComparison) -> bool:
    if found.failed or found.is_binary:
        return False
    apart = np.abs(np.subtract(found.candidate_scores, found.baseline_scores))
    return bool(apart.max() <= SAME_ANSWER * found.margin)


# ---------------------------------------------------------------- questions: what the contenders
# are asked, private ones from a round's seed and public ones
#
# Private digits are drawn from the seed, so they are new to every entry. The text is a public
# novel: which windows of its held-out tenth are asked, from which offset and in which
# order, is all that is secret about it.

PROMPT = 16
"""Characters that a text to be continued begins with."""
PROMPTS_PER_WINDOW = zoo.CONTEXT // PROMPT
EXAMPLES_PER_PROMPT = 10
WARM_UP_IMAGES = 500
WARM_UP_TEXTS = 40

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Questions:
    """Examples and their targets, one row each. Text has prompts (n, 16) to continue as well.

    Images are float32, (n, 784) or (n, 1, 28, 28), and their targets digits (n,). Texts are numbers
    of characters (n, 64), and their targets the next character of each (n, 64).
    """

    inputs: Array
    targets: Array
    prompts: Array | None = None

    def __post_init__(self) -> None:
        for array in self._arrays:
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def _arrays(self) -> tuple[Array, ...]:
        both = (self.inputs, self.targets)
        return both if self.prompts is None else (*both, self.prompts)

    @cached_property
    def sha256(self) -> str:
        """The hash of dtypes, shapes and values.

        Whole numbers (targets, texts) enter with every bit. Images enter with their mean and
        spread to three decimals: processors round the last bits of a drawing differently, and the
        same seed has to give the same hash everywhere.
        """
        found = hashlib.sha256(b"tinytorch questions\n")
        for array in self._arrays:
            found.update(f"{array.dtype.name} {array.shape}\n".encode("ascii"))
            found.update(_content(array))
        return found.hexdigest()

    def part(self, number: int, of: int) -> Questions:
        """Return part `number` (from 0) of `of` equal parts: the questions of one heat."""
        if of < 1 or not 0 <= number < of:
            raise SettingError(f"there is no part {number} of {of}; parts count from 0")
        if any(len(array) % of for array in self._arrays):
            raise SettingError(f"{len(self)} questions do not make {of} equal parts")
        return Questions(*(_share(array, number, of) for array in self._arrays))


def _share(array: Array, number: int, of: int) -> Array:
    size = len(array) // of
    return array[number * size : (number + 1) * size]


def _content(array: Array) -> bytes:
    if array.dtype.kind == "f":
        mean, spread = float(array.mean(dtype=np.float64)), float(array.std(dtype=np.float64))
        return f"{mean + 0.0:.3f} {spread:.3f}\n".encode("ascii")
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()


def is_text(event: Event) -> bool:
    """Return whether the event is about text; the others are about digits."""
    return event.model == "gpt"


# ---------------------------------------------------------------- private questions


def draw_questions(event: Event, drawn_from: Round, *, heats: int) -> Questions:
    """Draw the private questions of a round: `event.examples` for each heat, none of them twice.

    The same seed, event and number of heats give the same questions.
    """
    if heats < 1:
        raise SettingError(f"heats={heats}; at least one is needed")
    stream = _stream(event, drawn_from)
    if is_text(event):
        return _draw_texts(event, stream, heats=heats)
    images, labels = draw_digits(heats * event.examples, seed=stream)
    return Questions(zoo.as_inputs(images, flat=event.model == "mlp"), labels)


def most_heats(event: Event) -> int | None:
    """Return the number of heats with unused questions; None where it is unlimited."""
    if not is_text(event):
        return None
    windows = (len(_held_out_ids()) - 1 - (zoo.CONTEXT - 1)) // zoo.CONTEXT
    heats = windows // event.examples
    while heats * event.examples + _prompt_windows(event, heats) > windows:
        heats -= 1
    return heats


def _stream(event: Event, drawn_from: Round) -> int:
    """Return the random seed of an event in a round."""
    if drawn_from.seed is None:
        raise SettingError(
            f"the seed of round {drawn_from.name!r} is not known here; take the organiser's secret "
            "file, or wait until the seed is revealed"
        )
    text = f"tinytorch questions\n{event.name}\n{drawn_from.seed}"
    digest = hashlib.sha256(text.encode("ascii")).digest()
    # The leading one keeps it apart from the small seeds of public images.
    return (1 << 8 * len(digest)) | int.from_bytes(digest, "big")


def _draw_texts(event: Event, stream: int, *, heats: int) -> Questions:
    """Cut the held-out text at a drawn offset, shuffle the windows, and deal them out.

    Prompts come from windows that are not asked as a whole. The offset is never 0, where the public
    windows begin.
    """
    most = most_heats(event) or 0
    if heats > most:
        raise SettingError(
            f"heats={heats}; the held-out text has new questions for {most} heats of {event.title}"
        )
    ids = _held_out_ids()
    rng = np.random.default_rng(stream)
    offset = int(rng.integers(1, zoo.CONTEXT))
    starts = rng.permutation(np.arange(offset, len(ids) - zoo.CONTEXT, zoo.CONTEXT))
    asked = starts[: heats * event.examples, None] + np.arange(zoo.CONTEXT)
    rest = starts[heats * event.examples :][: _prompt_windows(event, heats)]
    begun = ids[rest[:, None] + np.arange(zoo.CONTEXT)].reshape(-1, PROMPT)
    prompts = begun[rng.permutation(len(begun))[: _prompts(event, heats)]]
    return Questions(ids[asked], ids[asked + 1], prompts)


def _prompts(event: Event, heats: int) -> int:
    return heats * (event.examples // EXAMPLES_PER_PROMPT)


def _prompt_windows(event: Event, heats: int) -> int:
    return -(-_prompts(event, heats) // PROMPTS_PER_WINDOW)


@lru_cache(maxsize=1)
def _held_out_ids() -> npt.NDArray[np.int64]:
    return np.array(zoo.tokenizer().encode(zoo.split_corpus(zoo.load_corpus())[1]), dtype=np.int64)


# ---------------------------------------------------------------- public questions


@lru_cache(maxsize=3)
def public_questions(event: Event) -> Questions:
    """Return the zoo's held-out data for practice: 5,000 digits, or the windows of text."""
    if is_text(event):
        windows, following = (each.data for each in zoo.text_data(held_out=True).tensors)
        return Questions(windows.view(), following.view(), windows[::EXAMPLES_PER_PROMPT, :PROMPT])
    held_out = zoo.digit_data(held_out=True, flat=event.model == "mlp")
    images, labels = (each.data for each in held_out.tensors)
    return Questions(images.view(), labels.view())


@lru_cache(maxsize=3)
def warm_up_questions(event: Event) -> Questions:
    """Return training data for the warm-up: 500 digits, or 40 windows of text with prompts."""
    if is_text(event):
        windows, following = (each.data for each in zoo.text_data(held_out=False).tensors)
        chosen = np.linspace(0, len(windows) - 1, WARM_UP_TEXTS).astype(int)
        return Questions(windows[chosen], following[chosen], windows[chosen, :PROMPT])
    images, labels = draw_digits(WARM_UP_IMAGES, seed=zoo.TRAINING_SEED)
    return Questions(zoo.as_inputs(images, flat=event.model == "mlp"), labels)


def calibration(event: Event) -> tuple[tuple[Any, ...], ...]:
    """Return the calibration batches, as in a Workload."""
    return load_zoo(event.model).calibration


# ---------------------------------------------------------------- answers


def score_answers(event: Event, outputs: npt.ArrayLike, targets: Array) -> Scores:
    """Score each example, as the zoo does: 1 or 0 for digits, mean log-likelihood in nats for text.

    An example with an output that is not finite scores NaN, whatever else is in it.
    """
    answers = np.asarray(outputs)
    if answers.dtype.kind not in "fiu":
        raise DTypeError(f"answers are {answers.dtype.name}; give real numbers")
    if answers.shape[:-1] != targets.shape or answers.shape[-1] <= targets.max(initial=0):
        raise ShapeError(
            f"answers of shape {answers.shape} to targets of shape {targets.shape}; "
            "give one number for each class or character, at every place"
        )
    wide = answers.astype(np.float64)
    is_finite = np.isfinite(wide).all(axis=tuple(range(1, wide.ndim)))
    chosen = wide[is_finite]
    scores = np.full(len(wide), np.nan)
    if is_text(event):
        scores[is_finite] = _log_likelihood(chosen, targets[is_finite])
    else:
        scores[is_finite] = chosen.argmax(axis=-1) == targets[is_finite]
    return scores


def _log_likelihood(logits: Scores, targets: Array) -> Scores:
    """Return the mean log-likelihood of the targets over each window."""
    with np.errstate(over="ignore"):  # a logit that is lower by more than floats can tell is -inf
        below = logits - logits.max(axis=-1, keepdims=True)  # (windows, time, characters)
        of_targets = np.take_along_axis(below, targets[..., None], axis=-1)[..., 0]
        return (of_targets - np.log(np.exp(below).sum(axis=-1))).mean(axis=-1)
