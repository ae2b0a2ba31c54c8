import pytest
from example_boards import run

from tinytorch.competition.run_files import NOT_CHECKED, SEED_NOT_REVEALED


@pytest.mark.parametrize(
    ("status", "is_verified"),
    [("verified", True), (SEED_NOT_REVEALED, True), (NOT_CHECKED, False), ("unverified", False)],
)
def test_only_what_could_be_checked_is_verified(status, is_verified):
    assert run(status=status).is_verified is is_verified
