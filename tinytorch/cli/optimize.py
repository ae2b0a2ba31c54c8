"""``tinytorch optimize``: try optimizations, and recommend those that measurably help."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output, Progress
from tinytorch.cli.options import (
    TARGET_FORMS,
    add_html_option,
    add_markdown_option,
    add_store_option,
    check_reports,
    check_writable,
    show_result,
    whole_numbers,
    write_file,
    write_html,
    write_markdown,
)
from tinytorch.errors import RecordError, SettingError, TinyTorchError

if TYPE_CHECKING:
    from tinytorch.models.workload import Workload
    from tinytorch.records.store import RecordStore
    from tinytorch.tuning.attempt import Attempt
    from tinytorch.tuning.optimization import Optimization


# ---------------------------------------------------------------- progress: a bar, or a line per
# attempt

AGAINST = " against baseline"
BEST = " (best: "


class AttemptWatch:
    """Progress of the search, with the best attempt so far.

    Where no bar is drawn, each finished attempt is a line on stderr.
    """

    def __init__(
        self, output: Output, progress: Progress, *, goal: str, limits: Mapping[str, float]
    ) -> None:
        self._output, self._progress = output, progress
        self._goal, self._limits = goal, limits
        self._attempts: list[Attempt] = []
        self._told: Attempt | None = None

    def advance(self, steps: int = 1) -> None:
        self._progress.advance(steps)

    def describe(self, text: str) -> None:
        """Describe the current step and the best attempt, short enough for a bar."""
        doing = text.partition(BEST)[0].replace(AGAINST, "")
        best = self._best()
        self._progress.describe(f"{doing} ... best: {self._phrase(best)}" if best else doing)

    def hear(self, attempt: "Attempt") -> None:
        """Record a finished attempt; without a bar, print a line about it."""
        from tinytorch.tuning.attempt import ACCURACY_INCONCLUSIVE
        from tinytorch.tuning.records import is_from_before

        self._attempts.append(attempt)
        if sys.stderr.isatty() or attempt.lacked_time:  # the result counts what was not tried
            return
        words = f"{attempt.outcome}: {attempt.reason}"
        if attempt.comparison is not None:
            words = self._phrase(attempt, is_whole=True)
            if attempt.outcome == ACCURACY_INCONCLUSIVE:
                words += f"; {attempt.outcome}: {attempt.reason}"
        before = ", from an earlier run" if is_from_before(attempt) else ""
        best = self._best()
        is_new = best is not None and best is not self._told
        self._told = best
        self._output.say(f"{attempt.name}: {words}{before}{'; the best so far' if is_new else ''}")

    def _best(self) -> "Attempt | None":
        from tinytorch.tuning.ranking import best_of

        return best_of(self._attempts, goal=self._goal, limits=self._limits)

    def _phrase(self, attempt: "Attempt", *, is_whole: bool = False) -> str:
        """Return the effect on the goal, with its interval if `is_whole`."""
        from tinytorch.reporting.optimization_words import attempt_phrases

        phrase = attempt_phrases(attempt, self._goal)[0]
        return phrase if is_whole else phrase.partition(" (")[0]


# ---------------------------------------------------------------- the command

GOALS = ("latency", "throughput", "memory", "size")
LIMITS = ("latency_ms", "memory_mb", "size_mb")
WEIGHTS_FILE = ".safetensors"
EPILOG = """\
exit codes:
  0  an optimization is recommended; or all attempts have a verdict and none
     helps
  1  every attempt with acceptable accuracy violates a limit
  2  wrong usage
  3  inconclusive: nothing is recommended, and at least one attempt has an
     inconclusive time or accuracy, was not confirmed when measured again, or
     was cut off by the time budget; or it is unknown whether a limit is met
  4  no valid measurement: every attempt failed, the model raises, a call timed
     out, or a file could not be written
  130  interrupted by Ctrl-C: finished attempts are shown and not repeated by
       the next run

Every attempt is stored as a record when it finishes. The next run of the same
model and settings on this machine resumes from there; --restart measures
everything again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("target", nargs="?", metavar="TARGET", help=TARGET_FORMS)
    _add_goal(parser.add_argument_group("goal and constraints"))
    _add_trying(parser.add_argument_group("search"))
    _add_keeping(parser.add_argument_group("output"))
    add_html_option(parser)


def _add_goal(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--goal", choices=GOALS, default="latency", help="quantity to improve (default latency)"
    )
    group.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="texts to judge an hf:PATH model by: JSON lines with text and label",
    )
    group.add_argument(
        "--max-accuracy-drop",
        type=_amount,
        default=0.01,
        metavar="X",
        help="allowed accuracy drop, in the unit of the scores (default 0.01, or 1%%)",
    )
    group.add_argument(
        "--max-output-error",
        type=_amount,
        default=0.02,
        metavar="X",
        help="allowed output error relative to the largest output, for models without an evaluate "
        "function (default 0.02, or 2%%)",
    )
    group.add_argument(
        "--limit",
        action="append",
        default=[],
        type=_limit,
        metavar="NAME=X",
        help=f"upper limit, repeatable: {', '.join(f'{name}=X' for name in LIMITS)}",
    )


