"""Do the tests notice small changes of the code? A fixed set of mutants, before and after moves.

    python benchmarks/mutants.py --run [--only PREFIX | --named | --survivors STATES.json]
                                       [--sample N] [--json FILE] [--against BASELINE.json]
    python benchmarks/mutants.py --make [--coverage FOLDER]      # a new set, needs `coverage`
    python benchmarks/mutants.py --widen STATES.json --coverage FOLDER
    python benchmarks/mutants.py --more --coverage FOLDER        # where a group has too few

mutants.json holds the set; code_points.py says how a mutant finds its code wherever it stands now.
Each mutant has the tests that ran its line when the set was made, those near its module and quick
ones first; where their file is gone they are found by name. A mutant is

    killed     a test fails, or the run crashes or hangs
    survived   all of its tests pass
    gone       its code is not there any more: the definition or the expression changed
    ambiguous  several definitions fit, and the module named in the set is none of them
    invalid    none of its tests is there and passes without a change

`--against benchmarks/mutants_baseline.json` lists what was killed then and survives now and exits
with 1 if there is any; the baseline is what `--json` wrote when the set was made. `--only` takes
the beginning of a module's name as of then (``comparison.accuracy``) or an id, `--named` the groups
with `MANY` each, whose arithmetic decides what we claim, `--sample` a part of them, drawn by the
seed of the set. mutants_equivalent.json says of mutants why nothing tells them from the code; they
are no part of the score. `--widen` tries more and slower tests on those that survived, and puts
what kills one into the set.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from code_points import ROOT, Change, Code, Definition, Point, changed_module, changes
from forked_tests import ENDED, ChangedModules, Job, TestIndex, check_unchanged, preload, run_jobs

HERE = Path(__file__).resolve().parent
SET = HERE / "mutants.json"
EQUIVALENT = HERE / "mutants_equivalent.json"
SEED = 20260
KILLED, SURVIVED = "killed", "survived"
GONE, AMBIGUOUS, INVALID = "gone", "ambiguous", "invalid"
STATES = (KILLED, SURVIVED, GONE, AMBIGUOUS, INVALID)
LIMIT_S, LIMIT_PER_SECOND = 25.0, 10.0

ENOUGH_NEAR = 8
"""So many tests of the module's own file are taken in any case: fixtures may run a line earlier."""


@dataclass(frozen=True)
class Bounds:
    """How large the selection of one mutant may be: test functions, their files and seconds."""

    tests: int
    files: int
    seconds: float


QUICK, WIDE = Bounds(20, 4, 1.5), Bounds(40, 10, 15.0)
MANY, SOME = 33, 9
GROUPS: dict[tuple[str, ...], int] = {
    ("measure.samples",): MANY,
    ("measure.roofline", "measure.scaling"): MANY,  # the law of Amdahl
    ("measure.estimate", "measure.interleaving"): MANY,  # and interim analyses
    ("comparison.sequential",): MANY,
    ("comparison.accuracy",): 2 * MANY,  # and paired proportions
    ("formats.affine",): MANY,
    ("formats.ranges",): MANY,
    ("core.kv_cache",): MANY,
    ("models.costs",): MANY,
    ("models.contractions",): MANY,
    ("tuning.ranking",): MANY,  # and the front
    ("tuning.attempt",): MANY,  # limits
    ("records.store",): MANY,
    ("records.gate_result",): MANY,
    ("comparison.compare", "comparison.resources"): MANY,
    ("perf.quantization",): SOME,
    ("perf.compression",): SOME,
    ("perf.acceleration",): SOME,
    ("perf.memoization",): SOME,
    ("perf.profiling",): SOME,
    ("perf.benchmarking",): SOME,
    ("tuning.search", "tuning.trying"): SOME,
    ("tuning.companions", "tuning.catalog"): SOME,
    ("tuning.rules_",): SOME,
    ("competition.judging",): SOME,
    ("competition.boards",): SOME,
    ("competition.runs",): SOME,
    ("records",): SOME,
    ("reporting.quantities", "reporting.fitting_table", "reporting.profile"): SOME,
    ("workloads",): SOME,
    ("core.operations",): SOME,
    ("core.layers", "core.attention", "core.transformers", "core.spatial"): SOME,
    ("core.backends.numpy",): SOME,
    ("core.backends.reference",): SOME,
    ("adapters.core",): SOME,
    ("adapters.pytorch_recorder",): SOME,
    ("measure",): SOME,
    ("comparison",): SOME,
}
"""Beginnings of modules' names -> mutants. A module belongs to the first that fits."""
TABLES = ("tinytorch.models.costs",)
"""Modules whose tables are changed, too; their lines run when they are imported."""


