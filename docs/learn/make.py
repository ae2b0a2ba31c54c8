"""Write the pages and notebooks of the labs anew: run it after a change of a lab or its checks.

python docs/learn/make.py
"""

from pathlib import Path

from tinytorch.learning.checking import checks_of, what_it_checks
from tinytorch.learning.sources import existing_labs, load_lab, to_markdown, to_notebook

HERE = Path(__file__).parent


def pages() -> dict[str, str]:
    """Return the text of every file that is made from the labs."""
    made = {"checks.md": checks_page()}
    for name in existing_labs():
        lab = load_lab(name).handed_out()
        made |= {f"{name}.md": to_markdown(lab), f"{name}.ipynb": to_notebook(lab)}
    return made


def checks_page() -> str:
    """Return a page with what every check of every step checks."""
    lines = [
        "<!-- made from tinytorch/learning/checks by docs/learn/make.py -->\n",
        "# What the checks check\n",
        "Each check draws new random cases every time, and is a promise that the reference keeps.",
        "Most notice several mistakes, each with a hint of its own.\n",
    ]
    for name in existing_labs():
        lab = load_lab(name)
        lines += [f"## [{lab.title}]({name}.md)\n", "| step | what is checked |", "|---|---|"]
        for step in lab.steps:
            said = [what_it_checks(check) for check in checks_of(name)[step.name]]
            lines.append(f"| `{step.name}` | {'.<br>'.join(said)}. |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Write all files."""
    for name, text in pages().items():
        (HERE / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
