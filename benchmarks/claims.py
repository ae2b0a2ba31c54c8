"""Is what `optimize` claims what a user's own stopwatch shows?

    python benchmarks/claims.py [--device cpu | cuda] [--only CASE ...] [--budget SECONDS]
                                [--processes N] [--together N] [--json FILE]

For each model, the command `tinytorch optimize ... --save` runs in a process of its own. What it
saved is loaded in fresh processes, nine by default, and timed there by plain_loop.py, which uses
nothing of our measuring code; `--together` lets N of them load at once, and they are timed one
after the other. A claim holds where the interval of that loop (96% or more) overlaps the claimed
interval, widened by 5%, and the claimed one reaches no farther than 8% to either side. Fifteen
models, eight of them on a CPU; at least 14 are to hold. Needs torch, transformers and scikit-learn,
and torchvision for CUDA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

HERE = Path(__file__).resolve().parent
CASES = {
    "cpu": (
        "zoo_gpt",
        "gpt2",
        "bert",
        "vit",
        "resnet50",
        "lstm",
        "hand_written_attention",
        "digits_cnn",
    ),
    "cuda": (
        "cuda_efficientnet",
        "cuda_resnet18",
        "cuda_swin",
        "cuda_unet",
        "cuda_lstm",
        "cuda_gpt2",
        "cuda_llama_text",
    ),
}
"""Device -> factories in claim_cases.py."""
WIDENED, WIDEST = 1.05, 1.08
SIDES = ("baseline", "candidate")
PROCESSES, FEWEST_PROCESSES = 9, 6
"""Between the second smallest and the second largest of nine values lies the median with 96%, and
between the smallest and the largest of six with 97%."""
COLUMNS = ("model", "by", "claimed", "plain loop", "confirmed on", "verdict")


@dataclass(frozen=True)
class Interval:
    """A speedup and the ends of its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f}x to {self.high:.2f}x)"


@dataclass(frozen=True)
class Claim:
    """What `optimize` said about one model, and what the plain loop found."""

    case: str
    name: str
    stack: str
    claimed: Interval | None = None
    found: Interval | None = None
    confirmed_on: str = ""
    changes_process: bool = False
    claimed_s: tuple[float, float] | None = None
    """Seconds per call of baseline and candidate when the claim was made, and in each process of
    the plain loop: which of them drifts."""
    found_s: tuple[tuple[float, float], ...] = ()
    ratios: tuple[float, ...] = ()
    tried: tuple[tuple[str, str, str, float], ...] = ()
    """Stack, outcome, reason and seconds of each attempt."""
    seconds: float = 0.0
    failure: str = ""

    @property
    def is_sharp(self) -> bool:
        """Whether the claimed interval reaches at most 8% to either side."""
        one = self.claimed
        return bool(one and one.high <= one.value * WIDEST and one.value <= one.low * WIDEST)

    @property
    def is_found(self) -> bool:
        """Whether the interval of the plain loop overlaps the claimed one, widened by 5%."""
        one, other = self.claimed, self.found
        if one is None or other is None:
            return False
        return other.high >= one.low / WIDENED and other.low <= one.high * WIDENED

    @property
    def verdict(self) -> str:
        if self.failure:
            return f"failed: {self.failure}"
        if self.claimed is None:
            return "no claim: nothing recommended"
        if not self.is_found:
            return "not found"
        return "holds" if self.is_sharp else "too wide"


