"""Measure what `import tinytorch` adds to Python with NumPy: fresh processes, in turn.

python benchmarks/import_time.py
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

ROUNDS = 25
BARE = "import numpy"
OURS = "import numpy, tinytorch; tinytorch.Tensor"


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    for code in (BARE, OURS):
        seconds(code)  # compile to bytecode, fill the file cache
    extra = sorted(seconds(OURS) - seconds(BARE) for _ in range(ROUNDS))
    # The 8th and 18th of 25 differences enclose the median with 95.7%, for any distribution.
    print(
        f"import tinytorch adds {np.median(extra) * 1e3:.0f} ms to `{BARE}` "
        f"(96% interval {extra[7] * 1e3:.0f} to {extra[17] * 1e3:.0f}, {ROUNDS} pairs)"
    )


if __name__ == "__main__":
    main()
