"""The text that the language model learns: Jane Austen, "Pride and Prejudice" (1813).

The novel is in the public domain. ``corpus.txt`` holds the whole text as in the public-domain
edition, in plain ASCII: one line per paragraph, one blank line between paragraphs, chapter
headings as paragraphs of their own, no marks for italics.
"""

from importlib import resources

import numpy as np

from tinytorch.errors import SettingError

CORPUS_FILE = "corpus.txt"
PARAGRAPH_BREAK = "\n\n"


def load_corpus() -> str:
    """Read the whole novel, about 680,000 characters."""
    return resources.files(__package__).joinpath(CORPUS_FILE).read_text(encoding="ascii")


def split_corpus(text: str, held_out: float = 0.1) -> tuple[str, str]:
    """Cut the text into a part to train on and the last part, which is held out.

    The two parts joined are the text again. The cut is the paragraph boundary nearest to the
    fraction asked for, so the held-out part starts with the first letter of a paragraph.
    """
    if not 0.0 < held_out < 1.0:
        raise SettingError(
            f"held_out is {held_out!r}: give the fraction of the text to hold out, "
            "between 0 and 1 without the ends (0.1 holds out the last tenth)"
        )
    wanted = round(len(text) * (1.0 - held_out))
    before = text.rfind(PARAGRAPH_BREAK, 0, wanted)
    after = text.find(PARAGRAPH_BREAK, before + 1)
    cuts = [found + len(PARAGRAPH_BREAK) for found in (before, after) if found >= 0]
    if not cuts:
        raise SettingError(
            f"the text has {len(text)} characters and no blank line to cut at: "
            "separate its paragraphs by blank lines"
        )
    cut = min(cuts, key=lambda position: abs(position - wanted))
    return text[:cut], text[cut:]


def unigram_entropy(text: str) -> float:
    """Compute the entropy of single characters, in nats per character.

    No model that ignores what came before can have a lower loss on this text, so a language model
    has learned something only where its loss is below.
    """
    if not text:
        raise SettingError("the text is empty: entropy needs at least one character")
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    counts = np.unique(codes, return_counts=True)[1]
    shares = counts / codes.size
    return float(-(shares * np.log(shares)).sum())
