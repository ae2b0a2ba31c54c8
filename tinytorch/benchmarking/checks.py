"""Checks of what the benchmarking tools are given."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import NormalDist
from typing import Any

from tinytorch.errors import SettingError
from tinytorch.measure.estimate import Estimate
from tinytorch.measure.samples import Samples, student_t_quantile
from tinytorch.models.adapter import Adapter, owner_of

# ---------------------------------------------------------------- intervals for averages over
# examples, such as an accuracy


def share_interval(hits: int, count: int, confidence: float = 0.95) -> Estimate:
    """Return Wilson's interval for a proportion, after `hits` in `count` trials.

    It has a width even when every trial hit or none did, and never leaves 0 to 1.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference, 1927.

    >>> interval = share_interval(10, 10)
    >>> round(interval.low, 3), interval.high
    (0.722, 1.0)
    """
    if not 0 <= hits <= count or count < 1:
        raise SettingError(f"{hits} hits of {count}; hits lie between 0 and a count of 1 or more")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, weight = hits / count, z * z / count
    centre = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / count + weight / (4 * count)) / (1 + weight)
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == count else min(1.0, centre + half)
    return Estimate(share, min(low, share), max(high, share), confidence, count)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return a confidence interval for the mean.

    For zeros and ones it is :func:`share_interval`. Otherwise it is Student's, which is exact for
    normal values and close for some thirty or more of any that are not very skewed. A single value
    says nothing about others: confidence 0.
    """
    samples = Samples("scores", tuple(values), unit="")
    if all(value in (0.0, 1.0) for value in samples.values):
        return share_interval(round(sum(samples.values)), samples.count, confidence)
    if samples.count == 1:
        return Estimate(samples.mean, samples.mean, samples.mean, 0.0, 1)
    reach = student_t_quantile((1 + confidence) / 2, samples.count - 1)
    half = reach * samples.std / math.sqrt(samples.count)
    mean = samples.mean
    return Estimate(mean, mean - half, mean + half, confidence, samples.count)


def ratio_interval(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the median of the paired ratios `first` / `second`, and its interval.

    Pairs are neighbours in time, so that what disturbs the machine meets both. The interval is
    that of :meth:`Samples.median_interval`: nothing is assumed about the distribution.
    """
    ratios = tuple(one / other for one, other in zip(first, second, strict=True))
    return Samples("ratios", ratios, unit="").median_interval()


# ---------------------------------------------------------------- names for models that are
# measured together


def named_models(models: Any) -> dict[str, Any]:
    """Return models by name, in their order.

    `models` is a dictionary of names, or a list. In a list a model is called by its `.name`, and
    one without by its class, the second of a class ``Sequential_2``. Two models that both say they
    have the same name are an error: their results could not be told apart.
    """
    if isinstance(models, Mapping):
        wrong = [name for name in models if not isinstance(name, str) or not name]
        if wrong:
            raise SettingError(f"{wrong[0]!r} is no name for a model; give a text")
        named = dict(models)
    elif isinstance(models, (list, tuple)):
        named = _named_list(models)
    else:
        raise SettingError(
            f"models is a {type(models).__name__}; give a list of models, or a dictionary of them "
            "by name"
        )
    if not named:
        raise SettingError("no models were given; there is nothing to measure")
    return named


def model_name(model: Any) -> str | None:
    """Return the name of a model, if it has one; a target is its own name."""
    if isinstance(model, str):
        return model
    name = getattr(model, "name", None)
    return name if isinstance(name, str) and name else None


def _named_list(models: list[Any] | tuple[Any, ...]) -> dict[str, Any]:
    own = [model_name(model) for model in models]
    counted = Counter(name for name in own if name is not None)
    twice = [name for name, count in counted.items() if count > 1]
    if twice:
        raise SettingError(
            f"{counted[twice[0]]} models are called {twice[0]!r}; give a dictionary with a "
            "different name for each"
        )
    named: dict[str, Any] = {}
    for model, name in zip(models, own, strict=True):
        named[name or _free_name(_class_name(model), {*named, *counted})] = model
    return named


def _class_name(model: Any) -> str:
    """Return the name of a function, or of the class of an object."""
    owner = owner_of(model)
    own = getattr(owner, "__qualname__", None)  # functions have one, objects have not
    return own.rpartition("<locals>.")[2] if isinstance(own, str) else type(owner).__name__


def _free_name(wanted: str, taken: set[str]) -> str:
    if wanted not in taken:
        return wanted
    number = 2
    while f"{wanted}_{number}" in taken:
        number += 1
    return f"{wanted}_{number}"


# ---------------------------------------------------------------- holding a model ready to be
# measured, and leaving it as it was


@contextmanager
def held_ready(adapter: Adapter, model: Any) -> Iterator[bool]:
    """Put a model into evaluation mode without gradients; yield whether it was training.

    Afterwards it has the mode, gradients, buffers and random state that it had before.
    """
    layers = [
        each
        for each in adapter.modules(model).values()
        if isinstance(getattr(each, "training", None), bool)
    ]
    was_training = any(each.training for each in layers)
    with adapter.preserving(model), adapter.without_gradients(), _in_evaluation_mode(layers):
        yield was_training


@contextmanager
def _in_evaluation_mode(layers: Iterable[Any]) -> Iterator[None]:
    before = [(layer, layer.training, "training" in _own(layer)) for layer in layers]
    try:
        for layer, was_training, _ in before:
            if was_training:
                layer.training = False
        yield
    finally:
        for layer, was_training, has_own in before:
            # What runs inside may change modes too, as `evaluate` often does.
            if layer.training is not was_training:
                layer.training = was_training
            if not has_own:  # it has its mode from its class, and should again
                _own(layer).pop("training", None)


def _own(layer: Any) -> dict[str, Any]:
    return getattr(layer, "__dict__", {})
