"""The checks of the labs: the reference passes, and wrong solutions are caught with their hint."""

import pytest
from wrong_solutions import reference, wrong_solutions

from tinytorch.learning.checking import NOT_WRITTEN, checks_of, run_check, what_it_checks
from tinytorch.learning.sources import existing_labs, load_lab, to_percent
from tinytorch.learning.work import load_work

STEPS = [(lab, step.name) for lab in existing_labs() for step in load_lab(lab).steps]
WRONG = [
    pytest.param(lab, wrong, id=f"{lab}-{wrong.step}-{number}-{wrong.code}")
    for lab in existing_labs()
    for number, wrong in enumerate(wrong_solutions(lab))
]
SEEDS = (1, 20_251, 77)


def first_missed(path, lab, step, seed=1):
    """Return the first check of a step that does not hold, or None."""
    for check in checks_of(lab)[step]:
        found = run_check(check, lambda: load_work(path), seed=seed)
        if not found.passed:
            return found
    return None


@pytest.fixture
def written(tmp_path):
    """Give ``written(text) -> path`` of a learner's file."""
    path = tmp_path / "work.py"

    def write(text):
        path.write_text(text, "utf-8")
        return path

    return write


@pytest.mark.parametrize(("lab", "step"), STEPS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_reference_passes(written, lab, step, seed):
    assert first_missed(written(reference(lab)), lab, step, seed) is None


@pytest.mark.slow
@pytest.mark.parametrize(("lab", "step"), STEPS)
def test_no_case_that_is_drawn_refuses_the_reference(written, lab, step):
    # A mistake may happen to give the right answer in a rare case: that must not count against it.
    work = load_work(written(reference(lab)))
    for check in checks_of(lab)[step]:
        found = [run_check(check, lambda: work, seed=seed) for seed in range(100)]
        assert [each for each in found if not each.passed] == []


@pytest.mark.parametrize(("lab", "step"), STEPS)
def test_the_hand_out_asks_for_code(written, lab, step):
    path = written(to_percent(load_lab(lab).handed_out()))
    assert first_missed(path, lab, step).code == NOT_WRITTEN


@pytest.mark.parametrize(("lab", "wrong"), WRONG)
def test_a_wrong_solution_gets_its_hint(written, lab, wrong):
    path = written(wrong.applied_to(reference(lab)))
    for seed in SEEDS:
        found = first_missed(path, lab, wrong.step, seed)
        assert found is not None
        assert (found.code, bool(found.words)) == (wrong.code, True), found.words


OTHER_RIGHT_ONES = [
    ("profiling", "layers", 'np.shape(getattr(x, "data", x))', "x.shape"),
    ("profiling", "timer", '"times": times,', '"times": np.array(times),'),
    ("caching", "write", "len(prompt) + count", "max(1, len(prompt) + count - 1)"),
]


@pytest.mark.parametrize(("lab", "step", "old", "new"), OTHER_RIGHT_ONES)
def test_other_right_solutions_pass(written, lab, step, old, new):
    assert reference(lab).count(old) >= 1
    path = written(reference(lab).replace(old, new))
    for seed in SEEDS:
        assert first_missed(path, lab, step, seed) is None


@pytest.mark.parametrize(("lab", "step"), STEPS)
def test_every_step_has_three_wrong_solutions_and_says_what_it_checks(lab, step):
    assert sum(each.step == step for each in wrong_solutions(lab)) >= 3
    assert all(map(what_it_checks, checks_of(lab)[step]))


@pytest.mark.parametrize("lab", existing_labs())
def test_every_step_has_checks_and_only_these(lab):
    assert list(checks_of(lab)) == [each.name for each in load_lab(lab).steps]


def test_names_of_steps_and_labs_occur_once():
    names = [step for _, step in STEPS] + list(existing_labs())
    assert len(names) == len(set(names))
