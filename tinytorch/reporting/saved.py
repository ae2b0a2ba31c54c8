"""What was measured of a saved model: the README of its folder, and memory of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tinytorch.comparison.comparison import Comparison
from tinytorch.measure.memory import ProcessUse
from tinytorch.reporting import document as doc
from tinytorch.reporting.comparison import speedup_text
from tinytorch.reporting.optimization_words import attempt_phrases
from tinytorch.reporting.quantities import (
    UNKNOWN,
    bytes_text,
    percent_text,
    seconds_text,
)
from tinytorch.tuning.fresh_process import BASELINE, SAVED, ProcessMemory
from tinytorch.tuning.optimization import Optimization
from tinytorch.tuning.recipe import TRANSFORMS, Recipe

PROCESS_ABOUT = (
    "Resident memory of two fresh processes: libraries and freed memory count, and both had "
    "imported the same before."
)
TENSORS = "parameters and live tensors"
CALLS_WITHOUT = (
    "Calls without gradients were measured: use `torch.inference_mode()` or `torch.no_grad()`."
)
NO_GRADIENTS = "It cannot be trained further: its calls record no gradients."


def readme_text(
    optimization: Optimization, recipe: Recipe, shapes: Sequence[str], notes: Sequence[str]
) -> str:
    """Return the README of a folder with a saved model."""
    lines = [f"# {_line(recipe.name)}: {_line(' + '.join(recipe.stack))}", ""]
    knows_target = bool(recipe.architecture or optimization.target)
    lines += [*_use(recipe, knows_target=knows_target), "", "## What was measured", ""]
    lines += [f"- {_line(each)}" for each in _measured(optimization, shapes)]
    if optimization.process is not None:
        lines += ["", "## Memory of the process", "", PROCESS_ABOUT, ""]
        lines += list(_table(optimization.process))
    lines += ["", "## Before the first call, and for other inputs", ""]
    lines += [f"- {_line(each)}" for each in (*_setup(optimization, recipe), *notes)]
    lines += ["", "## Where", ""]
    lines += [f"- {_line(each)}" for each in _where(optimization, recipe)]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split())


def _use(recipe: Recipe, *, knows_target: bool) -> Iterator[str]:
    """Yield how to load it: `load.py` knows how to build the model, or a function has to."""
    yield "```python"
    yield "from load import load  # load.py of this folder"
    yield ""
    yield "model = load()" if knows_target else "model = load(build)"
    yield "```"
    if not recipe.architecture:
        yield ""
        yield (
            f"`load(build)` takes a function without arguments that returns a {recipe.model} as it "
            "was, whatever its weights; without one, `load.py` needs a target."
        )


def _measured(optimization: Optimization, shapes: Sequence[str]) -> Iterator[str]:
    best = optimization.recommended
    found = best.comparison if best is not None else None
    if best is None or found is None:
        yield "Nothing: the stack was chosen without a comparison."
        return
    yield (
        f"{_line(speedup_text(found))} speedup of {found.timing}: {found.verdict} "
        f"(n={found.n} rounds, goal {optimization.settings.goal})"
    )
    yield f"Inputs: {', '.join(shapes) or 'unknown'}; other batch sizes and lengths may differ"
    yield from (each for each in attempt_phrases(best)[1:] if TENSORS not in each)
    accuracy = found.accuracy
    if accuracy is not None:
        yield (
            f"{accuracy.metric}: {accuracy.verdict} (margin {accuracy.margin:g}, 95% bound of the "
            f"drop {max(0.0, -accuracy.low):.3g}, n={accuracy.n})"
        )
    yield from _held(found)


def _held(comparison: Comparison) -> Iterator[str]:
    if comparison.resources is None:
        return
    before, after = comparison.resources
    if before.memory_bytes is not None and after.memory_bytes is not None:
        share = percent_text(after.memory_bytes / before.memory_bytes)
        yield (
            f"Memory of {TENSORS}: {bytes_text(before.memory_bytes)} to "
            f"{bytes_text(after.memory_bytes)} ({share})"
        )


def _setup(optimization: Optimization, recipe: Recipe) -> Iterator[str]:
    best = optimization.recommended
    found = best.comparison if best is not None else None
    done = found.preparations[1] if found is not None else ()
    for each in done:
        yield f"Setup time: {each.what} {seconds_text(each.seconds)}, in each process again"
    if not done:
        yield "Setup time: none was seen"
    transforms = [TRANSFORMS[each.transform] for each in recipe.plans]
    if any(each.is_prepared for each in transforms):
        yield "New input shapes are prepared (compiled or captured) again when they first come"
    else:
        yield "New input shapes need no setup: nothing is compiled or captured"
    if recipe.framework == "pytorch":
        yield CALLS_WITHOUT
        if any(each.transform in ("InferenceMode", "Quantize") for each in recipe.plans):
            yield NO_GRADIENTS


def _where(optimization: Optimization, recipe: Recipe) -> Iterator[str]:
    machine = optimization.environment
    yield f"Machine: {machine.get('cpu_model') or 'unknown'}, {machine.get('system') or 'unknown'}"
    yield f"Device: {recipe.device}; {machine.get('threads_in_force') or 'unknown'} threads"
    yield "Versions: " + ", ".join(f"{name} {of}" for name, of in recipe.versions.items())


# ---------------------------------------------------------------- memory of processes

ROWS = (
    ("before loading", lambda use: use.before_bytes),
    ("after loading", lambda use: use.loaded_bytes),
    ("peak of loading", lambda use: use.loading_peak_bytes),
    ("peak of a call", lambda use: use.call_peak_bytes),
)


def _row(title: str, sides: Sequence[ProcessUse | None], at: int) -> tuple[str, ...]:
    values = (None if each is None else ROWS[at][1](each) for each in sides)
    return title, *(UNKNOWN if each is None else bytes_text(each) for each in values)


def _rows(process: ProcessMemory) -> list[tuple[str, ...]]:
    sides = (process.baseline, process.saved)
    rows = [_row(title, sides, at) for at, (title, _) in enumerate(ROWS)]
    times = (UNKNOWN if each is None else seconds_text(each.loading_s) for each in sides)
    return [*rows, ("time of loading", *times)]


def _table(process: ProcessMemory) -> Iterator[str]:
    if process.baseline is not None or process.saved is not None:
        yield "| | baseline | saved |"
        yield "|---|---|---|"
        yield from (f"| {' | '.join(row)} |" for row in _rows(process))
    for side, reason in process.not_measured.items():
        yield ""
        yield f"{side}: not measured: {_line(reason)}"


def process_sections(process: ProcessMemory | None) -> Iterator[doc.Section]:
    """Yield the section on what processes take, where that was measured."""
    if process is None:
        return
    columns = [doc.Column("process"), *(doc.Column(x, "number") for x in (BASELINE, SAVED))]
    is_known = process.baseline is not None or process.saved is not None
    table = doc.Table(columns, _rows(process), is_sortable=False)
    blocks: list[doc.Block] = [table] if is_known else []
    reasons = [f"{side}: not measured: {why}" for side, why in process.not_measured.items()]
    if reasons:
        blocks.append(doc.Bullets(reasons))
    yield doc.Section("process", "Memory of the process", blocks, PROCESS_ABOUT)
