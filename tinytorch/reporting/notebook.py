"""What a terminal would show, as HTML for notebooks."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

__all__ = ["notebook_html"]

HTML = '<pre style="font-family:monospace;line-height:1.3;overflow-x:auto">{code}</pre>'


def notebook_html(renderable: RenderableType, *, width: int = 140) -> str:
    """Give a piece of HTML that looks as a terminal of some width would show it."""
    console = Console(file=io.StringIO(), width=width, record=True, markup=False, highlight=False)
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=HTML)
