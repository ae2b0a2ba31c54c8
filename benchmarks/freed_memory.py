"""Compare training steps with and without `keep_freed_memory`, in two processes that take turns.

python benchmarks/freed_memory.py
"""

from __future__ import annotations

from core_vs_torch import CASES, build_ours, check_equal
from interleaving import REPLICATES, compare, side, summarise


def main() -> None:
    print("| case | kept | given back | ratio | 96% interval | pairs |")
    print("|---|---|---|---|---|---|")
    with side(build_ours) as kept, side(build_ours) as given_back:
        for case in CASES:
            if not case.training:
                continue
            replicates = []
            for seed in range(REPLICATES):
                kept.start(case, seed, True, "numpy")
                given_back.start(case, seed, False, "numpy")
                check_equal(kept.built(), given_back.built())
                replicates.append(list(compare(kept, given_back)))
            ratio = summarise(replicates)
            low, high = ratio.interval
            print(
                f"| {case.name} | {ratio.candidate_s * 1e3:.3f} ms | {ratio.baseline_s * 1e3:.3f} "
                f"ms | {ratio.median:.2f} | {low:.2f} to {high:.2f} | {ratio.pairs} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
