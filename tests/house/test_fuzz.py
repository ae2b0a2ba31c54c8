"""Files of strangers, reduced: benchmarks/fuzz.py has two thousand for each loader."""

import sys

import pytest
from project_files import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import fuzz
import fuzz_loaders

LOADERS = fuzz_loaders.loaders()


@pytest.mark.parametrize("loader", LOADERS, ids=lambda each: each.name)
def test_a_file_that_nobody_changed_is_read(loader):
    assert fuzz.mutant(loader, 0) == loader.seeds[0]
    assert fuzz.fuzz(loader, 1) == ({fuzz.READ: 1}, [])


@pytest.mark.parametrize("kind", sorted(fuzz.CHANGES))
def test_a_mutant_is_made_from_its_number(kind):
    loader = next(each for each in LOADERS if each.kind == kind)
    made = [fuzz.mutant(loader, number) for number in range(100, 130)]
    assert made == [fuzz.mutant(loader, number) for number in range(100, 130)]
    assert len(set(made)) > 20
    assert not set(made) <= set(loader.seeds)


@pytest.mark.slow
@pytest.mark.parametrize("loader", LOADERS, ids=lambda each: each.name)
def test_no_loader_ends_in_a_traceback_hangs_or_fills_the_memory(loader):
    counts, examples = fuzz.fuzz(loader, 60, seed=1)
    assert examples == []
    assert counts[fuzz.READ] + counts[fuzz.REFUSED] == 60


def judged(read):
    """Give what becomes of two files of a loader that does this."""
    loader = fuzz_loaders.Loader("x", "x", fuzz_loaders.BYTES, [b"12345678"], read, {})
    return fuzz.fuzz(loader, 2)


def test_what_must_not_happen_is_seen(monkeypatch):
    monkeypatch.setattr(fuzz, "LIMIT_S", 0.2)

    def endless(path):
        while True:
            pass

    assert judged(lambda path: path.read_bytes().nothing)[0][fuzz.TRACEBACK] == 2
    assert judged(endless)[0][fuzz.HANG] == 2
    assert judged(lambda path: sys.exit(3))[0][fuzz.TRACEBACK] == 2
