"""``tinytorch tour``: make trained models of the zoo faster and smaller, step by step."""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output, Progress
from tinytorch.cli.options import check_writable, write_html
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from tinytorch.reporting.document import Document
    from tinytorch.tuning.attempt import Attempt
    from tinytorch.tuning.tour import Introduction, Stop, Visit, Writing

REPORT = "tinytorch-tour.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    report = parser.add_argument_group("report")
    report.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help=f"write the self-contained HTML report here (default {REPORT})",
    )
    report.add_argument("--open", action="store_true", help="open that report in a browser")


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    path = _report_path(options.html, output)
    # Imported here: the parser and --help do not need the frameworks.
    from tinytorch.reporting.tour import ending_document
    from tinytorch.tuning.tour import take_tour

    output.say("Three trained models, made faster and smaller where that works: below two minutes.")
    guide = _Guide(output)
    tour = take_tour(
        options.seed,
        watch=guide.watch,
        on_introduction=guide.introduce,
        on_writing=guide.write,
        on_attempt=guide.hear,
        on_visit=guide.tell,
    )
    write_html(path, tour, output, is_opened=options.open)
    where = str(path.absolute())
    guide.show(ending_document(tour))
    if not output.as_json:
        output.result({}, f"Everything in detail: {where}")  # as text: a path is not to be broken
    if output.as_json:
        output.result({**tour.to_dict(), "report": where}, "")
    return ExitCode.INTERRUPTED if tour.was_interrupted else ExitCode.FINE


class _Guide:
    """Prints each chapter on stdout as soon as it is finished, and progress on stderr."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._told = 0

    def show(self, chapter: "Document") -> None:
        """Print a chapter, with a blank line after it; JSON is printed at the end instead."""
        from rich.console import Group

        from tinytorch.reporting.terminal import render

        if not self._output.as_json:
            rendered = render(chapter, is_brief=not self._output.verbose)
            self._output.result({}, Group(rendered, ""))
            sys.stdout.flush()

    def introduce(self, introduction: "Introduction") -> None:
        from tinytorch.reporting.tour import introduction_document

        self.show(introduction_document(introduction))

    def write(self, writing: "Writing") -> None:
        from tinytorch.reporting.tour import writing_document

        self._told += 1
        self.show(writing_document(self._told, writing))

    @contextmanager
    def watch(self, name: str) -> Iterator[Progress]:
        if not sys.stderr.isatty():
            self._output.say(f"{name} ...")
        with self._output.progress(name) as progress:
            yield _Named(name, progress)

    def hear(self, stop: "Stop", attempt: "Attempt") -> None:
        """Report an attempt on stderr where no bar is drawn."""
        from tinytorch.reporting.optimization_words import attempt_phrases

        if not sys.stderr.isatty():
            words = attempt_phrases(attempt, stop.goal)[0]
            self._output.say(f"{stop.target}: {attempt.name}: {words}")

    def tell(self, visit: "Visit") -> None:
        from tinytorch.reporting.tour import visit_document

        self._told += 1
        self.show(visit_document(self._told, visit))


class _Named:
    """Progress whose descriptions begin with a name."""

    def __init__(self, name: str, progress: Progress) -> None:
        self._name, self._progress = name, progress

    def advance(self, steps: int = 1) -> None:
        self._progress.advance(steps)

    def describe(self, text: str) -> None:
        self._progress.describe(f"{self._name}: {text}")


def _report_path(wanted: Path | None, output: Output) -> Path:
    """Return the path of the report; raise unless it can be written.

    By default it is in the current folder or, if that is read-only, in the temporary folder.
    """
    path = wanted or Path(REPORT)
    try:
        check_writable(path)
    except SettingError as error:
        if wanted is not None:
            raise
        # A folder that nobody else has: a name that is known beforehand may be a planted link.
        path = Path(tempfile.mkdtemp(prefix="tinytorch-tour-"), REPORT)
        output.say(f"{error}; the report goes to {path}")
        check_writable(path)
    return path
