"""How good predictions of advice are: each advised entry is tried, and the time it brings measured.

    python benchmarks/advice_calibration.py [--only NAME ...] [--quick] [--limit SECONDS]
                                            [--json FILE]
    python benchmarks/advice_calibration.py --summary FILE ...

The MLP, CNN and GPT of the zoo; an encoder like BERT, an LSTM, a CNN for audio and attention
written by hand, as in budgets.py; and BERT-base (its attention written out), DistilBERT, GPT-2
small, ViT-B/16, ResNet-50 and MobileNetV2 from configs of transformers, with random weights. Each
model is profiled and advised; every entry that is advised, and those that predict by their plan
alone, is carried out and compared with the model as it is, in turns. How good the outputs are is
not the question here, as long as they are finite.

A prediction is made from the profile and the plan, an interval and a value in it; a measurement is
the speedup with a 95% interval. A prediction holds where the measured value lies in the predicted
interval; of at least 30 pairs of model and entry, 80% must. Below are candidates that are slower
than was held possible, above those that beat what Amdahl's law and the roofline allow. The ratio is
measured over predicted value. With `--summary`, what earlier runs wrote is put together.

TINYTORCH_BENCHMARK_THREADS sets the threads. Needs torch and transformers.
"""

from __future__ import annotations

import gc
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from sections import run_sections

# isort: split
import budgets
import numpy as np
import torch
import transformers
from generation_tables import header, row
from interleaving import THREADS
from quantization_tables import Target, at_least
from torch_transform_cases import (
    SMALL,
    bert,
    empty_compiler_caches,
    gpt2,
    made,
    mobilenet,
    resnet,
    vit,
)

from tinytorch import Workload
from tinytorch.measure.environment import cpu_model
from tinytorch.models.zoo import load_zoo
from tinytorch.profiling.model_profile import profile_workload
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Plan
from tinytorch.tuning.advice import Advice
from tinytorch.tuning.advise import advise
from tinytorch.tuning.attempt import Attempt, Settings
from tinytorch.tuning.catalog import Entry, entries_for
from tinytorch.tuning.trying import Trials

LEAST_HOLDING, LEAST_PAIRS = 0.8, 30
BY_PLAN = ("threads", "pruned-sparse", "fewer-layers")
"""Entries about which only a plan can say something."""
SLOW = frozenset({"compiled", "pruned-sparse", "threads", "fewer-layers"})
"""What takes long to plan or to build, and is left out of a quick run."""
ANY_OUTPUT = Settings(max_accuracy_drop=1e9, max_output_error=1e9)
WIDEST_REASON = 100
SCORES = 8
COLUMNS = ("entry", "rule", "predicted", "measured", "prediction", "measured / predicted")
INSIDE, BELOW, ABOVE = "holds", "below", "above"


@dataclass(frozen=True)
class Effort:
    """How much is done; what is not judged says nothing."""

    profile_s: float = 2.0
    budget_s: float = 1.5
    limit_s: float = 60.0
    most_entries: int = 100
    is_judged: bool = True


QUICK = Effort(profile_s=0.4, budget_s=0.4, limit_s=15.0, most_entries=4, is_judged=False)


@dataclass(frozen=True)
class Outcome:
    """One advised entry: the interval that was predicted, and the one that was measured."""

    model: str
    entry: str
    rule: str
    predicted: tuple[float, float, float]
    measured: tuple[float, float, float]

    @property
    def verdict(self) -> str:
        (_, low, high), (value, _, _) = self.predicted, self.measured
        if value < low:
            return BELOW
        return ABOVE if value > high else INSIDE

    @property
    def is_open(self) -> bool:
        """Whether the measured interval meets the predicted one."""
        return self.predicted[1] <= self.measured[2] and self.measured[1] <= self.predicted[2]

    @property
    def ratio(self) -> float:
        return self.measured[0] / self.predicted[0]


