"""Looking into documents: their sections, and the blocks, rows and words of some part."""

from dataclasses import fields, is_dataclass

from tinytorch.reporting.document import Cell, Section, Table, plain_text


def anchors(document):
    """Return the anchors of the sections of a document, in their order."""
    return [each.anchor for each in document.blocks if isinstance(each, Section)]


def section(document, anchor):
    """Return the section with this anchor, also one inside of another."""
    return next(each for each in blocks(document, Section) if each.anchor == anchor)


def blocks(part, kind):
    """Return all blocks of a kind in a document, a section or any other block, in their order."""
    found = [part] if isinstance(part, kind) else []
    for each in getattr(part, "blocks", ()):
        found += blocks(each, kind)
    return found


def rows(part, place=0):
    """Return the texts in the cells of a table, which is the first of a part."""
    table = blocks(part, Table)[place]
    return [[_text(cell) for cell in getattr(row, "cells", row)] for row in table.rows]


def heads(part, place=0):
    """Return the titles of the columns in which a table, the first of a part, says something."""
    columns, _ = blocks(part, Table)[place].filled()
    return [column.title for column in columns]


def words(part):
    """Return every piece of text in a part, a line each."""
    return "\n".join(_words(part))


def _text(cell):
    return cell.text if isinstance(cell, Cell) else cell


def _words(part):
    if isinstance(part, str):
        yield part
    elif isinstance(part, tuple) and part and all(_is_piece(each) for each in part):
        yield plain_text(part)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _words(each)
    elif is_dataclass(part):
        for each in fields(part):
            if each.name not in ("raw", "environment", "anchor", "tone"):
                yield from _words(getattr(part, each.name))


def _is_piece(each):
    return isinstance(each, str) or hasattr(each, "text")
