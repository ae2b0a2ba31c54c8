"""``tinytorch compete submit``: copy an entry and all of its runs to a submissions folder."""

import argparse
from pathlib import Path

from tinytorch.cli.console import ExitCode, Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of the entry")
    parser.add_argument(
        "--to", type=Path, required=True, metavar="FOLDER", help="the submissions folder"
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="sign the records with this Ed25519 key"
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="submit even if the last run broke a rule; the leaderboard shows it as invalid",
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    from tinytorch.competition.submissions import submit

    done = submit(options.folder, options.to, key=options.key, even_invalid=options.anyway)
    older = f", {done.older} of them of former versions" if done.older else ""
    signed = ", signed" if options.key else ""
    told = f"{done.folder}: {counted_runs(done.added)} added, {done.runs} in all{older}{signed}"
    payload = {"folder": done.folder, "added": done.added, "runs": done.runs, "older": done.older}
    output.result({**payload, "entry_sha256": done.entry.sha256}, told)
    output.say(f"next: tinytorch compete board {options.to}")
    return ExitCode.FINE


def counted_runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"
