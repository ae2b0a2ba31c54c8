"""Runs of pytest in forked processes, each with a change of the package that nobody else sees.

One parent imports what is slow to import and nothing of tinytorch. Each run is a fork of it that
makes its change, runs its tests and ends. Processes that tests start do not see the change.
"""

import ast
import gc
import importlib
import importlib.util
import json
import math
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
AT_ONCE = 2
PRELOADED = ("numpy", "scipy.stats", "torch", "numba", "pytest", "hypothesis", "transformers")
ENDED, HUNG, CRASHED = "ended", "hung", "crashed"
WAITING = 8
"""How many times its limit of computing a run may take by the wall clock: others compute, too."""
NO_TESTS_RAN = 5  # pytest.ExitCode.NO_TESTS_COLLECTED


@dataclass(frozen=True)
class Job:
    """Tests to run after a change; `change` is called in the fork before tinytorch is imported.

    `limit_s` are seconds of computing, so that a busy machine ends nothing that is only slow.
    """

    name: str
    tests: tuple[str, ...]
    change: Callable[[], None] | None = None
    limit_s: float = 120.0
    stops_early: bool = True


@dataclass
class Outcome:
    """What became of a job: exit code, ids of the test functions that failed and passed."""

    job: Job
    ending: str
    code: int | None = None
    failed: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    shown: str = ""

    @property
    def is_caught(self) -> bool:
        """Return whether a test failed, or the run did not come to its end."""
        return self.ending != ENDED or self.code not in (0, NO_TESTS_RAN)


def preload() -> None:
    """Import what is slow, in the way tests have it: two runs share the cores."""
    os.environ["OMP_NUM_THREADS"] = "1"
    # Plugins of the environment would import tinytorch their own way, and cost time.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(TESTS)])
    sys.path[:0] = [str(ROOT), str(TESTS)]
    os.chdir(ROOT)
    for name in PRELOADED:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    assert not any(name.partition(".")[0] == "tinytorch" for name in sys.modules)
    gc.collect()
    gc.freeze()  # What is never looked at stays shared between the processes.


def run_jobs(jobs: Iterable[Job], *, at_once: int = AT_ONCE) -> Iterator[Outcome]:
    """Yield an outcome per job, as they end."""
    waiting, running = iter(jobs), {}
    with tempfile.TemporaryDirectory(prefix="forked-tests-") as folder:
        number = 0
        while True:
            while len(running) < at_once and (job := next(waiting, None)) is not None:
                number += 1
                place = Path(folder) / str(number)
                place.mkdir()
                running[_fork(job, place)] = (job, place, time.monotonic())
            if not running:
                return
            for pid in list(running):
                job, place, started = running[pid]
                outcome = _look_after(pid, job, place, started)
                if outcome is not None:
                    del running[pid]
                    shutil.rmtree(place, ignore_errors=True)
                    yield outcome
            time.sleep(0.01)


def _look_after(pid: int, job: Job, place: Path, started: float) -> Outcome | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    seconds = time.monotonic() - started
    if not ended:
        if seconds < job.limit_s * WAITING:
            return None
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return Outcome(job, HUNG, seconds=seconds, shown=_text(place / "shown"))
    _end_left_over(pid)
    told = _text(place / "told")
    if not os.WIFEXITED(status) or not told:
        is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
        ending = HUNG if is_late else CRASHED
        return Outcome(job, ending, seconds=seconds, shown=_text(place / "shown"))
    return Outcome(job, ENDED, seconds=seconds, shown=_text(place / "shown"), **json.loads(told))


