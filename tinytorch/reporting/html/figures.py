"""Pictures in their place: under their titles, beside each other where there is room."""

from __future__ import annotations

from tinytorch.reporting.html.markup import Markup, element

__all__ = ["beside", "figure"]


def figure(picture: Markup, *, title: str, about: str = "") -> Markup:
    """Put a picture under its title, and a few words about it."""
    caption = element("figcaption", element("b", title), f" {about}" if about else "")
    return element("figure", caption, picture)


def beside(*figures: Markup) -> Markup:
    """Put figures in a row, or below each other."""
    columns = "repeat(auto-fit,minmax(min(28rem,100%),1fr))"
    return element(
        "div", *figures, style=f"display:grid;gap:0 1.5rem;grid-template-columns:{columns}"
    )
