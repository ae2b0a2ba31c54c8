"""The document of a distributed run: parts of the steps by rank, stragglers, collectives, path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tinytorch.measure.estimate import Estimate
from tinytorch.reporting import document as doc
from tinytorch.reporting.layers import share_cell
from tinytorch.reporting.quantities import (
    bytes_text,
    factor_text,
    percent_text,
    rate_text,
    ratio_text,
    seconds_text,
)
from tinytorch.scale.accounting import PARTS
from tinytorch.scale.ranks_result import Collective, RanksProfile
from tinytorch.scale.stragglers import FLOOR, Straggler

TITLES = {
    "compute": "compute",
    "hidden": "comm. hidden",
    "exposed": "comm. exposed",
    "waiting": "waiting",
    "input": "input",
    "host": "host",
}
ABOUT = {
    "compute": "forward, loss, backward and optimizer, while nothing is transferred",
    "hidden": "the same, while a collective is transferred",
    "exposed": "blocked by a transfer, from the arrival of its last rank",
    "waiting": "blocked until the last rank arrives",
    "input": "waiting for the next batch",
    "host": "the rest: the program between these",
}
BRIEF = 5
BROKEN = ("rank-died", "rank-missing", "rank-stalled", "rank-failed")
"""Codes of notes on ranks that did not end as they should; the first ones are more of a cause."""


def ranks_document(found: RanksProfile) -> doc.Document:
    """Return where the steps of all ranks spent their time, and who holds whom up."""
    facts = tuple(_facts(found))
    sections = [
        doc.Section("ranks", "Steps by rank", (_rank_table(found),), about=_about_parts()),
        _straggler_section(found),
        _collective_section(found),
        _layer_section(found),
        _path_section(found),
    ]
    shown = doc.Only(("terminal", "markdown"), (doc.Facts(facts),))
    steps = f"{found.steps} steps" if found.steps else "no steps that all have"
    return doc.Document(
        f"{found.world} ranks, {steps} ({found.backend or 'no backend'})",
        _banner(found, facts),
        (shown, *(each for each in sections if each is not None)),
        [str(each) for each in found.notes],
        raw=found.to_dict(),
        file_name="ranks.json",
        brief=(
            doc.Facts(facts),
            _rank_table(found),
            *((_collective_table(found.collectives[:BRIEF]),) if found.collectives else ()),
        ),
    )


def _about_parts() -> str:
    return "The parts add up to the step; " + "; ".join(
        f"{TITLES[part]}: {ABOUT[part]}" for part in PARTS
    )


def _banner(found: RanksProfile, facts: tuple[tuple[str, doc.Words], ...]) -> doc.Banner:
    broken = sorted(
        (each for each in found.notes if each.code in BROKEN),
        key=lambda each: BROKEN.index(each.code),
    )
    if not found.steps:
        return doc.Banner("no steps", "No step was recorded by all ranks.", facts, "warning")
    step = f"{seconds_text(found.step_s)} per step"
    if broken:
        return doc.Banner(f"incomplete, {step}", broken[0].words, facts, "warning")
    if not found.stragglers and found.is_inconclusive:
        words = f"Stragglers: inconclusive ({found.steps} steps are too few)."
        return doc.Banner(step, words, facts, "unknown")
    if not found.stragglers:
        return doc.Banner(step, "No rank holds the others up.", facts, "good")
    first = found.stragglers[0]
    return doc.Banner(step, f"{_who(first)} {_what(first)}.", facts, "bad")


def _who(straggler: Straggler) -> str:
    if straggler.cause == "link":
        sender, receiver = straggler.subject.split(">")
        return f"The link from rank {sender} to rank {receiver}"
    return f"Rank {straggler.rank}"


def _what(straggler: Straggler) -> str:
    return f"holds the others up by {_interval(straggler.excess)} of a step: {_cause(straggler)}"


def _cause(straggler: Straggler) -> str:
    if straggler.subject and straggler.cause == "compute":
        return f"compute in {straggler.subject}"
    return straggler.cause


def _interval(estimate: Estimate) -> str:
    low, high = estimate
    return f"{percent_text(estimate.value)} ({percent_text(low)} to {percent_text(high)})"


def _facts(found: RanksProfile) -> Iterator[tuple[str, str]]:
    for each in found.stragglers:
        name = f"link {each.subject}" if each.cause == "link" else f"rank {each.rank}"
        yield name, f"holds the others up by {_interval(each.excess)} of a step: {_cause(each)}"
    for gain in found.what_ifs:
        low, high = gain.speedup
        ends = f"({factor_text(low)} to {factor_text(high)})"
        yield f"without rank {gain.rank}", f"{factor_text(gain.speedup.value)} {ends}"
    if found.steps:
        rate = percent_text(found.false_alarm_rate)
        yield (
            "named",
            f"above {percent_text(FLOOR)} of a step; false alarms in at most {rate} of runs",
        )
        path = ", ".join(
            f"{_owner(each.rank)} {each.part} {percent_text(each.share)}" for each in found.path[:3]
        )
        if path:
            yield "critical path", path
    yield "overhead", _overhead(found)
    if found.clock_error_s:
        yield "clocks", f"agree within {seconds_text(found.clock_error_s)}"


def _owner(rank: int) -> str:
    return "all" if rank < 0 else f"rank {rank}"


def _overhead(found: RanksProfile) -> str:
    own = [each.own_share for each in found.ranks if each.own_share is not None]
    text = f"recorder's own time {percent_text(max(own))}" if own else "not measured"
    if found.overhead is None:
        return text
    low, high = found.overhead
    ends = f"({ratio_text(low)} to {ratio_text(high)}, n={found.overhead.n})"
    return f"{ratio_text(found.overhead.value)} {ends} in turns; {text}"


def _rank_table(found: RanksProfile) -> doc.Table:
    columns = [
        doc.Column("rank"),
        doc.Column("step", "number"),
        *(doc.Column(TITLES[part], "number", ABOUT[part]) for part in PARTS),
    ]
    rows: list[doc.Row | Sequence[doc.Cell | str]] = []
    for each in found.ranks:
        shares = [each.share(part) for part in PARTS]
        median = sorted(each.step_s)[len(each.step_s) // 2] if each.step_s else None
        cells = [doc.Cell(percent_text(share), share) for share in shares]
        rows.append((str(each.rank), doc.Cell(seconds_text(median), median), *cells))
    return doc.Table(columns, rows)


def _straggler_section(found: RanksProfile) -> doc.Section | None:
    if not found.stragglers:
        return None
    columns = [
        doc.Column("who"),
        doc.Column("cause"),
        doc.Column("where", "code"),
        doc.Column("of a step", "number"),
        doc.Column("interval"),
        doc.Column("without it", "number"),
    ]
    gains = {each.rank: each.speedup for each in found.what_ifs}
    rows: list[Sequence[doc.Cell | str]] = []
    for each in found.stragglers:
        is_link = each.cause == "link"
        gain = None if is_link else gains.get(each.rank)
        low, high = each.excess
        rows.append(
            (
                f"link {each.subject}" if is_link else f"rank {each.rank}",
                each.cause,
                "" if is_link else each.subject,
                doc.Cell(percent_text(each.excess.value), each.excess.value),
                f"{percent_text(low)} to {percent_text(high)}",
                doc.Cell(factor_text(gain.value if gain else None), gain.value if gain else None),
            )
        )
    about = (
        "Named is who works longer than the median of the others by more than "
        f"{percent_text(FLOOR)} of a step; there are false alarms in at most "
        f"{percent_text(found.false_alarm_rate)} of runs."
    )
    return doc.Section("stragglers", "Stragglers", (doc.Table(columns, rows),), about=about)


def _collective_section(found: RanksProfile) -> doc.Section | None:
    if not found.collectives:
        return None
    blocks: list[doc.Block] = [_collective_table(found.collectives)]
    if found.links:
        columns = [doc.Column("from"), doc.Column("to"), doc.Column("bandwidth", "number")]
        rows = [
            (str(each.sender), str(each.receiver), doc.Cell(rate_text(each.rate, "B/s"), each.rate))
            for each in found.links
        ]
        blocks.append(doc.Table(columns, rows, "Links between neighbours, one at a time"))
    about = (
        "A transfer counts from the arrival of its last rank, or the end of that before it. "
        "The ceiling is the same collective at the same size and on the same ranks, alone."
    )
    return doc.Section("collectives", "Collectives", blocks, about=about)


def _collective_table(collectives: Sequence[Collective]) -> doc.Table:
    columns = [
        doc.Column("collective", "code"),
        doc.Column("ranks", rank=3),
        doc.Column("size", "number"),
        doc.Column("per step", "number", rank=1),
        doc.Column("transfer", "number"),
        doc.Column("bandwidth", "number"),
        doc.Column("ceiling", "number", "the same alone, after the steps"),
        doc.Column("of it", "number", rank=2),
    ]
    rows: list[Sequence[doc.Cell | str]] = []
    for each in sorted(collectives, key=lambda one: -one.seconds * one.calls):
        share = None if each.ceiling is None else each.bandwidth / each.ceiling
        moves = each.nbytes > 0
        rows.append(
            (
                each.kind,
                ",".join(map(str, each.ranks)),
                doc.Cell(bytes_text(each.nbytes), each.nbytes),
                doc.Cell(f"{each.calls:.3g}", each.calls),
                doc.Cell(seconds_text(each.seconds), each.seconds),
                doc.Cell(rate_text(each.bandwidth if moves else None, "B/s"), each.bandwidth),
                doc.Cell(rate_text(each.ceiling, "B/s"), each.ceiling),
                doc.Cell(percent_text(share), share),
            )
        )
    return doc.Table(columns, rows)


def _layer_section(found: RanksProfile) -> doc.Section | None:
    if not found.layers:
        return None
    columns = [
        doc.Column("layer", "code"),
        *(doc.Column(f"rank {each.rank}", "number") for each in found.ranks[:8]),
        doc.Column("slowest over median", "number"),
    ]
    rows: list[Sequence[doc.Cell | str]] = [
        (
            each.path or "(model)",
            *(doc.Cell(seconds_text(value), value) for value in each.seconds[:8]),
            doc.Cell(ratio_text(each.imbalance), each.imbalance),
        )
        for each in found.layers
    ]
    about = (
        "Median time of the forward passes of a layer in a step; the backward pass is not split."
    )
    table = doc.Table(columns, rows)
    return doc.Section("layers", "Layers by rank", (table,), about=about, is_detail=True)


def _path_section(found: RanksProfile) -> doc.Section | None:
    if not found.path:
        return None
    columns = [doc.Column("who"), doc.Column("part"), doc.Column("of the steps", "bar")]
    rows = [(_owner(each.rank), each.part, share_cell(each.share)) for each in found.path]
    about = "What was waited for at every moment: nothing else makes the steps shorter."
    return doc.Section("path", "Critical path", (doc.Table(columns, rows),), about=about)