def main() -> int:
    options = _options()
    cases = options.only or CASES[options.device]
    versions = _versions()
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    print(f"budget {options.budget:g} s, {options.processes} processes of the plain loop each\n")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    claims = []
    with tempfile.TemporaryDirectory(prefix="claims-") as scratch:
        for case in cases:
            claim = _claim(case, Path(scratch) / case, options)
            cells = (
                claim.name,
                claim.stack or "-",
                claim.claimed or "-",
                claim.found or "-",
                claim.confirmed_on or "-",
                claim.verdict,
            )
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            claims.append(claim)
            if options.json:
                kept = [asdict(each) | {"verdict": each.verdict} for each in claims]
                options.json.write_text(
                    json.dumps({"versions": versions, "claims": kept}, indent=1)
                )
    holding = sum(each.verdict == "holds" for each in claims)
    print(f"\n{holding} of {len(claims)} claims hold")
    return 0 if len(claims) - holding <= 1 else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=CASES, default="cpu")
    known = [case for cases in CASES.values() for case in cases]
    parser.add_argument("--only", nargs="+", choices=known, metavar="CASE")
    parser.add_argument("--budget", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--processes", type=int, default=PROCESSES, metavar="N")
    parser.add_argument(
        "--together", type=int, default=1, metavar="N", help="processes that load at once"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was found")
    options = parser.parse_args()
    if options.processes < FEWEST_PROCESSES:
        parser.error(f"--processes: at least {FEWEST_PROCESSES}; fewer have no interval of 95%")
    return options


def _claim(case: str, folder: Path, options: argparse.Namespace) -> Claim:
    """Optimize one model and time what was saved."""
    started = perf_counter()
    try:
        claim = _optimized(case, folder, options.budget)
        if claim.claimed is not None:
            found = list(_found(case, folder, options, claim))
            ratios = tuple(ratio for ratio, _ in found)
            seconds = tuple(each for _, each in found)
            claim = replace(claim, found=_interval(ratios), ratios=ratios, found_s=seconds)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:]
        claim = Claim(case, case, "", failure="".join(last) or f"exit code {error.returncode}")
    return replace(claim, seconds=perf_counter() - started)


def _optimized(case: str, folder: Path, budget_s: float) -> Claim:
    """Run `tinytorch optimize`, as a user would, and return what it claims."""
    target = f"{HERE / 'claim_cases.py'}:{case}"
    command = ["-m", "tinytorch", "optimize", target, "--save", str(folder), "--no-store", "--json"]
    output = _run([*command, "--budget", str(budget_s)])
    found = json.loads(output)["optimization"]
    name, stack = found["name"], found["recommended"]
    tried = tuple(
        (" + ".join(each["stack"]), each["outcome"], str(each["reason"]), each["seconds"])
        for each in found["attempts"]
    )
    if stack is None:
        return Claim(case, name, "", tried=tried)
    known = [*found["confirmations"], *found["attempts"]]
    best = next(each for each in known if " + ".join(each["stack"]) == stack)
    compared = best["comparison"]
    taken = {
        side: statistics.median(x for one in compared["rounds"] for x in one[side])
        for side in SIDES
    }
    low, high = sorted((1 / compared["time_ratio_low"], 1 / compared["time_ratio_high"]))
    claimed = Interval(1 / compared["time_ratio"], low, high)
    return Claim(
        case,
        name,
        stack,
        claimed,
        confirmed_on=best["confirmed_on"],
        changes_process=bool(best["changes_process"]),
        claimed_s=(taken["baseline"], taken["candidate"]),
        tried=tried,
    )


def _found(
    case: str, folder: Path, options: argparse.Namespace, claim: Claim
) -> Iterator[tuple[float, tuple[float, float]]]:
    """Yield baseline over candidate and the seconds of both, for each fresh process or pair."""
    if claim.changes_process:  # of whichever side is called: each gets a process of its own
        orders = [SIDES if number % 2 else SIDES[::-1] for number in range(options.processes)]
        alone_in_one = [(side,) for order in orders for side in order]
        found = _loops(case, folder, alone_in_one, options.together)
        for one, other in zip(found, found, strict=True):  # the first two, the next two, ...
            alone = one | other
            both = statistics.median(alone["baseline"]), statistics.median(alone["candidate"])
            yield both[0] / both[1], both
    else:
        for both_of in _loops(case, folder, [()] * options.processes, options.together):
            pairs = zip(both_of["baseline"], both_of["candidate"], strict=True)
            ratio = statistics.median(one / other for one, other in pairs)
            medians = [statistics.median(both_of[side]) for side in SIDES]
            yield ratio, (medians[0], medians[1])


def _loops(
    case: str, folder: Path, sides: list[tuple[str, ...]], together: int
) -> Iterator[dict[str, list[float]]]:
    """Yield what fresh processes measured: `together` load at once, one at a time is timed."""
    for start in range(0, len(sides), together):
        loops = [
            subprocess.Popen(
                [sys.executable, str(HERE / "plain_loop.py"), case, str(folder), *side],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for side in sides[start : start + together]
        ]
        try:
            for loop in loops:  # until all are quiet
                while (line := loop.stdout.readline()) and line.strip() != "ready":
                    pass
            for loop in loops:
                output, errors = loop.communicate("\n")
                if loop.returncode:
                    raise subprocess.CalledProcessError(loop.returncode, loop.args, output, errors)
                yield json.loads(output.splitlines()[-1])
        finally:
            for loop in loops:
                loop.kill()


def _interval(ratios: tuple[float, ...]) -> Interval:
    """Return the median over processes with its interval, which asks nothing of their noise."""
    ordered = sorted(ratios)
    outside = 1 if len(ordered) >= PROCESSES else 0
    return Interval(statistics.median(ordered), ordered[outside], ordered[-1 - outside])


def _run(arguments: list[str]) -> str:
    """Run Python in a fresh process and return what it printed; raise unless it ends well."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode not in (0, 3, 4):  # 3 and 4: nothing is shown, which is an answer
        raise subprocess.CalledProcessError(done.returncode, arguments, stderr=done.stderr)
    return done.stdout


def _versions() -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": sys.version.split()[0]}
    for name in ("tinytorch-perf", "numpy", "numba", "torch", "torchvision", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


if __name__ == "__main__":
    sys.exit(main())
