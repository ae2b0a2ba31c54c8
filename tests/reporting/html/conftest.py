"""A real browser for pages: it complains about what people would never see."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from parts import require_browser

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
AT_LEAST = "without_complaint"
DESKTOP = {"width": 1280, "height": 900}
INSIDE = ("file:", "blob:", "data:")
"""What a page may ask for without leaving its own file."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count tests in a browser as slow ones, but for one look at each page."""
    for item in items:
        is_shown = "browser_page" in getattr(item, "fixturenames", ())
        if is_shown and AT_LEAST not in item.name:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def _browser() -> Iterator[Any]:
    """Start the browser once for all tests of a process."""
    program = require_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def browser_page(_browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Give ``browser_page(html, width=1280, dark=False, scripts=True) -> page`` of playwright.

    The test fails when a page writes an error to the console, raises one, or asks for anything
    that is not inside of its file.
    """
    problems: list[str] = []
    contexts = []
    numbers = count()

    def show(html: str, *, width: int = 1280, dark: bool = False, scripts: bool = True) -> Any:
        context = _browser.new_context(
            viewport={**DESKTOP, "width": width},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            java_script_enabled=scripts,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: said.type == "error" and problems.append(said.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda asked: asked.url.startswith(INSIDE) or problems.append(asked.url))
        file = tmp_path / f"page{next(numbers)}.html"
        file.write_text(html, "utf-8")
        page.goto(file.as_uri())
        return page

    yield show
    for context in contexts:
        context.close()
    assert problems == []
