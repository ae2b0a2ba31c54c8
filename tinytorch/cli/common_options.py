"""``--json``, ``--quiet`` and ``--seed``: the options of every command, also inside of one."""

import argparse

__all__ = ["add_common_options"]


def add_common_options(parser: argparse.ArgumentParser, *, is_inner: bool = False) -> None:
    """Add the options that every command has.

    An inner parser (``tinytorch compete run``) sets only what is given to it, so that the options
    may stand before its name as well as after it.
    """

    def otherwise(default: object) -> object:
        return argparse.SUPPRESS if is_inner else default

    common = parser.add_argument_group("common options")
    common.add_argument(
        "--json",
        action="store_true",
        default=otherwise(False),
        help="print the result as JSON on stdout, messages on stderr",
    )
    common.add_argument(
        "--quiet",
        action="store_true",
        default=otherwise(False),
        help="print the result and nothing else",
    )
    common.add_argument(
        "--seed",
        type=_seed,
        default=otherwise(0),
        metavar="N",
        help="seed of everything random (default 0)",
    )


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a seed is a whole number from 0 on, not {text!r}")
    return int(text)
