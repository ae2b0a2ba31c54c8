from example_tours import faster, smaller, tour_of

from tinytorch.reporting.html.page import report_html


def test_a_browser_shows_it_without_complaint(browser_page):
    page = browser_page(report_html(tour_of(faster(), smaller())), width=390)
    assert page.locator("h1").inner_text() == (
        "gpt writes 4.00x faster, the same text; cnn 2.00x faster; mlp 5.00x smaller on disk"
    )
    assert page.locator("main > section").count() > 8
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
