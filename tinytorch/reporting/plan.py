"""A plan in the terminal: what changes, what it should bring, and what is left alone and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tinytorch.reporting.fitting_table import GAP, Column, FittingTable
from tinytorch.reporting.quantities import factor_text
from tinytorch.workloads.layer_groups import LayerGroup, StepGroup, group_layers
from tinytorch.workloads.plan import Gain, Plan

__all__ = ["gain_text", "render_plan", "settings_text", "skipped_lines"]

FEW_STEPS = 12
"""So many steps have a row each; of more, the same ones share a row."""
MOST_NAMES = 8
"""So many layers that a reason holds for are named, or groups of them."""
LEAST_WHY = 24
INDENT = "  "


def render_plan(plan: Plan, *, expand: bool = False) -> RenderableType:
    """Lay a plan out, top to bottom.

    Long plans have one row for layers that differ only in a number and to which the same is done
    for the same reason; `expand` gives each its own, and names all that are left alone.
    """
    sections: list[RenderableType] = [_title(plan), _headline(plan)]
    if not plan.is_empty:
        is_grouped = len(plan.steps) > FEW_STEPS and not expand
        rows = plan.step_groups if is_grouped else _one_by_one(plan)
        sections += _section("Steps", _Steps(rows))
        sections += _section("Predicted", _predictions(plan))
    if plan.skipped:
        sections += _section("Left alone", _list(_skipped(plan, expand=expand)))
    if plan.notes:
        sections += _section("Notes", _list(Text(note, "yellow") for note in plan.notes))
    return Group(*sections)


def _section(title: str, content: RenderableType) -> list[RenderableType]:
    return [Text(""), Text(title, style="bold"), content]


# ---------------------------------------------------------------- the head


def _title(plan: Plan) -> Text:
    settings = settings_text(plan)
    title = Text.assemble((f"Plan of {plan.transform}", "bold"))
    return title.append(f"  {settings}", "dim") if settings else title


def settings_text(plan: Plan) -> str:
    """Write the settings that a plan was made with: ``mode='dynamic', bits=8``."""
    return ", ".join(f"{name}={value!r}" for name, value in plan.settings.items() if _tells(value))


def _tells(setting: Any) -> bool:
    """Say whether a setting tells anything: None and empty lists do not."""
    return setting is not None and setting not in ((), [], {})


def _headline(plan: Plan) -> Text:
    if plan.is_empty:
        return Text("Nothing to do: no layer changes.", style="yellow")
    changed, left = len(plan.layers), len({each.layer for each in plan.skipped})
    words = ["1 layer changes" if changed == 1 else f"{changed:,} layers change"]
    if plan.layers == ("",):
        words = ["The model itself changes"]
    if left:
        words.append(f"{left:,} {'is' if left == 1 else 'are'} left alone")
    words += [
        f"predicted to be {factor_text(gain.value)} {better}"
        for gain, better in ((plan.shrinkage, "smaller"), (plan.speedup, "faster"))
        if gain is not None and gain.value > 1
    ]
    return Text(f"{', '.join(words)}.", style="green")


# ---------------------------------------------------------------- steps


@dataclass(frozen=True)
class _Steps:
    """What is done where, and why; that wraps, and is left out where there is no room for it."""

    rows: Sequence[StepGroup]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        labels = [_shown(row.layers) for row in self.rows]
        sizes = [len(row.layers) for row in self.rows]
        columns = [
            Column("layer", labels, justify="left"),
            Column("n", [str(size) if max(sizes) > 1 else "" for size in sizes], 1),
            Column("what", [row.what for row in self.rows], 0, "left", least=12),
        ]
        whys = list(dict.fromkeys(row.why for row in self.rows))
        is_shared = len(whys) == 1 and len(self.rows) > 1
        shown = [column for column in columns if not column.is_blank]
        room = options.max_width - sum(column.width + GAP for column in shown)
        if not is_shared and room >= LEAST_WHY:
            yield _with_whys(shown, [row.why for row in self.rows])
            return
        texts = [Text(label) for label in labels]
        yield FittingTable("layer", texts, columns[2:], label_least=20)
        if is_shared:
            yield Text(f"why: {whys[0]}", style="dim")


def _with_whys(columns: Sequence[Column], whys: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column.title, no_wrap=True, justify=column.justify)
    table.add_column("why", overflow="fold")
    for index, why in enumerate(whys):
        table.add_row(*(Text(column.cells[index]) for column in columns), Text(why))
    return table


def _one_by_one(plan: Plan) -> list[StepGroup]:
    return [
        StepGroup(LayerGroup(step.layer, (step.layer,)), step.what, step.why) for step in plan.steps
    ]


def _shown(layers: LayerGroup) -> str:
    return layers.name or "(the model itself)"


# ---------------------------------------------------------------- predictions


def _predictions(plan: Plan) -> Table:
    table = _grid(2)
    for name, gain in (("shrinkage", plan.shrinkage), ("speedup", plan.speedup)):
        text = (
            Text(f"not predicted: {plan.not_predicted[name]}", style="dim")
            if gain is None
            else Text.assemble((gain_text(gain), "bold"), f": {gain.basis}")
        )
        table.add_row(Text(f"{INDENT}{name}"), text)
    return table


def gain_text(gain: Gain) -> str:
    """Write how many times better something should become: ``1.80x (1.20x to 2.40x)``."""
    interval = f"{factor_text(gain.low)} to {factor_text(gain.high)}"
    return factor_text(gain.value) + (f" ({interval})" if gain.low < gain.high else "")


# ---------------------------------------------------------------- what is left alone


def skipped_lines(plan: Plan, *, expand: bool = False) -> Iterator[tuple[str, str]]:
    """Yield for each reason the layers that it holds for, and the reason."""
    for reason, layers in plan.skipped_by_reason.items():
        groups = tuple(LayerGroup(each, (each,)) for each in layers)
        if not expand:
            groups = group_layers(layers)
        names = [_shown(group) for group in groups]
        if len(names) > MOST_NAMES and not expand:
            more = sum(len(group) for group in groups[MOST_NAMES - 1 :])
            names[MOST_NAMES - 1 :] = [f"{more:,} more"]
        yield ", ".join(names), reason


def _skipped(plan: Plan, *, expand: bool) -> Iterator[Text]:
    for names, reason in skipped_lines(plan, expand=expand):
        yield Text.assemble(names, (f": {reason}", "dim"))


def _list(lines: Iterable[Text]) -> Table:
    """Lay lines out below each other; what does not fit goes on below the text."""
    table = _grid(1)
    for line in lines:
        table.add_row(Text(f"{INDENT}-"), line)
    return table


def _grid(gap: int) -> Table:
    table = Table.grid(padding=(0, gap, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table
