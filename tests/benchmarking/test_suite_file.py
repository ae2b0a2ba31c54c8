import pytest

from tinytorch.benchmarking.suite_file import Server, Suite, load_suite
from tinytorch.errors import SettingError

GOOD = """
name = "zoo"
budget_s = 0.5
timeout_s = 60
[[workload]]
target = "mlp"
batch_sizes = [1, 32]
backends = ["numpy"]
transforms = ["none", "fast.py:convert"]
scenarios = ["single-stream", "offline", "server"]
[[workload]]
target = "models.py:make"
evaluate = false
[scenario.server]
latency_bound_ms = 20
percentile = 99
queries = 200
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "fast.py").write_text("def convert(model): return model", "utf-8")
    (tmp_path / "models.py").write_text("def make(): ...", "utf-8")

    def write(text, name="suite.toml"):
        (tmp_path / name).write_text(text, "utf-8")
        return str(tmp_path / name)

    return write


def test_a_suite_is_read_from_toml(write, tmp_path):
    suite = load_suite(write(GOOD))
    assert (suite.name, suite.budget_s, suite.timeout_s) == ("zoo", 0.5, 60)
    assert suite.folder == str(tmp_path)
    assert suite.scenarios == (Server(latency_bound_ms=20, percentile=99, queries=200),)
    assert len(suite.entries()) == 2 * 2 * 3 + 1
    assert not suite.entries()[-1].evaluate


def test_without_a_name_it_is_that_of_the_file(write):
    assert load_suite(write('[[workload]]\ntarget = "mlp"', "nightly.toml")).name == "nightly"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("budget_s", "budget", "suite.toml has the unknown key 'budget'; did you mean 'budget_s'"),
        ("batch_sizes", "batchsize", "workload 1 has the unknown key 'batchsize'; did you mean"),
        ("budget_s = 0.5", "budget_s = -1", "suite.toml: budget_s=-1"),
        ("[1, 32]", "[1, 0]", "workload 1: batch_sizes has 0"),
        ('"numpy"', '"numppy"', "workload 1: backends has 'numppy'; did you mean 'numpy'"),
        ('"offline"', '"ofline"', "workload 1: scenarios has 'ofline'; did you mean 'offline'"),
        ('"mlp"', '"mpl"', "workload 1: target 'mpl': did you mean 'mlp'"),
        ("models.py:make", "models.py:mak", "workload 2: target 'models.py:mak'.*mean 'make'"),
        ("models.py:make", "other.py:make", "there is no file .*other.py"),
        ("fast.py:convert", "quick", "transforms 'quick'"),
        ("[scenario.server]", "[scenario.servr]", "scenario has the unknown key 'servr'; did"),
        ("percentile = 99", "percentile = 199", "scenario.server: percentile=199"),
        ("percentile", "percentil", "scenario.server has the unknown key 'percentil'"),
        ('target = "mlp"', "", "workload 1 has no target; give one of mlp, cnn, gpt"),
        ("[[workload]]", "[[work]]", "unknown key 'work'; did you mean 'workload'"),
        ('name = "zoo"', "name = zoo", "suite.toml is no TOML"),
        ('name = "zoo"', "name = 3", "name = 3; give the suite a name"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(write, old, new, message):
    place = write(GOOD.replace(old, new))
    with pytest.raises(SettingError, match=message) as raised:
        load_suite(place)
    assert place in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no workload; add a table"),
        ("workload = 3", "has no workload"),
        ("workload = [3]", "workload 1 is 3; give a table"),
        ('scenario = 3\n[[workload]]\ntarget = "mlp"', "scenario = 3; give tables"),
    ],
)
def test_a_file_of_another_shape_is_refused(write, text, message):
    with pytest.raises(SettingError, match=message):
        load_suite(write(text))


PYTHON = """
from tinytorch.benchmarking.suite_file import Suite, SuiteWorkload
def suite(): return Suite("mine", [SuiteWorkload("models.py:make")])
ready = suite()
def wrong(): return 3
def raises(): return 1 / 0
def missing(): return Suite("mine", [SuiteWorkload("gone.py:make")])
def nonsense(): return Suite("", [])
"""


@pytest.mark.parametrize("name", ["suite", "ready"])
def test_a_suite_is_made_by_python(write, tmp_path, name):
    suite = load_suite(f"{write(PYTHON, 'suites.py')}:{name}")
    assert isinstance(suite, Suite)
    assert suite.folder == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", "is a int; it must be or return a Suite"),
        ("raises", "raised ZeroDivisionError"),
        ("missing", "workload 1: target 'gone.py:make': there is no file"),
        ("nonsense", "give the suite a name"),
        ("siute", "did you mean 'suite'"),
    ],
)
def test_python_that_gives_no_suite_is_refused(write, name, message):
    place = write(PYTHON, "suites.py")
    with pytest.raises(SettingError, match=message):
        load_suite(f"{place}:{name}")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere.toml", "nowhere.toml cannot be read: No such file"),
        ("suite.py", "'suite.py' is no suite; give suite.py:suite"),
        ("zoo", "'zoo' is no suite; give suite.toml or file.py:suite"),
    ],
)
def test_what_is_no_suite_at_all_is_refused(place, message):
    with pytest.raises(SettingError, match=message):
        load_suite(place)


def test_the_example_in_the_project_is_a_suite():
    from project_files import ROOT

    suite = load_suite(str(ROOT / "benchmarks" / "zoo_suite.toml"))
    assert {workload.target for workload in suite.workloads} == {"mlp", "cnn", "gpt"}