@dataclass(frozen=True)
class Mutant:
    """A change of the code and the tests that judge it."""

    id: str
    operator: str
    point: Point
    tests: tuple[str, ...]
    seconds: float

    @property
    def words(self) -> str:
        """Return the mutant on one line."""
        point = self.point
        changed = f"{point.original}  ->  {point.replacement}".replace("\n", " ")
        return f"{self.id} {point.module.partition('.')[2]}:{point.definition}: {changed}"


def main() -> int:
    """Make the set, or run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--coverage", type=Path, metavar="FOLDER", help="keep or reuse its data")
    parser.add_argument("--only", default="", metavar="PREFIX")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--against", type=Path, metavar="FILE")
    parser.add_argument("--widen", type=Path, metavar="FILE")
    parser.add_argument("--more", action="store_true")
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--survivors", type=Path, metavar="FILE")
    parser.add_argument("--sample", type=int, metavar="N")
    options = parser.parse_args()
    if options.make:
        make(options.coverage)
    if options.more:
        add_more(Covered(options.coverage))
    if options.widen:
        widen(json.loads(options.widen.read_text("utf-8")), Covered(options.coverage))
    if options.run or options.against:
        return run(options)
    return 0


# --- The set ---------------------------------------------------------------------------------


def read_set(file: Path = SET) -> list[Mutant]:
    """Return the mutants of the set."""
    kept = json.loads(file.read_text("utf-8"))
    names = [f"{path}::{name}" for path, some in kept["tests"].items() for name in some]
    return [
        Mutant(name, operator, Point(*point), tuple(names[each] for each in tests), seconds)
        for name, operator, *point, tests, seconds in kept["mutants"]
    ]


def write_set(mutants: Sequence[Mutant], file: Path = SET) -> None:
    """Write a line per mutant; tests are numbered in the order of the table above them."""
    table: dict[str, list[str]] = {}
    for test in sorted({test for mutant in mutants for test in mutant.tests}):
        path, _, name = test.partition("::")
        table.setdefault(path, []).append(name)
    numbers = {f"{path}::{name}": None for path, names in table.items() for name in names}
    order = {test: number for number, test in enumerate(numbers)}
    fields = "id, operator, definition, module, original, ordinal, replacement, tests, seconds"
    rows = [
        [
            each.id,
            each.operator,
            each.point.definition,
            each.point.module,
            each.point.original,
            each.point.ordinal,
            each.point.replacement,
            [order[test] for test in each.tests],
            each.seconds,
        ]
        for each in mutants
    ]
    lines = [f'{{"fields": {json.dumps(fields)},', '"tests": {']
    lines += [",\n".join(f"{json.dumps(path)}: {json.dumps(some)}" for path, some in table.items())]
    lines += ["},", '"mutants": [', ",\n".join(map(json.dumps, rows)), "]}"]
    file.write_text("\n".join(lines) + "\n", "utf-8")


def make(folder: Path | None) -> None:
    """Run the tests under coverage where that is not done yet, choose mutants, write the set."""
    if folder is None or not folder.exists():
        with tempfile.TemporaryDirectory() as temporary:
            cover(folder or Path(temporary))
            made = choose(Covered(folder or Path(temporary)))
    else:
        made = choose(Covered(folder))
    write_set(made)
    print(f"{len(made)} mutants, {len({test for each in made for test in each.tests})} tests")


def cover(folder: Path) -> None:
    """Run all tests but those of pages, commands and compiled kernels, with line_coverage.py."""
    folder.mkdir(parents=True, exist_ok=True)
    left_out = ["cli", "house", "pytest_plugin", "reporting/html", "competition/sandbox"]
    words = [f"--ignore=tests/{each}" for each in left_out]
    words += ["--ignore-glob=*/test_numba*", "-p", "line_coverage", "-p", "no:cacheprovider"]
    path = os.pathsep.join([str(ROOT), str(HERE)])
    surroundings = {**os.environ, "PYTHONPATH": path, "LINE_COVERAGE": str(folder / "lines")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *words, "tests"]
    subprocess.run(command, cwd=ROOT, env=surroundings, check=False)


class Covered:
    """Which tests ran which lines, and how long they took."""

    def __init__(self, folder: Path) -> None:
        import coverage

        self.seconds: dict[str, float] = {}
        self.lines: dict[Path, dict[int, set[str]]] = {}
        fine: dict[str, bool] = {}
        for file in sorted(folder.glob("*.seconds.json")):
            for test, (took, passed) in json.loads(file.read_text("utf-8")).items():
                self.seconds[test] = max(took, self.seconds.get(test, 0.0))
                fine[test] = passed and fine.get(test, True)
            data = coverage.CoverageData(str(file).removesuffix(".seconds.json"))
            data.read()
            for covered in data.measured_files():
                lines = self.lines.setdefault(Path(covered), {})
                for line, tests in data.contexts_by_lineno(covered).items():
                    lines.setdefault(line, set()).update(tests)
        for lines in self.lines.values():
            for tests in lines.values():
                tests -= {test for test in tests if not fine.get(test, False)}

    def tests(self, file: Path, lines: Iterable[int]) -> set[str]:
        """Return the tests that ran one of the lines of a file."""
        known = self.lines.get(file, {})
        return set().union(*(known.get(line, set()) for line in lines))

    def selection(
        self, definition: Definition, change: Change, bounds: Bounds = QUICK
    ) -> tuple[str, ...]:
        """Return tests for a change, those that run its line, near its module, and quick first."""
        if definition.is_table:
            ran = self.tests(change.file, self.lines.get(change.file, {}))
        else:
            ran = self.tests(change.file, change.lines)
        if not ran:
            return ()
        home = _home(change.file)
        every = [node for node in definition.nodes if hasattr(node, "lineno")]
        around = self.tests(
            change.file,
            (line for node in every for line in range(node.lineno, node.end_lineno + 1)),
        )
        ranked = sorted(ran, key=lambda test: (_distance(test, home), self.seconds[test], test))
        near = sorted(test for test in around - ran if test.startswith(f"{home}::"))
        return self._within(bounds, ranked, near)

    def _within(
        self, bounds: Bounds, ranked: Sequence[str], near: Sequence[str]
    ) -> tuple[str, ...]:
        chosen: list[str] = []
        files: set[str] = set()
        left = bounds.seconds
        for position, test in enumerate([*ranked, *near]):
            if len(chosen) >= (bounds.tests if position < len(ranked) else ENOUGH_NEAR):
                break
            path = test.partition("::")[0]
            fits = self.seconds[test] <= left and (path in files or len(files) < bounds.files)
            if fits or not chosen:
                chosen.append(test)
                files.add(path)
                left -= self.seconds[test]
        return tuple(chosen)


def widen(states: dict[str, str], covered: Covered) -> None:
    """Run more tests on the survivors; a mutant gets those that kill it, and some that it had."""
    mutants, code = {each.id: each for each in read_set()}, Code()
    preload()
    jobs = []
    for mutant in mutants.values():
        if states.get(mutant.id) != SURVIVED:
            continue
        (definition,) = code.find(mutant.point)
        change = next(each for each in changes(definition) if each.point == mutant.point)
        ran = covered.selection(definition, change, WIDE)
        more = tuple(test for test in ran if test not in mutant.tests)
        if more:
            jobs.append(Job(mutant.id, more, partial(_change, definition, mutant.point), 200.0))
    found: dict[str, list[str]] = {}
    for outcome in run_jobs(jobs):
        if outcome.failed:
            found[outcome.job.name] = outcome.failed
    passing = check_unchanged([test for some in found.values() for test in some])
    for name, failed in found.items():
        tests = (*(test for test in failed if passing[test]), *mutants[name].tests[:ENOUGH_NEAR])
        seconds = round(sum(covered.seconds[test] for test in tests), 1)
        mutants[name] = replace(mutants[name], tests=tests, seconds=seconds)
    write_set(list(mutants.values()))
    print(f"{len(found)} of {len(jobs)} killed by more tests")


def _home(file: Path) -> str:
    """Return the file of tests that bears the name of a module."""
    inside = file.relative_to(ROOT / "tinytorch")
    return (Path("tests") / inside.parent / f"test_{inside.stem.lstrip('_')}.py").as_posix()


def _distance(test: str, home: str) -> int:
    path = test.partition("::")[0]
    if path == home:
        return 0
    shared = os.path.commonpath([path, home])
    return 1 if shared == os.path.dirname(home) else 2 if len(Path(shared).parts) > 1 else 3


def choose(covered: Covered) -> list[Mutant]:
    """Draw mutants for each group, spread over definitions and kinds of changes."""
    code, generator = Code(), random.Random(SEED)
    found: dict[tuple[str, ...], list[tuple[Definition, Change]]] = {each: [] for each in GROUPS}
    for definition in (each for some in code.definitions.values() for each in some):
        group = _group_of(definition.module)
        if group is None or (definition.is_table and definition.module not in TABLES):
            continue
        for change in changes(definition):
            if len(code.find(change.point)) == 1:
                found[group].append((definition, change))
    made = [
        mutant
        for group, candidates in found.items()
        for mutant in _draw(candidates, GROUPS[group], covered, generator)
    ]
    return sorted(made, key=lambda each: (each.point.module, each.point.definition, each.id))


def add_more(covered: Covered) -> None:
    """Draw mutants for the groups of which the set has too few, and add them to it."""
    code, generator, mutants = Code(), random.Random(SEED + 1), read_set()
    known = {each.id for each in mutants}
    for group, number in GROUPS.items():
        missing = number - sum(_group_of(each.point.module) == group for each in mutants)
        candidates = [
            (definition, change)
            for some in code.definitions.values()
            for definition in some
            if _group_of(definition.module) == group
            and (not definition.is_table or definition.module in TABLES)
            for change in changes(definition)
            if len(code.find(change.point)) == 1 and _id(change.point) not in known
        ]
        if number >= MANY and missing > 0:
            mutants += _draw(candidates, missing, covered, generator)
    print(f"{len(mutants) - len(known)} more mutants")
    write_set(sorted(mutants, key=lambda each: (each.point.module, each.point.definition, each.id)))


def _group_of(module: str) -> tuple[str, ...] | None:
    inside = module.partition(".")[2]
    for group in GROUPS:
        if any(inside == each or inside.startswith((f"{each}.", f"{each}_")) for each in group):
            return group
        if any(each.endswith("_") and inside.startswith(each) for each in group):
            return group
    return None


def _draw(
    candidates: list[tuple[Definition, Change]],
    number: int,
    covered: Covered,
    generator: random.Random,
) -> Iterator[Mutant]:
    """Yield mutants: of the definitions and operators used least so far, whichever comes first."""
    generator.shuffle(candidates)
    used: Counter[object] = Counter()
    taken: set[tuple[str, str, str, int]] = set()
    left = list(candidates)
    while left and number:
        definition, change = min(
            left, key=lambda each: (used[id(each[0])], used[each[0].module], used[each[1].operator])
        )
        left = [each for each in left if each[1] is not change]
        point = change.point
        place = (point.module, point.definition, point.original, point.ordinal)
        tests = covered.selection(definition, change)
        if not tests or place in taken:
            continue
        taken.add(place)
        used.update([id(definition), definition.module, change.operator])
        number -= 1
        seconds = round(sum(covered.seconds[test] for test in tests), 1)
        yield Mutant(_id(point), change.operator, point, tests, seconds)


def _id(point: Point) -> str:
    parts = (point.module, point.definition, point.original, point.ordinal, point.replacement)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


# --- Running ---------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """Run mutants, show those that survive, write states, compare with a baseline."""
    started = time.monotonic()
    mutants = [each for each in read_set() if _is_asked(each, options.only)]
    if options.named:
        mutants = [each for each in mutants if _is_named(each)]
    if options.survivors:
        before = json.loads(options.survivors.read_text("utf-8"))
        mutants = [each for each in mutants if before.get(each.id, SURVIVED) == SURVIVED]
    if options.sample is not None and options.sample < len(mutants):
        mutants = random.Random(SEED).sample(mutants, options.sample)
    preload()
    states = dict(judge(mutants))
    for state in STATES[1:]:
        some = [each for each in mutants if states[each.id] == state]
        print(f"\n{state}: {len(some)}")
        print("\n".join(f"  {each.words}" for each in some))
    counts = Counter(states.values())
    counted = ", ".join(f"{counts[state]} {state}" for state in STATES)
    print(f"{len(mutants)} mutants: {counted} ({time.monotonic() - started:.0f} s)")
    print(score(states))
    if options.json:
        options.json.write_text(json.dumps(states, indent=0, sort_keys=True) + "\n", "utf-8")
    return compare(mutants, states, options.against) if options.against else 0


def score(states: dict[str, str]) -> str:
    """Return the share of mutants killed of those that were judged and are not equivalent."""
    equivalent = json.loads(EQUIVALENT.read_text("utf-8"))
    judged = [name for name, state in states.items() if state in (KILLED, SURVIVED)]
    alike = [name for name in judged if states[name] == SURVIVED and name in equivalent]
    killed = sum(states[name] == KILLED for name in judged)
    others = len(judged) - len(alike)
    return (
        f"score: {killed} of {others} killed ({killed / max(others, 1):.1%}); {len(alike)} of "
        f"{len(judged)} are equivalent ({len(alike) / max(len(judged), 1):.1%})"
    )


def _is_named(mutant: Mutant) -> bool:
    group = _group_of(mutant.point.module)
    return group is not None and GROUPS[group] >= MANY


def _is_asked(mutant: Mutant, prefix: str) -> bool:
    inside = mutant.point.module.partition(".")[2]
    return mutant.id == prefix or inside.startswith(prefix.removeprefix("tinytorch."))


def compare(mutants: Sequence[Mutant], states: dict[str, str], baseline: Path) -> int:
    """Print what was killed and survives now; return 1 if there is any."""
    before = json.loads(baseline.read_text("utf-8"))
    known = [each for each in mutants if before.get(each.id) == KILLED]
    lost = [each for each in known if states[each.id] == SURVIVED]
    unjudged = [each for each in known if states[each.id] not in (KILLED, SURVIVED)]
    print(f"\nkilled in {baseline.name}: {len(known)}; of these not judged now: {len(unjudged)}")
    print(f"killed then, surviving now: {len(lost)}")
    print("\n".join(f"  {each.words}" for each in lost))
    return 1 if lost else 0


def judge(mutants: Sequence[Mutant]) -> Iterator[tuple[str, str]]:
    """Yield the state of each mutant by its id."""
    code, index = Code(), TestIndex()
    places = {each.id: code.find(each.point) for each in mutants}
    tests = {
        each.id: list(dict.fromkeys(found for test in each.tests for found in index.find(test)))
        for each in mutants
    }
    passing = check_unchanged([test for some in tests.values() for test in some])
    broken = [test for test, passes in passing.items() if not passes]
    if broken:
        print(f"left out, for they fail without a change: {len(broken)}", *broken, sep="\n  ")
    jobs = []
    for mutant in mutants:
        found, selected = places[mutant.id], [test for test in tests[mutant.id] if passing[test]]
        if len(found) != 1:
            yield mutant.id, AMBIGUOUS if found else GONE
        elif not selected:
            yield mutant.id, INVALID
        else:
            limit = LIMIT_S + LIMIT_PER_SECOND * mutant.seconds
            change = partial(_change, found[0], mutant.point)
            jobs.append(Job(mutant.id, tuple(selected), change, limit))
    for number, outcome in enumerate(run_jobs(jobs), 1):
        yield outcome.job.name, KILLED if outcome.is_caught else SURVIVED
        if outcome.ending != ENDED:
            print(f"{outcome.job.name} {outcome.ending} after {outcome.seconds:.0f} s")
        if number % 50 == 0:
            print(f"{number} of {len(jobs)}", file=sys.stderr, flush=True)


def _change(definition: Definition, point: Point) -> None:
    """Let the package have this mutant, in the process that calls this."""
    tree: ast.Module = changed_module(definition, point)
    ChangedModules([(definition.module, definition.file, tree)]).install()


if __name__ == "__main__":
    sys.exit(main())
