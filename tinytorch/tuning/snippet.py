"""A short program that does again what an optimization recommends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from tinytorch.errors import SettingError
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.recipe import TRANSFORMS, rebuilt_plan
from tinytorch.workloads.plan import Plan
from tinytorch.workloads.zoo import ZOO

__all__ = ["snippet"]

MOST_SECONDS = 10.0
"""How long the program compares, unless all of the optimization had less."""
USUAL_MARGIN, USUAL_SEED = 0.01, 0
"""What compare() takes unless it is told otherwise."""
OWN_TARGET = "file.py:factory"
WIDEST = 100


def snippet(optimization: Optimization, *, target: str = "", saved: str = "") -> str:
    """Give a Python program that carries out the recommended stack and compares it again.

    `target` is what the workload is loaded from, unless the optimization knows; a built-in one is
    known by its name, and without one the program says where to put one's own. `saved` is where the
    model was saved.
    """
    best = optimization.recommended
    if best is None:
        raise SettingError(
            f"nothing that was tried on {optimization.name} is recommended, so there is nothing to "
            "do again"
        )
    plans = [rebuilt_plan(each) for each in best.plans]
    target = target or optimization.target or _built_in(optimization.name)
    lines = [
        f"# {_one_line(optimization.name)}: {_one_line(best.name)}",
        *_imports(plans),
        "",
        *_loading(target),
        *(["workload.model.eval()"] if optimization.was_training else []),
        "model = workload.model",
        *_transforms(plans),
        "    current = replace(workload, model=model)",
        "    model = transform.apply(current, transform.plan(current))",
        *(_loading_saved(saved) if saved else ()),
        "",
        f"print(compare(workload, replace(workload, model=model){_settings(optimization)}))",
    ]
    return "\n".join(lines) + "\n"


def _built_in(name: str) -> str:
    return name if name in ZOO else ""


def _imports(plans: Sequence[Plan]) -> Iterator[str]:
    yield "from dataclasses import replace"
    yield ""
    yield "from rich import print"
    yield ""
    yield "from tinytorch import compare, load_workload"
    names: dict[str, set[str]] = {}
    for plan in plans:
        module = TRANSFORMS[plan.transform].__module__
        names.setdefault(module.rpartition(".")[0], set()).add(plan.transform)
    for package in sorted(names):
        yield f"from {package} import {', '.join(sorted(names[package], key=str.lower))}"


def _loading(target: str) -> Iterator[str]:
    if not target:
        yield "# Put your own here: factory() gives a Workload, or a model and its inputs."
    yield f"workload = load_workload({_literal(target or OWN_TARGET)})"


def _loading_saved(saved: str) -> Iterator[str]:
    yield ""
    yield "# The same model from where it was saved:"
    yield "# from tinytorch import load_optimized"
    yield f"# model = load_optimized({_literal(saved)}, workload)"


def _transforms(plans: Sequence[Plan]) -> Iterator[str]:
    calls = [_call(plan) for plan in plans]
    line = f"for transform in [{', '.join(calls)}]:"
    if len(line) <= WIDEST:
        yield line
        return
    yield "for transform in ["
    yield from (f"    {call}," for call in calls)
    yield "]:"


def _call(plan: Plan) -> str:
    """Write a transform with the settings that are not its usual ones."""
    own = [
        f"{each.name}={_literal(plan.settings[each.name])}"
        for each in fields(TRANSFORMS[plan.transform])
        if plan.settings[each.name] != _usual(each)
    ]
    return f"{plan.transform}({', '.join(own)})"


def _usual(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _settings(optimization: Optimization) -> str:
    settings = optimization.settings
    given: dict[str, float] = {"budget_s": min(MOST_SECONDS, settings.budget_s)}
    if settings.max_accuracy_drop != USUAL_MARGIN:
        given["margin"] = settings.max_accuracy_drop
    if settings.seed != USUAL_SEED:
        given["seed"] = settings.seed
    return "".join(f", {name}={value!r}" for name, value in given.items())


def _literal(value: Any) -> str:
    """Write a value as Python has it, texts in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        inner = ", ".join(map(_literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())
