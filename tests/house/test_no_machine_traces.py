"""The project names no folder of a machine that it was written on, and no package registry."""

import re

import pytest
from project_files import ROOT, project_files

# The brackets keep these patterns from finding themselves.
TRACES = {
    "a working folder": r"/wor[k]/",
    "a home folder": r"/roo[t]/|/hom[e]/\w+/|/User[s]/\w+/",
    "a virtual environment": r"/opt/ven[v]",
    "a temporary folder": r"/tmp/bas[h]",
    "a package registry": r"(index|registry|find)-(ur[l]|link[s])|/simpl[e]/|download\.pytorc[h]",
}


def traces_in(text):
    return [kind for kind, pattern in TRACES.items() if re.search(pattern, text)]


def text_files():
    for path in project_files():
        try:
            yield path, path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # Not text: weights, images.


def test_no_file_holds_a_trace():
    found = {str(path.relative_to(ROOT)): traces_in(text) for path, text in text_files()}
    assert {path: kinds for path, kinds in found.items() if kinds} == {}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("see /wor" + "k/main", "a working folder"),
        ("see /roo" + "t/x", "a home folder"),
        ("run /opt/ven" + "v/bin/python", "a virtual environment"),
        ("pip install --index-ur" + "l x", "a package registry"),
    ],
)
def test_the_check_sees(text, kind):
    assert traces_in(text) == [kind]
