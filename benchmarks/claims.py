"""Is what `optimize` claims what a user's own stopwatch shows?

    python benchmarks/claims.py [--device cpu | cuda] [--only CASE ...] [--budget SECONDS]
                                [--json FILE]

For each model, the command `tinytorch optimize ... --save` runs in a process of its own. What it
saved is loaded in nine fresh processes and timed there by plain_loop.py, which uses nothing of our
measuring code. A claim holds where the 96% interval of that loop overlaps the claimed interval,
widened by 5%, and the claimed one reaches no farther than 8% to either side. Fifteen models, eight
of them on a CPU; at least 14 are to hold. Needs torch, transformers and scikit-learn, and
torchvision for CUDA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
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
PROCESSES = 9
"""Between the second smallest and the second largest of nine values lies the median with 96%."""
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
    ratios: tuple[float, ...] = ()
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
    print(f"budget {options.budget:g} s, {PROCESSES} processes of the plain loop each\n")
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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was found")
    return parser.parse_args()


def _claim(case: str, folder: Path, options: argparse.Namespace) -> Claim:
    """Optimize one model and time what was saved."""
    started = perf_counter()
    try:
        claim = _optimized(case, folder, options.budget)
        if claim.claimed is not None:
            ratios = tuple(_ratios(case, folder, PROCESSES, claim))
            claim = Claim(**{**vars(claim), "found": _interval(ratios), "ratios": ratios})
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:]
        claim = Claim(case, case, "", failure="".join(last) or f"exit code {error.returncode}")
    return Claim(**{**vars(claim), "seconds": perf_counter() - started})


def _optimized(case: str, folder: Path, budget_s: float) -> Claim:
    """Run `tinytorch optimize`, as a user would, and return what it claims."""
    target = f"{HERE / 'claim_cases.py'}:{case}"
    command = ["-m", "tinytorch", "optimize", target, "--save", str(folder), "--no-store", "--json"]
    output = _run([*command, "--budget", str(budget_s)])
    found = json.loads(output)["optimization"]
    name, stack = found["name"], found["recommended"]
    if stack is None:
        return Claim(case, name, "")
    known = [*found["confirmations"], *found["attempts"]]
    best = next(each for each in known if " + ".join(each["stack"]) == stack)
    compared = best["comparison"]
    low, high = sorted((1 / compared["time_ratio_low"], 1 / compared["time_ratio_high"]))
    claimed = Interval(1 / compared["time_ratio"], low, high)
    return Claim(
        case,
        name,
        stack,
        claimed,
        confirmed_on=best["confirmed_on"],
        changes_process=bool(best["changes_process"]),
    )


def _ratios(case: str, folder: Path, processes: int, claim: Claim) -> Iterator[float]:
    """Yield baseline over candidate, one value per fresh process, or pair of them."""
    sides = ("baseline", "candidate")
    for number in range(processes):
        if claim.changes_process:  # of whichever side is called: each gets a process of its own
            order = sides if number % 2 else sides[::-1]
            alone = {side: _loop(case, folder, side)[side] for side in order}
            yield statistics.median(alone["baseline"]) / statistics.median(alone["candidate"])
        else:
            both = _loop(case, folder)
            pairs = zip(both["baseline"], both["candidate"], strict=True)
            yield statistics.median(one / other for one, other in pairs)


def _loop(case: str, folder: Path, *side: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = json.loads(
        _run([str(HERE / "plain_loop.py"), case, str(folder), *side]).splitlines()[-1]
    )
    return found


def _interval(ratios: tuple[float, ...]) -> Interval:
    """Return the median over processes with its 96% interval, which asks nothing of their noise."""
    ordered = sorted(ratios)
    return Interval(statistics.median(ordered), ordered[1], ordered[-2])


def _run(arguments: list[str]) -> str:
    """Run Python in a fresh process and return what it printed; raise unless it ends well."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3: nothing is shown for certain, which is an answer
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
