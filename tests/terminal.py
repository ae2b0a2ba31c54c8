"""What a terminal of some width would show."""

import io
from typing import Any

from rich.console import Console


def shown(renderable: Any, width: int = 120) -> str:
    """Give what rich prints, without colours."""
    console = Console(file=io.StringIO(), width=width, markup=False)
    console.print(renderable)
    return console.file.getvalue()
