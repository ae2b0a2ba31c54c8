"""A page: a banner with the verdict, sections, an appendix; everything in one file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from tinytorch import __version__
from tinytorch.reporting.html.markup import Markup, element, joined

__all__ = ["Banner", "Page", "Section", "packed", "render_page"]

Tone = Literal["good", "bad", "neutral", "unknown"]
STYLES = ("style.css", "plot.css")
COMMON_SCRIPTS = ("sorting.js",)
"""Scripts that every page has; a section names those that it needs beside them."""


@dataclass(frozen=True)
class Banner:
    """What is read first: the verdict in a word, a sentence, and a few numbers that matter.

    `facts` are pairs such as ``("time", "0.61x (0.59 to 0.63)")``.
    """

    verdict: str
    sentence: str
    facts: tuple[tuple[str, str], ...] = ()
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Section:
    """One part of a page; `about` says how to read it, `anchor` names it in links."""

    anchor: str
    title: str
    body: Markup
    about: str = ""
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """Everything that one file shows. `raw` can be saved from it as JSON."""

    title: str
    banner: Banner
    sections: tuple[Section, ...]
    raw: Mapping[str, Any] = field(default_factory=dict)
    subtitle: str = ""


def packed(value: Any, name: str) -> Markup:
    """Give data for the scripts of a page: JSON, gzipped, in letters.

    JSON has no NaN and no infinity; they become null.
    """
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    letters = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")
    return element("script", Markup(letters), type="application/gzip+json", id=name)


def render_page(page: Page) -> str:
    """Write the file. Nothing in it may be fetched from elsewhere; its policy says so."""
    names = dict.fromkeys((*COMMON_SCRIPTS, *(s for each in page.sections for s in each.scripts)))
    scripts = [_asset(name) for name in names]
    style = "\n".join(_asset(name) for name in STYLES)
    head = joined(
        [
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="referrer", content="no-referrer"),
            element("meta", name="generator", content=f"tinytorch {__version__}"),
            element("title", page.title),
            element("style", Markup(style)),
        ],
        Markup("\n"),
    )
    sections = element("main", *(_section(each) for each in page.sections), id="content")
    body = joined(
        [
            element("a", "Skip to the content", href="#content", class_="skip"),
            _masthead(page),
            _banner(page.banner),
            element("div", _contents(page), sections, class_="layout"),
            element("footer", f"Made with tinytorch {__version__}. Nothing is fetched to show it."),
            packed(page.raw, "raw") if page.raw else Markup(""),
            *(element("script", Markup(each)) for each in scripts),
        ],
        Markup("\n"),
    )
    document = element(
        "html", element("head", head), Markup("\n"), element("body", body), lang="en"
    )
    # Half of a pair of letters, as names of files may hold, has no form in the file.
    return f"<!doctype html>\n{document}\n".encode("utf-8", "replace").decode("utf-8")


def _masthead(page: Page) -> Markup:
    return element(
        "div",
        element("p", page.title, class_="title"),
        element("p", page.subtitle, class_="subtitle") if page.subtitle else Markup(""),
        element("button", "Dark", type="button", id="theme"),
        class_="masthead",
    )


def _banner(banner: Banner) -> Markup:
    facts = [element("div", element("dt", k), element("dd", v)) for k, v in banner.facts]
    return element(
        "header",
        element("h1", banner.verdict),
        element("p", banner.sentence, class_="sentence") if banner.sentence else Markup(""),
        element("dl", *facts) if facts else Markup(""),
        class_=f"banner {banner.tone}",
    )


def _contents(page: Page) -> Markup:
    links = [element("a", each.title, href=f"#{each.anchor}") for each in page.sections]
    listed = element("ul", *(element("li", link) for link in links))
    return element("nav", listed, class_="contents", aria_label="Contents")


def _section(section: Section) -> Markup:
    heading = f"{section.anchor}-title"
    return element(
        "section",
        element("h2", section.title, id=heading),
        element("p", section.about, class_="about") if section.about else Markup(""),
        section.body,
        id=section.anchor,
        aria_labelledby=heading,
    )


def _finite(value: Any) -> Any:
    """Give the same value with None for what is not a finite number."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return _finite(value.tolist()) if hasattr(value, "tolist") else value  # of NumPy


@cache
def _asset(name: str) -> str:
    """Read a style or script; it must not end the element that it stands in."""
    text = files("tinytorch.reporting.html").joinpath(name).read_text("utf-8")
    breaks_out = "</s" in text.lower() or "<!--" in text
    assert not breaks_out, f"{name} would end its own element"
    return text


def _policy(scripts: list[str]) -> str:
    """Allow the scripts by what they say, and nothing from elsewhere.

    Scripts may not make markup out of text either (trusted types): a name stays a name.
    """
    digests = " ".join(f"'{_digest(each)}'" for each in scripts)
    return (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
