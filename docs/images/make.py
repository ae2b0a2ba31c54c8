"""Make the picture of a report: optimize a model, and photograph the top of its page.

    $ python docs/images/make.py cnn docs/images/report.png

Needs what the tests need: Chromium, playwright and Pillow. A page that is there already can be
given instead of a target.
"""

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

WIDTH, HEIGHT, COLOURS = 1280, 880, 96
BUDGET_S = 120


def page_of(target: str, folder: Path) -> Path:
    """Return the page of a target; measure it unless it is one."""
    if target.endswith(".html"):
        return Path(target).resolve()
    path = folder / "report.html"
    options = ["--html", str(path), "--budget", str(BUDGET_S), "--no-store", "--quiet"]
    subprocess.run([sys.executable, "-m", "tinytorch", "optimize", target, *options], check=True)
    return path


def photograph(page: Path) -> Image.Image:
    """Return the first screen of a page, as a wide window shows it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        shown = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        shown.goto(page.as_uri())
        shot = shown.screenshot()
        browser.close()
    return Image.open(io.BytesIO(shot)).convert("RGB")


def main() -> None:
    target, path = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        image = photograph(page_of(target, Path(folder)))
    # Few colours: a page has hardly more, and the file is a third. Rare ones count as well.
    few = image.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    main()
