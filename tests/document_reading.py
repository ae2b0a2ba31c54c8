"""Looking into documents: their sections, and the blocks, rows and words of some part."""

from dataclasses import fields, is_dataclass

from tinytorch.reporting.document import (
    Bullets,
    Cell,
    Facts,
    Item,
    Paragraph,
    Section,
    Table,
    document_of,
    plain_text,
)
from tinytorch.reporting.html.page import section_from


def anchors(document):
    """Return the anchors of the sections of a document, in their order."""
    return [each.anchor for each in document.blocks if isinstance(each, Section)]


def section(document, anchor):
    """Return the only section with this anchor, also one inside of another."""
    (found,) = [each for each in blocks(document, Section) if each.anchor == anchor]
    return found


def page_section(result, anchor, **context):
    """Return the section of the page of a result."""
    return section_from(section(document_of(result, **context), anchor))


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


def tables(part):
    """Return all tables, each as titles and rows of texts, without empty columns."""
    found = []
    for table in blocks(part, Table):
        columns, filled = table.filled()
        titles = [column.title for column in columns]
        found.append([titles, *([cell.text for cell in row.cells] for row in filled)])
    return found


def named_rows(part):
    """Return the rows of all tables as mappings, by what stands first in them."""
    return {
        line[0]: dict(zip(titles, line, strict=True))
        for titles, *lines in tables(part)
        for line in lines
    }


def facts(part):
    """Return all names with their values."""
    return {name: plain_text(words) for block in blocks(part, Facts) for name, words in block.pairs}


def lines(part):
    """Return all paragraphs and items as plain text."""
    found = []
    for block in blocks(part, Paragraph | Bullets):
        items = [block] if isinstance(block, Paragraph) else block.items
        for each in items:
            item = each if isinstance(each, Item | Paragraph) else Item(each)
            found += [plain_text(item.words), *map(plain_text, getattr(item, "below", ()))]
    return found


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
