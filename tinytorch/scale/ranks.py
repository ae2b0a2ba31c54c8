"""``torchrun --nproc-per-node N -m tinytorch.scale.ranks train.py ...``: profile a script's steps.

``python -m tinytorch.scale.ranks --read FOLDER`` shows what ranks have written, dead or alive.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import runpy
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, NoReturn

from tinytorch.core.files import write_atomically
from tinytorch.errors import TinyTorchError, first_line

TERMINATED = 128 + signal.SIGTERM
PATIENCE_S = 3.0
"""How long a terminated process may take to end by itself; torchrun kills it after 30 s."""

if TYPE_CHECKING:
    from tinytorch.scale.ranks_result import RanksProfile
    from tinytorch.scale.ranks_torch import RanksProfiler


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m tinytorch.scale.ranks",
        description="Profile the steps of a distributed program, rank by rank.",
        allow_abbrev=False,
    )
    parser.add_argument("--steps", type=int, default=100, help="steps to record (default: 100)")
    parser.add_argument("--warmup", type=int, default=5, help="steps before these (default: 5)")
    parser.add_argument("--overhead-steps", type=int, default=48, help="steps that tell the cost")
    parser.add_argument("--folder", type=Path, help="where ranks write; all of them must see it")
    parser.add_argument("--full", action="store_true", help="keep all records, however large")
    parser.add_argument("--no-ceilings", action="store_true", help="no bare collectives afterwards")
    parser.add_argument("--stall-s", type=float, default=60.0, help="a longer step is noted")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for Perfetto")
    parser.add_argument("--read", type=Path, metavar="FOLDER", help="show what ranks have written")
    parser.add_argument("script", nargs="?", help="the program, as torchrun would start it")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.read is not None:
            from tinytorch.scale.ranks_result import result_of

            show(result_of(options.read), options)
            return 0
        if options.script is None or not Path(options.script).is_file():
            parser.error(f"{options.script or 'no script'}: give a script to run, or --read FOLDER")
        return run_script(options)
    except TinyTorchError as error:
        say(f"tinytorch.scale.ranks: {error}")
        return 2


def run_script(options: argparse.Namespace) -> int:
    """Run a script with its steps recorded, and show the result once rank 0 has it."""
    from tinytorch.scale.ranks_torch import RanksProfiler, Settings

    settings = Settings(
        options.steps,
        options.warmup,
        options.overhead_steps,
        options.folder,
        options.full,
        not options.no_ceilings,
        options.stall_s,
    )
    profiler = RanksProfiler(settings)
    profiler.on_result = lambda result: show(result, options)
    profiler.say = say
    sys.argv = [options.script, *options.arguments]
    sys.path[0:0] = [os.path.dirname(os.path.abspath(options.script))]
    profiler.begin()
    _finish_when_terminated(profiler)
    try:
        runpy.run_path(options.script, run_name="__main__")
    except SystemExit as ending:
        profiler.finish("finished" if not ending.code else f"exit code {ending.code}")
        raise
    except BaseException as error:
        profiler.finish(first_line(error))
        raise
    profiler.finish("finished")
    return 0


def say(words: str) -> None:
    """Write a line on the progress to stderr."""
    sys.stderr.write(f"{words}\n")


def _finish_when_terminated(profiler: RanksProfiler) -> None:
    """When torchrun ends this process, since another rank failed, tell what there is before.

    The main thread may be blocked in a collective for minutes; then another thread does it.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)

    def end(*_: object) -> None:
        if not profiler.is_over:
            sys.exit(TERMINATED)

    signal.signal(signal.SIGTERM, end)

    def wait() -> None:
        while True:
            # A handler of the program's own, which may be writing a checkpoint, ends it itself.
            if os.read(reading, 1) == bytes([signal.SIGTERM]) and (
                signal.getsignal(signal.SIGTERM) is end
            ):
                break
        sleep(PATIENCE_S)
        profiler.finish("terminated")
        profiler.ended.wait(timeout=4 * PATIENCE_S)
        sys.stdout.flush()
        os._exit(TERMINATED)

    threading.Thread(target=wait, name="tinytorch-terminated", daemon=True).start()


def show(result: RanksProfile, options: argparse.Namespace) -> None:
    """Print a result, and write the files that were asked for."""
    if options.json:
        sys.stdout.write(json.dumps(result.to_dict()) + "\n")
    else:
        sys.stdout.write(f"{result}\n")
    sys.stdout.flush()
    if options.html is not None:
        from tinytorch.showing import page_of

        _write(options.html, page_of(result))
    if options.trace is not None:
        from tinytorch.scale.rank_trace import merged_trace

        _write(options.trace, json.dumps(merged_trace(Path(result.folder))))


def _write(path: Path, text: str) -> None:
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    say(f"wrote {path}")


def leave(code: int) -> NoReturn:
    """End the process as Python does, but for taking the interpreter apart.

    Threads of a backend that let go of a finished collective meanwhile would abort the process.
    """
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
