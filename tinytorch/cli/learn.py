"""``tinytorch learn``: labs in which you build the tools of this project, and their checks."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import add_common_options, check_writable, seconds, write_file
from tinytorch.errors import SettingError

if TYPE_CHECKING:
    from tinytorch.learning.checking import StepResult
    from tinytorch.learning.progress import WorkFolder

EPILOG = """\
example:
  tinytorch learn                      the labs, and how far you are
  tinytorch learn start profiling      write notebook and file into ./profiling
  cd profiling
  tinytorch learn check                check all steps; or one: check timer
  tinytorch learn solution timer       after a failed check, or with --anyway

exit codes:
  0  success; for `check`: all steps that were checked passed
  1  for `check`: a step did not pass
  2  wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.set_defaults(seed=None)  # checks draw new cases each time
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION")
    _add_start(_action(actions, "start", "write the files of a lab into a folder"))
    _add_check(_action(actions, "check", "check what you wrote"))
    _add_solution(_action(actions, "solution", "show the solution of a step"))
    progress = _action(actions, "progress", "show what has passed, and how many checks it took")
    _add_folder(progress)
    _add_export(_action(actions, "export", "write a table of learners and labs for instructors"))


def _action(actions: Any, name: str, summary: str) -> argparse.ArgumentParser:
    action: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    add_common_options(action, is_inner=True)
    return action


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--in",
        dest="folder",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="a lab's folder, or one that holds it (default: the current one)",
    )


def _add_start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lab", metavar="LAB", help="a lab that `tinytorch learn` lists")
    parser.add_argument(
        "--to", type=Path, metavar="FOLDER", help="where to write (default: a folder ./LAB)"
    )
    parser.add_argument("--name", default="", help="your name, for the table of the instructor")
    parser.add_argument(
        "--force", action="store_true", help="begin anew; files there are kept under another name"
    )


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("step", nargs="?", metavar="STEP", help="a step or a lab (default: all)")
    _add_folder(parser)
    parser.add_argument(
        "--limit", type=seconds, metavar="SECONDS", help="time for each check (default 60)"
    )


def _add_solution(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("step", metavar="STEP", help="a step, or `reflection`")
    _add_folder(parser)
    parser.add_argument("--anyway", action="store_true", help="show it before a check has failed")


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        default=[Path()],
        metavar="FOLDER",
        help="folders that were handed in (default: the current one)",
    )
    parser.add_argument("--csv", type=Path, required=True, metavar="FILE", help="file to write")
    parser.add_argument(
        "--grades",
        type=Path,
        metavar="FILE",
        help="a table of `tinytorch compete board --grades` to add",
    )
    parser.add_argument(
        "--recheck",
        action="store_true",
        help="run the checks again here: this runs code of learners",
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    if options.action is None:
        return _show_labs(Path(), output)
    named = replace(output, command=f"learn {options.action}")
    return ACTIONS[options.action](options, named)


def _show_labs(folder: Path, output: Output) -> ExitCode:
    from tinytorch.learning.progress import overview
    from tinytorch.reporting.document import document_of

    found = overview(folder)
    output.show(found.to_dict(), document_of(found))
    return ExitCode.FINE


def _start(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.learning.progress import start_lab

    folder = options.to or Path(options.lab)
    work = start_lab(options.lab, folder, learner=options.name, force=options.force)
    payload: Mapping[str, object] = {
        "lab": options.lab,
        "folder": str(folder),
        "files": [work.python.name, work.notebook.name],
    }
    told = (
        f"wrote {work.python} and {work.notebook}: work in the one you like\n"
        f"next: cd {folder}\n      tinytorch learn check"
    )
    output.result(payload, told)
    return ExitCode.FINE


def _check(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.learning.checking import LIMIT_S, check_file
    from tinytorch.learning.sources import load_lab
    from tinytorch.reporting.document import document_of

    work, step = _work_of(options.folder, options.step)
    file = work.file
    total = 1 if step else len(load_lab(work.progress.lab).steps)
    with output.progress(f"checking {file.name}", total=total) as bar:

        def tell(result: "StepResult") -> None:
            bar.advance()

        checked = check_file(
            file,
            work.progress.lab,
            [step] if step else (),
            seed=options.seed,
            limit_s=options.limit or LIMIT_S,
            on_step=tell,
        )
    output.show({**checked.to_dict(), "passed": checked.passed}, document_of(checked))
    work.save(work.progress.after(checked))  # after showing: the folder may be read-only
    return ExitCode.FINE if checked.passed else ExitCode.FAILED


def _solution(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.learning.sources import REFLECTION, load_lab

    asked = None if options.step == REFLECTION else options.step
    work, _ = _work_of(options.folder, asked)
    if not (options.anyway or work.progress.may_see(options.step)):
        todo = f"run `tinytorch learn check {options.step}` first: no check of it has failed yet"
        if options.step == REFLECTION:
            todo = "not all steps have passed"
        raise SettingError(f"{todo}; --anyway shows it now")
    work.save(work.progress.with_solution(options.step))
    solution = load_lab(work.progress.lab).solution(options.step)
    output.result({"step": options.step, "solution": solution}, solution)
    return ExitCode.FINE


def _progress(options: argparse.Namespace, output: Output) -> ExitCode:
    return _show_labs(options.folder, output)


def _export(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.learning.progress import grades_csv, grades_of

    check_writable(options.csv)
    missing = [str(each) for each in options.folders if not each.is_dir()]
    if missing:
        raise SettingError(f"there is no folder {missing[0]}")
    rows = grades_of(options.folders, recheck=options.recheck)
    write_file(options.csv, grades_csv(rows, options.grades), output)
    told = f"{len(rows)} labs of {len({row['team'] for row in rows})} learners in {options.csv}"
    output.result({"rows": rows, "csv": str(options.csv)}, told)
    return ExitCode.FINE


def _work_of(folder: Path, word: str | None) -> tuple["WorkFolder", str | None]:
    """Return the folder of the lab that a word (a lab or a step) or a place means, and the step."""
    from tinytorch.learning.progress import find_folders, read_folder
    from tinytorch.learning.sources import existing_labs, lab_of_step

    here = read_folder(folder)
    if word is None:
        found = {here.progress.lab: here} if here else find_folders(folder)
        if len(found) != 1:
            raise SettingError(
                f"there are several labs here: {', '.join(found)}; name one, or a step"
                if found
                else "there is no lab here; `tinytorch learn start profiling` makes one"
            )
        return next(iter(found.values())), None
    is_lab = word in existing_labs()
    lab = word if is_lab else lab_of_step(word)
    work = here if here and here.progress.lab == lab else find_folders(folder).get(lab)
    if work is None:
        raise SettingError(
            f"the lab {lab} was not started here; run `tinytorch learn start {lab}`, or pass the "
            "folder where it was, --in FOLDER"
        )
    return work, None if is_lab else word


ACTIONS = {
    "start": _start,
    "check": _check,
    "solution": _solution,
    "progress": _progress,
    "export": _export,
}
