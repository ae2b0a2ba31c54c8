"""What is run of a learner's file."""

import pytest

from tinytorch.learning.work import Missed, load_work


@pytest.fixture
def work_of(tmp_path):
    """Give ``work_of(text) -> Work`` of a file."""

    def write(text):
        path = tmp_path / "mine.py"
        path.write_text(text, "utf-8")
        return load_work(path)

    return write


def test_measurements_are_not_run_and_definitions_are(work_of):
    work = work_of("import math\nSIZE = 3\nprint(1 / 0)\ndef double(x):\n    return SIZE * x\n")
    assert work.double(2) == 6


def test_what_follows_from_a_measurement_is_not_run(work_of):
    work = work_of("found = max(1, 2)\nother = found + 1\n")
    assert "other" not in work.names
    assert "other" in work.skipped


@pytest.mark.parametrize("change", ["rows.append(n)", "rows[0] = n"])
def test_a_list_that_a_measurement_fills_is_not_read_empty(work_of, change):
    text = f"rows = []\nfor n in range(3):\n    {change}\nlast = rows[-1]\ndef f():\n    return 1\n"
    work = work_of(text)
    assert work.f() == 1
    assert "last" in work.skipped


def test_a_module_is_not_changed_by_calling_its_functions(work_of):
    work = work_of("import math\nprint(math.sqrt(2))\nHALF = math.pi / 2\n")
    assert work.HALF > 1.5


DEFAULTS = [
    "def f(x=found):\n    return x\n",
    "async def f(*, x=[found]):\n    return x\n",
    "class f:\n    def __init__(self, x=found): pass\n",
    "class f:\n    size = found\n",
    "def g(x=found):\n    return x\nf = [g]\n",
    "f = lambda x=found: x\n",
]


@pytest.mark.parametrize("text", DEFAULTS)
def test_a_default_from_a_measurement_costs_only_what_has_it(work_of, text):
    work = work_of(f"found = max(1, 2)\n{text}def other():\n    return found\n")
    assert "other" in work.names
    with pytest.raises(Missed) as missed:
        work.f()
    assert missed.value.code == "needs-measurement"


def test_a_function_may_name_a_measurement_in_its_body(work_of):
    text = "found = max(1, 2)\ndef f(x=3):\n    return x, lambda y=found: y\nf2 = lambda: found\n"
    work = work_of(text)
    assert {"f", "f2"} <= set(work.names)


@pytest.mark.parametrize(
    "text",
    [
        "f = [n * n for n in (1, 2)]\n",
        "class f:\n    @property\n    def n(self): pass\n    @n.setter\n    def n(self, n): pass\n",
    ],
)
def test_a_name_of_an_inner_scope_is_not_that_of_a_measurement(work_of, text):
    assert "f" in work_of(f"for n in range(3):\n    print(n)\n{text}").names


def test_a_name_that_is_given_a_constant_later_is_known(work_of):
    work = work_of("size = max(1, 2)\nsize = 3\ndef f(x=size):\n    return x\n")
    assert work.f() == 3


def test_a_name_that_is_missing_is_told(work_of):
    work = work_of("A = 1\n")
    with pytest.raises(Missed) as missed:
        work.double(1)
    assert missed.value.code == "not-found"
