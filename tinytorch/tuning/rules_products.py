"""Rules about products (matmuls, convolutions, attention): fewer bytes, bits or products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tinytorch.measure.roofline import amdahl
from tinytorch.profiling.profile import Profile
from tinytorch.transforms.plan import Gain
from tinytorch.tuning.advice import Advice, billions, millions, suggest
from tinytorch.tuning.catalog import Entry
from tinytorch.tuning.facts import (
    LEAST_GAIN,
    LITTLE,
    SPREAD,
    Change,
    Facts,
    Roof,
    Work,
    counted,
    gain_of,
    missing_rate,
    named_layers,
    roof_of,
    share_of,
)

ASSUMED = "each product keeps its share of the roofline"


@dataclass(frozen=True)
class Numbers:
    """A number format: bits of weights and activations, and the dtype of products.

    A `dtype` of "" keeps the present one. `everywhere` includes operations other than products.
    What changes may take `slower` times longer: a choice, which benchmarks/advice_calibration.py
    compares with measurements.
    """

    weight_bits: int
    dtype: str = ""
    activation_bits: int = 32
    everywhere: bool = False
    slower: float = 1.5


# fmt: off
NUMBERS: dict[str, Numbers] = {
    "int8-weights":    Numbers(8),
    "int4-weights":    Numbers(4),
    "int8-dynamic":    Numbers(8, "int8", slower=2.0),
    "int8-static":     Numbers(8, "int8", slower=2.0),
    "tf32":            Numbers(32, "tf32", slower=1.1),
    "bfloat16-layers": Numbers(16, "bfloat16", slower=1.6),
    "bfloat16":        Numbers(16, "bfloat16", activation_bits=16, everywhere=True),
}
# fmt: on
"""Entry -> its number format."""
MEMORY_BOUND = ("int8-weights", "int4-weights", "bfloat16")
COMPUTE_BOUND = ("tf32", "int8-dynamic", "int8-static", "bfloat16-layers", "bfloat16")
MACS_LEFT = 0.5
FEWER = ("fewer-channels", "low-rank")
FEWER_SLOWER = 1.1
"""Sizes that suit the kernels less may cost more than leaving products out saves: a choice."""


def memory_bound_products(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Weights in fewer bits, where products are memory-bound."""
    roof = roof_of(profile)
    weighted = [each for each in facts.products if each.weight is not None]
    bound = [each for each in weighted if roof and roof.is_memory_bound(each)]
    share = share_of(bound)
    if roof is None or share < LITTLE:
        return
    weights = sum(each.weight.nbytes for each in bound if each.weight)
    moved = sum(each.record.bytes_moved for each in bound)
    evidence = (
        f"{share:.0%} of a call is in {counted(len(bound), 'memory-bound product')} in "
        f"{named_layers(bound)}",
        f"{millions(weights)} of the {millions(moved)} MB that they move are weights, each used "
        f"{_rows(bound)} per read",
        f"{billions(roof.bandwidth)} GB/s at most for a working set of "
        f"{millions(profile.working_set_bytes)} MB",
    )
    for entry in facts.entries(*MEMORY_BOUND):
        yield from _with_other_numbers(profile, facts, roof, entry, evidence=evidence)


