"""What a reader of HTML finds: elements, their texts, tables."""

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Reading(HTMLParser):
    """Collects elements as (tag, attributes, text), and complains about wrong nesting."""

    def __init__(self, html):
        super().__init__()
        self.elements = []
        self._open = []
        self.feed(str(html))
        self.close()
        assert not self._open, f"not closed: {[each[0] for each in self._open]}"

    def handle_starttag(self, tag, attrs):
        found = (tag, dict(attrs), [])
        self.elements.append(found)
        if tag not in VOID:
            self._open.append(found)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        opened = self._open.pop()
        assert opened[0] == tag, f"{tag} ends {opened[0]}"

    def handle_data(self, words):
        for each in self._open:
            each[2].append(words)

    def texts(self, tag, **attributes):
        """Give the texts of all elements of a tag whose class, id and so on hold these words."""
        return ["".join(text) for _, text in self._having(tag, attributes)]

    def all(self, tag, **attributes):
        """Give the attributes of such elements."""
        return [given for given, _ in self._having(tag, attributes)]

    def _having(self, tag, attributes):
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        for found, given, text in self.elements:
            fits = all(value in given.get(name, "").split() for name, value in wanted.items())
            if found == tag and fits:
                yield given, text

    def rows(self):
        """Give the texts of the cells of all rows of all tables."""
        rows = []
        for tag, _, text in self.elements:
            if tag == "tr":
                rows.append([])
            elif tag in ("td", "th"):
                rows[-1].append("".join(text))
        return rows
