import math

import pytest
from parts import require_browser, require_part


def test_a_part_that_is_there_is_returned():
    assert require_part("math") is math


def test_a_missing_part_skips_with_its_name(monkeypatch):
    monkeypatch.setenv("TINYTORCH_REQUIRED_PARTS", "torch")
    with pytest.raises(pytest.skip.Exception, match=r"no_such_part\.inner is not installed"):
        require_part("no_such_part.inner")


def test_a_missing_part_fails_where_it_is_required(monkeypatch):
    monkeypatch.setenv("TINYTORCH_REQUIRED_PARTS", "torch, no_such_part")
    with pytest.raises(pytest.fail.Exception, match="required by TINYTORCH_REQUIRED_PARTS"):
        require_part("no_such_part")


def test_a_broken_part_is_not_a_missing_part(tmp_path, monkeypatch):
    (tmp_path / "broken_part.py").write_text("import what_it_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs"):
        require_part("broken_part")


def test_a_missing_browser_skips_and_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("TINYTORCH_REQUIRED_PARTS", "torch")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(pytest.skip.Exception, match="chromium"):
        require_browser()


def test_a_missing_browser_fails_where_it_is_required(monkeypatch):
    monkeypatch.setenv("TINYTORCH_REQUIRED_PARTS", "torch,browser")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(pytest.fail.Exception, match="browser is required"):
        require_browser()
