"""Take the samples of the README again, in a fresh environment that its own command makes.

    python benchmarks/readme_samples.py

The sample of the tour comes from the main command; for that of PyTorch, the same environment gets
the extra `torch` on top. Neither sees anything else that is installed here.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAIN = re.compile(r"<!-- main command -->\n```bash\n(?P<command>.*?)\n```", re.DOTALL)
TOUR = re.compile(r"(?<=<!-- sample: tour -->\n```text\n).*?(?=```)", re.DOTALL)
SCRIPT = re.compile(
    r"<!-- sample: python -->\n```python\n(?P<code>.*?)```\n\n```text\n(?P<text>.*?)```", re.DOTALL
)
CHAPTER = re.compile(r"\n1\. gpt.*?(?=\n\nIt is a truth)", re.DOTALL)
"""The first chapter of the tour, without the text that is written."""
VARIABLES = {"COLUMNS": "80", "NO_COLOR": "1"}


def output_of(command: str, folder: Path, *, code: str = "") -> str:
    """Run a shell command in a folder, with code on stdin, and return what it prints."""
    ran = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=os.environ | VARIABLES | {"TINYTORCH_RECORDS": str(folder / "records.sqlite")},
        input=code,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in ran.stdout.splitlines())


def main() -> None:
    path = ROOT / "README.md"
    page = path.read_text("utf-8")
    command, script = MAIN.search(page), SCRIPT.search(page)
    assert command is not None, "the README has a main command"
    assert script is not None, "the README has an example of PyTorch"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here = command["command"].replace('".[', f'"{ROOT}[')
        told = CHAPTER.search(output_of(here, folder))
        assert told is not None, "the tour begins with the GPT"
        pinned = f"-c {ROOT}/constraints.txt"
        output_of(f'.venv/bin/pip install --quiet {pinned} "{ROOT}[torch]"', folder)
        found = output_of(".venv/bin/python -", folder, code=script["code"])
    page = page[: script.start("text")] + f"{found}\n" + page[script.end("text") :]
    path.write_text(TOUR.sub(lambda _: f"{told[0].strip()}\n", page), "utf-8")


if __name__ == "__main__":
    main()
