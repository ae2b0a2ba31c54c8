from html_reading import Reading

from tinytorch.reporting.html.markup import element
from tinytorch.reporting.html.plot import beside, figure


def test_a_figure_has_its_title_and_words():
    shown = Reading(figure(element("svg"), title="Times.", about="In turns."))
    assert shown.texts("figcaption") == ["Times. In turns."]
    assert len(shown.all("svg")) == 1


def test_figures_stand_in_one_grid():
    shown = Reading(beside(*[figure(element("svg"), title="a")] * 3))
    assert len(shown.all("div", class_="beside")) == 1
    assert len(shown.all("figure")) == 3