def _end_left_over(group: int) -> None:
    """End what a run has started and left."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _text(file: Path) -> str:
    return file.read_text("utf-8", "replace") if file.exists() else ""


def _fork(job: Job, place: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        computing = math.ceil(job.limit_s)
        resource.setrlimit(resource.RLIMIT_CPU, (computing, computing + 5))
        shown = os.open(place / "shown", os.O_WRONLY | os.O_CREAT)
        os.dup2(shown, 1)
        os.dup2(shown, 2)
        _run_here(job, place)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)  # `told` says how it went.


class _Watch:
    """A plugin that keeps outcomes and does not search for the smallest failing example."""

    def __init__(self) -> None:
        self.failed: dict[str, None] = {}
        self.passed: dict[str, None] = {}

    def pytest_sessionstart(self) -> None:
        import hypothesis

        steady = hypothesis.settings.default
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile(
            "no_shrinking", parent=steady, phases=phases, derandomize=True, database=None
        )
        hypothesis.settings.load_profile("no_shrinking")

    def pytest_runtest_logreport(self, report) -> None:  # type: ignore[no-untyped-def]
        name = report.nodeid.partition("[")[0]
        if report.failed:
            self.failed[name] = None
        elif report.when == "call" and report.passed:
            self.passed[name] = None


def _run_here(job: Job, place: Path) -> None:
    import pytest

    # Collecting what the parent has imported, again and again, would take most of the time.
    gc.unfreeze = lambda: None  # type: ignore[assignment]
    if job.change is not None:
        job.change()
    watch = _Watch()
    words = ["-q", "--tb=no", "--no-header", "-p", "no:cacheprovider"]
    words += ["--basetemp", str(place / "temporary"), "--rootdir", str(ROOT)]
    words += ["-x"] if job.stops_early else []
    code = int(pytest.main([*words, *job.tests], plugins=[watch]))
    told = {"code": code, "failed": list(watch.failed)}
    told["passed"] = [name for name in watch.passed if name not in watch.failed]
    (place / "told").write_text(json.dumps(told), "utf-8")
    sys.stdout.flush()


class ChangedModules:
    """Puts other syntax trees in the place of some modules, when they are imported."""

    def __init__(self, modules: Iterable[tuple[str, Path, ast.Module]]) -> None:
        self.modules = {name: (file, tree) for name, file, tree in modules}

    def install(self) -> None:
        """Be asked before all others."""
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how a changed module is loaded; leave the others to those who know them."""
        if name not in self.modules:
            return None
        file, tree = self.modules[name]
        code = compile(tree, str(file), "exec", dont_inherit=True)
        loader = _CodeLoader(name, str(file), code)
        return importlib.util.spec_from_file_location(name, file, loader=loader)


class _CodeLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code


class TestIndex:
    """Finds tests by id, and by name where their file is gone."""

    __test__ = False

    def __init__(self, folder: Path = TESTS) -> None:
        self.names: dict[str, set[str]] = {}
        self.files: dict[str, list[str]] = {}
        for file in sorted(folder.rglob("test_*.py")):
            path = file.relative_to(folder.parent).as_posix()
            names = re.findall(r"^def (test_\w+)\(", file.read_text("utf-8"), re.MULTILINE)
            self.names[path] = set(names)
            for name in names:
                self.files.setdefault(name, []).append(path)

    def find(self, test: str) -> list[str]:
        """Return the id as it is, or those of the same function elsewhere (three at most)."""
        path, _, name = test.partition("::")
        if name in self.names.get(path, ()):
            return [test]
        elsewhere = self.files.get(name, [])
        near = [each for each in elsewhere if Path(each).name == Path(path).name]
        return [f"{each}::{name}" for each in (near or elsewhere)[:3]]


def check_unchanged(tests: Sequence[str]) -> dict[str, bool]:
    """Run tests without a change, file by file, and return which ones pass."""
    files: dict[str, list[str]] = {}
    for test in dict.fromkeys(tests):
        files.setdefault(test.partition("::")[0], []).append(test)
    jobs = [Job(file, tuple(some), limit_s=600, stops_early=False) for file, some in files.items()]
    passing: dict[str, bool] = dict.fromkeys(tests, False)
    for outcome in run_jobs(jobs):
        passing.update(dict.fromkeys(outcome.passed, True))
        passing.update(dict.fromkeys(outcome.failed, False))
    return passing
