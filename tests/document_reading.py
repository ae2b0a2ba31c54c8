"""What a reader of a document finds: sections, tables, words."""

from tinytorch.reporting.document import (
    Beside,
    Bullets,
    Facts,
    Folded,
    Item,
    Only,
    Paragraph,
    Section,
    Table,
    document_of,
    plain_text,
)
from tinytorch.reporting.html.page import section_from


def blocks(part):
    """Yield all blocks of a document or a section, also those inside of others."""
    for block in part.blocks:
        yield block
        if isinstance(block, Folded | Only | Beside | Section):
            yield from blocks(block)


def section(document, anchor):
    (found,) = [x for x in blocks(document) if isinstance(x, Section) and x.anchor == anchor]
    return found


def anchors(document):
    return [each.anchor for each in document.blocks if isinstance(each, Section)]


def page_section(result, anchor, **context):
    """Give the part of the page of a result."""
    return section_from(section(document_of(result, **context), anchor))


def tables(part):
    """Give all tables, each as titles and rows of texts, without empty columns."""
    found = []
    for table in (each for each in blocks(part) if isinstance(each, Table)):
        columns, rows = table.filled()
        titles = [column.title for column in columns]
        found.append([titles, *([cell.text for cell in row.cells] for row in rows)])
    return found


def rows(part):
    """Give the rows of all tables as mappings, by what stands first in them."""
    return {
        line[0]: dict(zip(titles, line, strict=True))
        for titles, *lines in tables(part)
        for line in lines
    }


def facts(part):
    """Give all names with their values."""
    return {
        name: plain_text(words)
        for block in blocks(part)
        if isinstance(block, Facts)
        for name, words in block.pairs
    }


def lines(part):
    """Give all paragraphs and items as plain text."""
    found = []
    for block in blocks(part):
        if isinstance(block, Paragraph):
            found.append(plain_text(block.words))
        if isinstance(block, Bullets):
            for each in block.items:
                item = each if isinstance(each, Item) else Item(each)
                found += [plain_text(item.words), *map(plain_text, item.below)]
    return found
