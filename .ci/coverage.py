"""Print how much of each package the tests run, and fail where it became less.

    python .ci/coverage.py COVERAGE.json          # of `pytest --cov=tinytorch --cov-branch`
    python .ci/coverage.py COVERAGE.json --write  # takes today's branch coverage as the floor

`coverage.json` beside this file holds the floors: branches in percent, by first-level package.
"""

import json
import sys
from collections import Counter
from pathlib import Path

FLOORS = Path(__file__).with_name("coverage.json")
SLACK = 1.0
"""So many points may be missing: some branches depend on the machine and its load."""


def coverage_by_package(report: Path) -> dict[str, dict[str, float]]:
    """Return the percentages of lines and branches that ran, by first-level package."""
    sums: dict[str, Counter[str]] = {}
    for name, file in json.loads(report.read_text("utf-8"))["files"].items():
        package = Path(name).parts[1]
        if not package.endswith(".py"):
            sums.setdefault(package, Counter()).update(
                {key: value for key, value in file["summary"].items() if isinstance(value, int)}
            )
    return {
        package: {
            "lines": 100 * total["covered_lines"] / total["num_statements"],
            "branches": 100 * total["covered_branches"] / total["num_branches"],
        }
        for package, total in sorted(sums.items())
    }


def main(report: str, *options: str) -> int:
    """Print the table; return 1 if the branch coverage of a package fell below its floor."""
    packages = coverage_by_package(Path(report))
    if "--write" in options:
        floors = {name: round(row["branches"], 1) for name, row in packages.items()}
        FLOORS.write_text(json.dumps(floors, indent=2) + "\n", "utf-8")
    floors = json.loads(FLOORS.read_text("utf-8"))
    fallen = []
    print(f"{'package':<14} {'lines':>7} {'branches':>9} {'floor':>7}")
    for name, row in packages.items():
        floor = floors.get(name, 0.0)
        print(f"{name:<14} {row['lines']:6.1f}% {row['branches']:8.1f}% {floor:6.1f}%")
        if row["branches"] < floor - SLACK:
            fallen.append(name)
    if fallen:
        print(f"the tests run fewer branches than before of: {', '.join(fallen)}", file=sys.stderr)
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