def compute_bound_products(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Products in fewer bits, where they are compute-bound."""
    roof = roof_of(profile)
    bound = [x for x in facts.products if x.weight and not (roof and roof.is_memory_bound(x))]
    share = share_of(bound)
    if share < LITTLE:
        return
    macs = sum(each.record.macs for each in bound)
    seconds = sum(each.seconds for each in bound)
    what = "compute-bound product" if roof else "product"
    evidence = [
        f"{share:.0%} of a call is in {counted(len(bound), what)} in {named_layers(bound)}",
        f"{billions(2 * macs / seconds)} GFLOP/s for {millions(macs)} M multiply-accumulates"
        f"{_of_peak(roof, bound)}",
    ]
    # An entry that the other rule advises is not advised twice.
    is_said = {x.entry for x in memory_bound_products(profile, facts)}
    for entry in facts.entries(*COMPUTE_BOUND):
        if entry.name not in is_said:
            yield from _with_other_numbers(
                profile,
                facts,
                roof,
                entry,
                evidence=(*evidence, *_rates(roof, entry)),
            )


def fewer_products(profile: Profile, facts: Facts) -> Iterable[Advice]:
    """Fewer multiply-accumulates, where these take most of the time."""
    weighted = [each for each in facts.products if each.weight is not None]
    share = share_of(weighted)
    if share < 0.5:
        return
    macs = sum(each.record.macs for each in weighted)
    evidence = (
        f"{share:.0%} of a call is in {counted(len(weighted), 'product')} with weights: "
        f"{millions(macs)} M multiply-accumulates",
    )
    for entry in facts.entries(*FEWER):
        yield suggest(
            title="Compute fewer products",
            evidence=(*evidence, at_most(share)),
            entry=entry.name,
            share=share,
            **_fewer(entry, facts, weighted),  # type: ignore[arg-type]
        )
    for entry in facts.entries("fewer-layers"):
        yield from _without_layers(profile, facts, entry)


# ---------------------------------------------------------------- predictions


def _with_other_numbers(
    profile: Profile,
    facts: Facts,
    roof: Roof | None,
    entry: Entry,
    *,
    evidence: Sequence[str],
) -> Iterable[Advice]:
    numbers = NUMBERS[entry.name]
    candidates = facts.work if numbers.everywhere else [x for x in facts.products if x.weight]
    if numbers.dtype == "tf32":  # convolutions choose by themselves
        candidates = [x for x in candidates if x.record.dtype == "float32" and not _is_conv(x)]
    changed = facts.changed_by(entry.name, candidates)
    share = share_of(changed)
    if share < LITTLE:  # a plan leaves most of them alone
        return
    reason = missing_rate(profile, numbers.dtype or profile.dtype)
    gain: Gain | None = None
    if roof is not None and not reason:
        basis = f"{ASSUMED}; {_bytes_basis(numbers)}"
        if numbers.dtype:
            peak = roof.ceilings.peak_flops(numbers.dtype) or 0.0
            basis += f"; {numbers.dtype} products at the measured {billions(peak)} G/s, at best"
        basis += "; no cost of packing, at best"
        gain = gain_of((_changed(x, roof, numbers) for x in changed), basis)
        if gain.value < LEAST_GAIN:  # the machine is no faster in these numbers
            return
    yield suggest(
        title=TITLES[entry.name],
        evidence=(*evidence, at_most(share)),
        entry=entry.name,
        predicted=gain,
        not_predicted=reason,
        share=share,
    )


def _changed(work: Work, roof: Roof, numbers: Numbers) -> Change:
    weight = work.weight.nbytes if work.weight else 0
    # What is in fewer bits already does not grow.
    width = max(1, round(8 * weight / work.weight.size)) if work.weight else 32
    rest = work.record.bytes_moved - weight
    moved = weight * min(1.0, numbers.weight_bits / width)
    moved += rest * min(1.0, numbers.activation_bits / 32)
    dtype = numbers.dtype if work.is_product else ""
    now, then = roof.seconds(work), roof.seconds(work, moved=moved, dtype=dtype)
    change = replace(Change.under(work, now, then), most=numbers.slower)
    # Products get another kernel, which may come nearer to the roof; the rest keeps its own.
    return change if work.is_product else replace(change, least=change.left)


def _is_conv(work: Work) -> bool:
    return "convolution" in work.record.kind


def _fewer(entry: Entry, facts: Facts, weighted: Sequence[Work]) -> dict[str, object]:
    """Return the gain of half the products; only a plan knows how many a low rank leaves."""
    if entry.name == "low-rank":
        return {"not_predicted": "the remaining multiply-accumulates depend on the ranks"}
    basis = (
        f"{MACS_LEFT:.0%} of the multiply-accumulates of products with weights remain, at the same "
        "rate; at best everything between them shrinks as much"
    )
    changes = [Change(each, MACS_LEFT, MACS_LEFT, FEWER_SLOWER) for each in weighted]
    changes += [Change(each, 1.0, MACS_LEFT) for each in facts.small]
    return {"predicted": gain_of(changes, basis)}


def _without_layers(profile: Profile, facts: Facts, entry: Entry) -> Iterable[Advice]:
    """Remove the layers that a plan names; removed layers take no time."""
    known = {layer.path: layer for layer in profile.layers}
    removed = [
        known[path]
        for plan in facts.plans.get(entry.name, ())
        for path in plan.layers
        if path in known
    ]
    share = min(1.0, sum(max(0.0, profile.share(layer)) for layer in removed))
    if not LITTLE <= share < 1:
        return
    names = ", ".join(repr(layer.path) for layer in removed)
    speedup = amdahl(share)
    yield suggest(
        title="Remove whole layers",
        evidence=(f"{share:.1%} of a call is in {names}",),
        entry=entry.name,
        predicted=Gain(
            speedup,
            1 / SPREAD,
            speedup * SPREAD,
            basis="Amdahl's law: removed layers take no time",
        ),
        share=share,
    )


# ---------------------------------------------------------------- words

TITLES = {
    "int8-weights": "Store the weights in 8 bits",
    "int4-weights": "Store the weights in 4 bits",
    "int8-dynamic": "Quantize to int8 (dynamic)",
    "int8-static": "Quantize to int8 (static, calibrated)",
    "tf32": "Use TF32 for float32 matmuls",
    "bfloat16-layers": "Compute products in bfloat16",
    "bfloat16": "Convert the model to bfloat16",
}


def at_most(share: float) -> str:
    """Return the bound of the speedup by Amdahl's law for a share of a call."""
    if share >= 1 - 1e-9:
        return "100% of a call: Amdahl's law sets no bound"
    return f"{amdahl(share):.2f}x speedup at most (Amdahl's law)"


def _rows(bound: Sequence[Work]) -> str:
    rows = sorted({each.rows for each in bound})
    times = f"{rows[0]:,}" if rows[0] == rows[-1] else f"{rows[0]:,} to {rows[-1]:,}"
    return "once" if rows[-1] == 1 else f"{times} times"


def _of_peak(roof: Roof | None, bound: Sequence[Work]) -> str:
    """Describe the achieved share of the machine's peak, if all products have one dtype."""
    dtypes = {each.record.dtype for each in bound}
    peak = roof.ceilings.peak_flops(next(iter(dtypes))) if roof and len(dtypes) == 1 else None
    if peak is None:
        return ""
    reached = sum(2 * x.record.macs for x in bound) / sum(x.seconds for x in bound)
    return f", {reached / peak:.0%} of the measured {next(iter(dtypes))} peak"


def _rates(roof: Roof | None, entry: Entry) -> Iterable[str]:
    dtype = NUMBERS[entry.name].dtype
    peak = roof.ceilings.peak_flops(dtype) if roof else None
    if peak is not None:
        yield f"{peak / 1e9:.4g} G operations/s measured for {dtype}"


def _bytes_basis(numbers: Numbers) -> str:
    if numbers.weight_bits == 32:
        return "unchanged bytes"
    rest = f", the rest in {numbers.activation_bits}" if numbers.activation_bits != 32 else ""
    return f"weights in {numbers.weight_bits} bits{rest}, without scales"
