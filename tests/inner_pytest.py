"""Runs of pytest inside of a test, with our plugin and no other."""

import pytest


class InnerPytest:
    """Runs pytest on some source; the plugin is loaded by name, installed or not."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        # Where the package is installed, its entry point would load the plugin once more.
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.setenv("TINYTORCH_RECORDS", str(pytester.path / "records.sqlite"))
        monkeypatch.setenv("COLUMNS", "150")

    def run(self, source: str, *words: str, fresh: bool = False) -> pytest.RunResult:
        """Run the tests of a source; `fresh` takes a process of its own."""
        self.pytester.makepyfile(test_it=source)
        return self.again(*words, fresh=fresh)

    def again(self, *words: str, fresh: bool = False) -> pytest.RunResult:
        """Run the same tests once more."""
        start = self.pytester.runpytest_subprocess if fresh else self.pytester.runpytest_inprocess
        return start("-p", "tinytorch.pytest_plugin", *words)
