from example_pages import HOSTILE
from example_profiles import example_profile

from tinytorch.reporting.markdown import report_markdown


def test_it_says_what_a_call_costs_and_why():
    text = report_markdown(example_profile())
    assert text.startswith("### ⚪ 10.0 ms per call\n")
    assert "- latency: **10.0 ms** median; 88% interval 9.80 ms to 10.2 ms, n=4\n" in text
    assert r"blocks.\*.fc (2x Linear): 40.0% of the time" in text


def test_layers_are_folded_and_keep_their_tree():
    text = report_markdown(example_profile())
    assert text.count("<details>") == text.count("</details>") == 9
    assert "\n| &emsp;&emsp;fc Linear | 40.0% | 4.00 ms | 4.00 ms | 2 |" in text
    assert "one by one" not in text


def test_no_name_becomes_markup():
    text = report_markdown(example_profile(name=f"{HOSTILE} a|b"))
    assert "<script" not in text
    assert "&lt;script" in text


def test_top_reaches_the_tables():
    assert "2 more kinds of operations" in report_markdown(example_profile(), top=1)
