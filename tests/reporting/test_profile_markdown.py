from example_pages import HOSTILE
from example_profiles import example_profile

from tinytorch.profiling.profile import find_facts
from tinytorch.reporting.markdown import report_markdown
from tinytorch.reporting.profile import profile_markdown
from tinytorch.reporting.profile_words import reasons


def test_it_says_what_a_call_costs_and_why():
    profile = example_profile()
    text = profile_markdown(profile)
    assert text.startswith("### Profile of `example`\n")
    assert "10.0 ms" in text
    first = next(iter(reasons(profile, find_facts(profile))))
    assert "**Why**: " in text
    assert first.split(" ")[0] in text


def test_layers_are_folded_and_keep_their_tree():
    text = profile_markdown(example_profile())
    assert text.count("<details>") == text.count("</details>") >= 3
    assert "<summary>Layers</summary>\n\n```text\n" in text
    assert "blocks" in text


def test_a_name_breaks_nothing():
    text = profile_markdown(example_profile(name=f"{HOSTILE} a|b"))
    assert all("`" in line for line in text.splitlines() if "<script" in line)


def test_it_is_found_by_its_type():
    assert report_markdown(example_profile(), top=3) == profile_markdown(example_profile(), top=3)