@dataclass
class Benchmark:
    """The sections, and what they found so far."""

    effort: Effort
    targets: list[Target] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def is_quick(self) -> bool:
        return not self.effort.is_judged

    def calibrate(self, workload: Workload) -> None:
        """Profile and advise a model, try what is advised, and show both beside each other."""
        profile = profile_workload(workload, budget_s=self.effort.profile_s)
        entries = entries_for(workload, "latency")
        tried = self._promising(entries, advise(profile, entries=entries))
        attempts = self._attempts(workload, profile, tried)
        plans = {name: each.plans for name, each in attempts.items() if each.plans}
        found = [each for each in advise(profile, entries=tried, plans=plans) if each.entry]
        header(*COLUMNS)
        for each in found:
            self._show(workload.name, each, attempts[each.entry])
        self.raw[workload.name] = {
            "latency_s": profile.latency.median,
            "advice": [each.to_dict() for each in found],
            "attempts": {name: _kept(each) for name, each in attempts.items()},
        }
        gc.collect()

    def _promising(self, entries: Sequence[Entry], advice: Sequence[Advice]) -> list[Entry]:
        """Give what is advised, in that order, and what only a plan can speak about."""
        known = {each.name: each for each in entries}
        names = dict.fromkeys([*(each.entry for each in advice), *BY_PLAN])
        left_out = SLOW if self.is_quick else frozenset()
        found = [known[name] for name in names if name in known and name not in left_out]
        return found[: self.effort.most_entries]

    def _attempts(
        self, workload: Workload, profile: Profile, entries: Sequence[Entry]
    ) -> dict[str, Attempt]:
        # All are equally good: this is about time.
        workload = replace(workload, evaluate=lambda model: np.ones(SCORES))
        trials = Trials(workload, ANY_OUTPUT, profile=profile)
        return {
            each.name: trials.attempt(
                [each], budget_s=self.effort.budget_s, limit_s=self.effort.limit_s
            )[0]
            for each in entries
        }

    def _show(self, model: str, advice: Advice, attempt: Attempt) -> None:
        time = attempt.measured.time
        if advice.predicted is None or time is None:
            why = advice.not_predicted if time else f"{attempt.outcome}: {attempt.reason}"
            seen = interval_text(speedup(attempt)) if time else "-"
            told = interval_text(ends(advice)) if advice.predicted else "-"
            row(advice.entry, advice.rule, told, seen, why[:WIDEST_REASON], "-")
            return
        outcome = Outcome(model, advice.entry, advice.rule, ends(advice), speedup(attempt))
        self.outcomes.append(outcome)
        told = {"verdict": outcome.verdict, "ratio": outcome.ratio}
        self.raw.setdefault("outcomes", []).append(asdict(outcome) | told)
        row(
            advice.entry,
            advice.rule,
            interval_text(outcome.predicted),
            interval_text(outcome.measured),
            outcome.verdict,
            f"{outcome.ratio:.2f}",
        )

    def summary(self) -> None:
        """All predictions together, and by rule."""
        groups: dict[str, list[Outcome]] = defaultdict(list)
        for each in self.outcomes:
            groups["all"].append(each)
            groups[each.rule].append(each)
        header("rule", "n", "holds", "intervals meet", BELOW, ABOVE, "median ratio", "worst")
        for name, members in groups.items():
            row(name, *summary_cells(members))
        every = groups["all"]
        holding = sum(each.verdict == INSIDE for each in every) / max(1, len(every))
        self._judge(at_least("share of predictions that hold", LEAST_HOLDING, holding))
        self._judge(at_least("pairs of model and entry", LEAST_PAIRS, len(every)))

    def _judge(self, target: Target) -> None:
        is_judged = self.effort.is_judged and self.outcomes
        self.targets.append(target if is_judged else replace(target, verdict="inconclusive"))


# ---------------------------------------------------------------- numbers


def ends(advice: Advice) -> tuple[float, float, float]:
    """Give the value and both ends of a prediction."""
    gain = advice.predicted
    assert gain is not None, f"nothing is predicted for {advice.entry}"
    return gain.value, gain.low, gain.high


def speedup(attempt: Attempt) -> tuple[float, float, float]:
    """Give the measured speedup and its interval; a time of 1 is that of the model as it is."""
    time = attempt.measured.time
    assert time is not None, f"{attempt.name} was not measured"
    high = math.inf if time.low <= 0 else 1 / time.low
    return 1 / time.value, 1 / time.high if math.isfinite(time.high) else 0.0, high


