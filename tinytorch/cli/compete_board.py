"""``tinytorch compete board``: the leaderboard of a submissions folder."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tinytorch.cli.console import ExitCode, Output
from tinytorch.cli.options import (
    add_html_option,
    check_html_path,
    check_writable,
    write_file,
    write_html,
)

if TYPE_CHECKING:
    from tinytorch.competition.board import Board

KINDS = ("speed", "innovation", "composite")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the submissions folder")
    parser.add_argument("--event", metavar="EVENT", help="only this event")
    parser.add_argument(
        "--kind", choices=KINDS, default="speed", help="ranking criterion (default speed)"
    )
    add_html_option(parser)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all standings as CSV")
    parser.add_argument(
        "--grades", type=Path, metavar="FILE", help="write one row per team and event as CSV"
    )


def run(options: argparse.Namespace, output: Output) -> ExitCode:
    """Damaged files are reported and left out."""
    check_html_path(options.html, is_opened=options.open)
    for path in (options.csv, options.grades):
        if path is not None:
            check_writable(path)
    from tinytorch.competition.board import make_board
    from tinytorch.competition.board_files import board_fields
    from tinytorch.competition.events import find_event
    from tinytorch.competition.verification import read_folder
    from tinytorch.reporting.competition import board_document
    from tinytorch.reporting.terminal import render

    event = find_event(options.event).name if options.event else None
    folder = read_folder(options.folder)
    board = make_board(folder.records, rounds=folder.rounds, damaged=folder.damaged)
    shown = render(board_document(board, event=event, kinds=(options.kind,)))
    output.result(board_fields(board), shown)
    _write_tables(options, output, board)
    write_html(options.html, board, output, is_opened=options.open)
    if folder.damaged:
        output.say(f"{len(folder.damaged)} damaged; see `tinytorch compete verify`")
    return ExitCode.FINE


def _write_tables(options: argparse.Namespace, output: Output, board: "Board") -> None:
    from tinytorch.competition.board_files import grades_csv, to_csv

    if options.csv is not None:
        write_file(options.csv, to_csv(board), output)
    if options.grades is not None:
        write_file(options.grades, grades_csv(board), output)