def _add_trying(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--budget",
        type=float,
        default=120.0,
        metavar="S",
        help="time budget in seconds (default 120)",
    )
    group.add_argument(
        "--only",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME",
        help="try only these optimizations",
    )
    group.add_argument(
        "--skip",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME",
        help="do not try these optimizations",
    )
    group.add_argument(
        "--no-combinations", action="store_true", help="try each optimization on its own only"
    )
    for axis, words in (("batch", "batch sizes"), ("sequence", "sequence lengths")):
        group.add_argument(
            f"--{axis}",
            metavar="N,N,...",
            help=f"also compare the best attempts at these {words}, within 30%% of the budget",
        )
    group.add_argument(
        "--list",
        action="store_true",
        help="list the available optimizations, with TARGET those that apply, and exit",
    )


def _add_keeping(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--save",
        type=Path,
        metavar="PATH",
        help=f"write the recommended model: one file if PATH ends in {WEIGHTS_FILE}, else a "
        "folder with load.py and README.md; tinytorch.load_optimized reads it",
    )
    group.add_argument(
        "--snippet", type=Path, metavar="FILE", help="write a script that reproduces the result"
    )
    add_markdown_option(group)
    add_store_option(group)
    group.add_argument(
        "--no-store", action="store_true", help="neither store records nor resume from them"
    )
    group.add_argument("--restart", action="store_true", help="do not resume from an earlier run")


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Print the result before any file is written: a full disk must not lose it."""
    _check(options, output)
    from tinytorch.models.targets import load_workload

    target = options.target
    with output.waiting(f"loading {target}"):
        workload = None if target is None else load_workload(target, data=options.data)
    if options.list:
        return _list(options, output, workload)
    assert workload is not None
    result, record = _optimize(options, output, workload)
    code = _exit_code(result)
    payload = {"target": options.target, "exit_code": int(code), "record": record}
    payload["optimization"] = result.to_dict()
    show_result(options, output, payload, result, is_stored=record is not None)
    _write_files(options, output, result, workload)
    return code


def _optimize(
    options: argparse.Namespace, output: Output, workload: "Workload"
) -> "tuple[Optimization, str | None]":
    """Return the result, and the hash of its record, if stored."""
    from tinytorch.tuning.optimize import optimize

    with _open_store(options, output) as store, output.progress("optimize") as progress:
        watch = AttemptWatch(output, progress, goal=options.goal, limits=dict(options.limit))
        result = optimize(
            workload,
            goal=options.goal,
            max_accuracy_drop=options.max_accuracy_drop,
            max_output_error=options.max_output_error,
            limits=dict(options.limit),
            budget_s=options.budget,
            only=options.only,
            skip=options.skip,
            combinations=not options.no_combinations,
            batch=whole_numbers(options.batch, "--batch") or (),
            sequence=whole_numbers(options.sequence, "--sequence") or (),
            store=store,
            resume=not options.restart,
            seed=options.seed,
            target=options.target,
            progress=watch,
            on_attempt=watch.hear,
            on_note=output.say,
        )
        if options.save is not None and result.recommended is not None:
            from tinytorch.tuning.saving import with_process_memory

            progress.describe("memory of the process")
            result = with_process_memory(result, workload)
        record = None if store is None else _record_of(store, result)
        if store is not None and record is not None:
            output.say(f"stored as {record[:12]} in {store.path}")
    return result, record


# ---------------------------------------------------------------- records


@contextmanager
def _open_store(options: argparse.Namespace, output: Output) -> "Iterator[RecordStore | None]":
    """Open the record store; continue without if the default one cannot be opened."""
    from tinytorch.records.store import open_store

    if options.no_store:
        yield None
        return
    try:
        store = open_store(options.store)
    except RecordError as error:
        if options.store is not None:
            raise
        output.say(f"nothing is stored: {error}")
        yield None
        return
    with store:
        yield store


def _record_of(store: "RecordStore", result: "Optimization") -> str | None:
    """Return the hash of the stored record of this result, or None."""
    from tinytorch.tuning.records import OPTIMIZATION_KIND

    found = store.find(kind=OPTIMIZATION_KIND, name=result.name, newest_first=True, limit=1)
    is_this = bool(found) and found[0].details.get("seconds") == result.seconds
    return found[0].hash if is_this else None


def _exit_code(result: "Optimization") -> ExitCode:
    from tinytorch.measure.estimate import INCONCLUSIVE
    from tinytorch.tuning.attempt import LIMIT_BROKEN

    verdicts = {each.verdict for each in result.limit_checks}
    if result.was_interrupted:
        return ExitCode.INTERRUPTED
    if not result.was_judged:
        return ExitCode.INVALID
    if LIMIT_BROKEN in verdicts:
        return ExitCode.FAILED
    if INCONCLUSIVE in verdicts:
        return ExitCode.INCONCLUSIVE
    if result.recommended is not None:
        return ExitCode.FINE
    known = (*result.attempts, *result.confirmations)
    is_open = bool(result.refuted or result.inconclusive or result.lacked_time)
    is_open |= any(each.outcome == INCONCLUSIVE for each in known)
    return ExitCode.INCONCLUSIVE if is_open else ExitCode.FINE


# ---------------------------------------------------------------- files


def _write_files(
    options: argparse.Namespace, output: Output, result: "Optimization", workload: "Workload"
) -> None:
    """Write all requested files; a failed one does not stop the others."""
    writers: list[Callable[[], None]] = [
        lambda: write_html(options.html, result, output, is_opened=options.open),
        lambda: write_markdown(options.markdown, result, output),
    ]
    if result.recommended is not None:
        writers += [
            lambda: _save(options.save, result, workload, output),
            lambda: _write_snippet(options, result, output),
        ]
    elif missing := [str(path) for path in (options.save, options.snippet) if path]:
        were = "were" if len(missing) > 1 else "was"
        output.say(f"nothing is recommended, so {' and '.join(missing)} {were} not written")
    failures: list[TinyTorchError] = []
    for write in writers:
        try:
            write()
        except TinyTorchError as error:
            failures.append(error)
    for failure in failures[1:]:
        output.say(str(failure))
    if failures:
        raise failures[0]


def _write_snippet(options: argparse.Namespace, result: "Optimization", output: Output) -> None:
    if options.snippet is not None:
        from tinytorch.tuning.saving import snippet

        saved = "" if options.save is None else str(options.save)
        write_file(options.snippet, snippet(result, target=options.target, saved=saved), output)


def _save(path: Path | None, result: "Optimization", workload: "Workload", output: Output) -> None:
    if path is None:
        return
    from tinytorch.reporting.optimization_words import loading_words
    from tinytorch.reporting.quantities import bytes_text
    from tinytorch.tuning.saving import save_optimized

    with output.waiting(f"writing {path}"):
        saved = save_optimized(result, path, workload=workload)
    loading = loading_words(result, str(path))
    output.say(
        f"wrote {saved.path}: {bytes_text(saved.nbytes)}, {saved.format}; {loading} loads it"
    )
    for note in saved.notes:
        output.say(note)


# ---------------------------------------------------------------- the catalog


def _list(options: argparse.Namespace, output: Output, workload: "Workload | None") -> ExitCode:
    from tinytorch.reporting.advice import render_catalog
    from tinytorch.tuning.catalog import CATALOG, entries_for, find_entries, left_out

    if workload is None:
        unwanted = find_entries(options.skip)
        chosen = find_entries(options.only) or CATALOG
        entries = tuple(each for each in chosen if each not in unwanted)
    else:
        chosen_by = {"only": options.only, "skip": options.skip}
        entries = entries_for(workload, options.goal, **chosen_by)
        for note in left_out(workload, options.goal, **chosen_by):
            output.say(note)
    rows = [
        {**each.to_dict(), "about": each.about, "serves": sorted(each.serves)}
        | {
            "frameworks": each.frameworks,
            "devices": each.devices,
            "role": each.role,
            "made_for": each.made_for,
        }
        for each in entries
    ]
    output.result({"target": options.target, "entries": rows}, render_catalog(entries))
    return ExitCode.FINE


# ---------------------------------------------------------------- checking


def _check(options: argparse.Namespace, output: Output) -> None:
    """Raise for invalid options before anything is measured."""
    if options.target is None and not options.list:
        raise SettingError("no target; pass one before --only and --skip, such as mlp")
    if options.no_store and options.store is not None:
        raise SettingError("--store cannot be combined with --no-store")
    from tinytorch.tuning.attempt import Settings
    from tinytorch.tuning.catalog import find_entries

    Settings(
        goal=options.goal,
        max_accuracy_drop=options.max_accuracy_drop,
        max_output_error=options.max_output_error,
        limits=dict(options.limit),
        budget_s=options.budget,
        seed=options.seed,
    )
    find_entries([*options.only, *options.skip])
    for axis in ("batch", "sequence"):
        whole_numbers(getattr(options, axis), f"--{axis}")
    if options.list and any((options.html, options.markdown, options.snippet, options.save)):
        raise SettingError("--list cannot be combined with options that write a file")
    check_reports(options, output)
    if options.snippet is not None:
        check_writable(options.snippet)
    if options.save is not None:
        _check_save(options.save)


def _check_save(path: Path) -> None:
    is_folder = path.suffix != WEIGHTS_FILE
    if is_folder and path.is_file():
        raise SettingError(
            f"{path} is a file; pass a folder, or a file that ends in {WEIGHTS_FILE}"
        )
    check_writable(path / "weights" if is_folder and path.is_dir() else path)


def _amount(text: str) -> float:
    """Parse a percentage such as 1%, or a number."""
    from tinytorch.records.settings import parse_share

    try:
        return parse_share(text) if text.strip().endswith("%") else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number nor a percentage"
        ) from error


def _limit(text: str) -> tuple[str, float]:
    name, _, most = text.partition("=")
    try:
        return name, float(most)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a limit; write NAME=NUMBER, such as latency_ms=100"
        ) from error