def interval_text(found: tuple[float, float, float]) -> str:
    value, low, high = found
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def summary_cells(members: Sequence[Outcome]) -> tuple[str, ...]:
    verdicts = [each.verdict for each in members]
    ratios = [each.ratio for each in members]
    worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    return (
        f"{len(members)}",
        f"{verdicts.count(INSIDE) / len(members):.0%}",
        f"{sum(each.is_open for each in members) / len(members):.0%}",
        f"{verdicts.count(BELOW)}",
        f"{verdicts.count(ABOVE)}",
        f"{median(ratios):.2f}",
        f"{worst:.2f}",
    )


def _kept(attempt: Attempt) -> dict[str, Any]:
    return {
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "measured": attempt.measured.to_dict(),
        "seconds": attempt.seconds,
        "layers": [_layer_count(plan) for plan in attempt.plans],
    }


def _layer_count(plan: Plan) -> tuple[str, int]:
    return plan.transform, len(plan.layers)


# ---------------------------------------------------------------- models


def distilbert(is_quick: bool) -> Workload:
    """Give DistilBERT on 128 tokens."""
    small = {"dim": SMALL["hidden_size"], "hidden_dim": 128, "n_layers": 3, "n_heads": 4}
    sizes: dict[str, Any] = small | {"vocab_size": 1000} if is_quick else {}
    config = transformers.DistilBertConfig(**sizes)
    ids = torch.randint(5, 999, (1, 128), generator=torch.Generator().manual_seed(1))
    return made("DistilBERT, 1 x 128", lambda: transformers.DistilBertModel(config), ids, "cpu")


MODELS: dict[str, tuple[str, Callable[[bool], Workload]]] = {
    "mlp": ("The MLP of the zoo", lambda _: load_zoo("mlp")),
    "cnn": ("The CNN of the zoo", lambda _: load_zoo("cnn")),
    "gpt": ("The GPT of the zoo", lambda _: load_zoo("gpt")),
    "encoder": ("An encoder like BERT", lambda _: budgets.embeddings()),
    "lstm": ("An LSTM", lambda _: budgets.lstm()),
    "audio": ("A CNN for audio", lambda _: budgets.audio()),
    "attention": ("Attention written by hand", lambda _: budgets.attention()),
    "bert": ("BERT-base, attention written out", lambda quick: bert(quick, attention="eager")),
    "distilbert": ("DistilBERT", distilbert),
    "gpt2": ("GPT-2 small", gpt2),
    "vit": ("ViT-B/16", vit),
    "resnet": ("ResNet-50", resnet),
    "mobilenet": ("MobileNetV2", mobilenet),
}


def section(title: str, make: Callable[[bool], Workload]) -> Callable[[Benchmark], None]:
    """Give the section of one model."""

    def run(benchmark: Benchmark) -> None:
        benchmark.calibrate(make(benchmark.is_quick))

    run.__doc__ = title
    return run


SECTIONS: dict[str, Callable[[Benchmark], None]] = {
    **{name: section(title, make) for name, (title, make) in MODELS.items()},
    "summary": Benchmark.summary,
}


def summarise(files: Sequence[str]) -> int:
    """Show the summary of what earlier runs wrote, each pair of model and entry once."""
    found: dict[tuple[str, str], Outcome] = {}
    for name in files:
        for each in json.loads(Path(name).read_text("utf-8"))["outcomes"]:
            fields = {key: each[key] for key in ("model", "entry", "rule", "predicted", "measured")}
            found[each["model"], each["entry"]] = Outcome(**fields)
    benchmark = Benchmark(Effort(), outcomes=list(found.values()))
    benchmark.summary()
    for target in benchmark.targets:
        print(target)
    return int(any(each.verdict != "met" for each in benchmark.targets))


def main() -> int:
    if sys.argv[1:2] == ["--summary"]:
        return summarise(sys.argv[2:])
    torch.set_num_threads(THREADS)
    versions = {name: version(name) for name in ("torch", "transformers")}
    with empty_compiler_caches():
        return run_sections(
            SECTIONS,
            lambda is_quick: Benchmark(QUICK if is_quick else Effort()),
            about=__doc__,
            quick=("tiny models", "tiny models and little time: nothing is judged."),
            setting={"processor": cpu_model(), **versions},
            backend=None,
        )


if __name__ == "__main__":
    raise SystemExit(main())
