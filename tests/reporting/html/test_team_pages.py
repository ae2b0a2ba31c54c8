"""A history as static pages: all series are there, and only what has changed is made anew."""

import json

import pytest
from example_records import record, series
from html_reading import Reading

from tinytorch.cli.main import main
from tinytorch.records.sharing import RecordFolder, copy_records
from tinytorch.records.store import RecordStore
from tinytorch.reporting import team_pages
from tinytorch.reporting.team_pages import Written, write_pages

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def store(tmp_path):
    with RecordStore(tmp_path / "records.sqlite") as opened:
        opened.add_all([*series([1, 2, 3]), *series([4, 5], name=EVIL), record(name="mlp")])
        opened.add(record(name="part", kind="attempt"))
        yield opened


def pages(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "series").glob("*.html")}


def test_every_series_has_a_page_and_a_row_that_leads_to_it(store, tmp_path):
    site = tmp_path / "site"
    assert write_pages(store, site) == Written(3, 3, 0)
    index = (site / "index.html").read_text("utf-8")
    assert {f'href="series/{name}"' in index for name in pages(site)} == {True}
    texts = [(site / "series" / name).read_text("utf-8") for name in pages(site)]
    assert sum("gpt" in text for text in texts) == 1
    assert all('href="../index.html"' in text for text in texts)
    assert not any(EVIL in text for text in [index, *texts])
    heads = Reading(index).texts("th", scope="row")
    assert sorted(heads) == sorted([EVIL, "gpt", "mlp"])


def test_only_what_grew_is_made_anew(store, tmp_path):
    site = tmp_path / "site"
    write_pages(store, site)
    before = pages(site)
    assert write_pages(store, site) == Written(3, 0, 0)
    store.add(record(9, hours=50))
    assert write_pages(store, site) == Written(3, 1, 0)
    after = pages(site)
    assert before.keys() == after.keys()
    assert sum(before[name] != after[name] for name in before) == 1


def test_a_page_that_is_gone_is_made_again_and_one_without_a_series_removed(store, tmp_path):
    site = tmp_path / "site"
    write_pages(store, site)
    next((site / "series").iterdir()).unlink()
    assert write_pages(store, site) == Written(3, 1, 0)
    store._database.connection.execute("DELETE FROM records WHERE name = 'mlp'")
    assert write_pages(store, site) == Written(2, 0, 1)
    assert len(pages(site)) == 2


@pytest.mark.parametrize(
    "state", ["", "[]", "{", '{"layout": 1}', '{"layout": 1, "tinytorch": "0", "series": {}}']
)
def test_a_state_of_another_version_is_no_state(store, tmp_path, state):
    site = tmp_path / "site"
    write_pages(store, site)
    (site / "state.json").write_text(state)
    assert write_pages(store, site) == Written(3, 3, 0)


def test_a_state_leads_nowhere_outside(store, tmp_path):
    site = tmp_path / "site"
    write_pages(store, site)
    (tmp_path / "mine.html").write_text("mine")
    state = json.loads((site / "state.json").read_text())
    state["series"]["../mine.html"] = {"stamp": [1, "", ""]}
    (site / "state.json").write_text(json.dumps(state))
    write_pages(store, site)
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_a_long_list_has_several_pages(store, tmp_path, monkeypatch):
    monkeypatch.setattr(team_pages, "PER_PAGE", 2)
    site = tmp_path / "site"
    write_pages(store, site)
    assert 'href="series-2.html"' in (site / "index.html").read_text("utf-8")
    assert 'href="index.html"' in (site / "series-2.html").read_text("utf-8")
    monkeypatch.setattr(team_pages, "PER_PAGE", 5)
    write_pages(store, site)
    assert not (site / "series-2.html").exists()


def test_the_command_makes_them_of_a_file_a_folder_or_a_database(store, tmp_path, database, capsys):
    places = {"file": store.path, "folder": tmp_path / "shared", "database": database}
    copy_records(store, RecordFolder(places["folder"]))
    with RecordStore(database) as shared:
        copy_records(store, shared)
    lists = []
    for name, place in places.items():
        site = tmp_path / "sites" / name
        code = main(["history", "--store", str(place), "--html", str(site), "--json"])
        shown = json.loads(capsys.readouterr().out)
        assert (code, shown["series"], shown["made"]) == (0, 3, 3)
        assert shown["index"] == str(site / "index.html")
        lists.append(sorted(pages(site)))
    assert lists[0] == lists[1] == lists[2]


def test_a_folder_has_all_series_or_none(store, tmp_path, capsys):
    site = str(tmp_path / "site")
    assert main(["history", "gpt", "--store", str(store.path), "--html", site]) == 2
    assert "pages of all series" in capsys.readouterr().err


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_shown_without_complaint(store, tmp_path, browser_page, width):
    site = tmp_path / "site"
    store.add_all(series([1 + (n > 15) / 3 + n % 3 / 50 for n in range(30)], name="long"))
    write_pages(store, site)
    for path in [site / "index.html", *(site / "series").glob("*.html")]:
        page = browser_page(path.read_text("utf-8"), width=width)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, "only tables scroll sideways"
