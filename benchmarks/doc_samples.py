"""Take the samples of output in the documentation again, from a run.

    python benchmarks/doc_samples.py docs/profiling.md             # rewrites the samples of a page
    python benchmarks/doc_samples.py --list docs/*.md README.md    # the commands; nothing runs

A sample is a ``console`` block below ``<!-- sample -->``: every command after a ``$`` runs, in the
order of the page and in one temporary folder, and what follows it is replaced by what it prints.
``<!-- sample: first 12 -->`` keeps that many lines of each output, and a line of three dots.
Blocks below ``<!-- sample file: NAME -->`` are written into the folder as NAME, and the command of
``<!-- sample run: COMMAND -->`` runs there, unseen: what the reader is told to edit by hand.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCED = re.compile(
    r"<!-- sample run: (?P<unseen>[^\n]+?) -->"
    r"|<!-- sample(?: file: (?P<file>\S+)|: first (?P<first>\d+))? -->\n+"
    r"(?P<open>```\w+\n)(?P<body>.*?)(?P<close>```)",
    re.DOTALL,
)
COLUMNS = 100
DOTS = "..."


def commands_of(body: str) -> list[str]:
    """Return the commands of a block; a line that ends with a backslash goes on in the next."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", body, re.MULTILINE)


def output_of(command: str, folder: Path) -> list[str]:
    """Run a command in a folder and return the lines that it prints, without progress."""
    variables = {
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
        "PYTHONPATH": str(ROOT),
        "TINYTORCH_RECORDS": str(folder / "records.sqlite"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    ran = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    if ran.returncode in (2, 127) or "Traceback" in ran.stderr:
        sys.exit(f"{command}\n{ran.stderr}")
    return [line.rstrip() for line in ran.stdout.rstrip().splitlines()]


def shortened(lines: list[str], first: str | None) -> list[str]:
    """Return the first lines, and dots where there are more."""
    if first is None or len(lines) <= int(first):
        return lines
    return [*lines[: int(first)], DOTS]


def renewed(page: str, folder: Path) -> str:
    """Return a page with the samples of a run."""

    def renew(block: re.Match[str]) -> str:
        if block["unseen"]:
            output_of(block["unseen"], folder)
            return block[0]
        if block["file"]:
            (folder / block["file"]).write_text(block["body"], "utf-8")
            return block[0]
        lines = []
        for command in commands_of(block["body"]):
            print(f"$ {command}", file=sys.stderr)
            lines += [f"$ {command}", *shortened(output_of(command, folder), block["first"])]
        head = block[0][: block.start("body") - block.start()]
        return head + "\n".join(lines) + "\n" + block["close"]

    return FENCED.sub(renew, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--list", action="store_true", help="list the commands")
    options = parser.parse_args()
    for path in options.pages:
        page = path.read_text("utf-8")
        if options.list:
            for block in FENCED.finditer(page):
                for command in commands_of(block["body"] or "") or filter(None, [block["unseen"]]):
                    print(command)
            continue
        folder = Path(tempfile.mkdtemp())
        try:
            path.write_text(renewed(page, folder), "utf-8")
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
