"""The data of the page equals the tables, and texts of runs are only texts. Without a browser."""

import csv
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib import resources

import pytest
from report.page_runs import EVIL, LOG, make_page, write_runs

from vit_jax.report.page import PLOTLY


class Page(HTMLParser):
    """Collects the tables and scripts of a page."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.scripts, self.tags, self.links = {}, [], [], []
        self.text = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attrs = dict(attrs)
        if tag == "table":
            self.rows = self.tables.setdefault(attrs["data-title"], [])
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th", "script"):
            self.text = ""
        elif tag == "a":
            self.links.append(attrs["href"])

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.rows[-1].append(self.text.strip())
        elif tag == "script":
            self.scripts.append(self.text)

    def handle_data(self, data):
        if self.text is not None:
            self.text += data


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield make_page(write_runs(tmp_path_factory.mktemp("secret") / "sweep"), patch)


@pytest.fixture(scope="module")
def page(report):
    return Page((report / "report.html").read_text())


@pytest.fixture(scope="module")
def data(page):
    return json.loads(page.scripts[0])


def rows_of(path):
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def test_the_figures_of_every_run_equal_those_of_runs_csv(report, data):
    rows = rows_of(report / "runs.csv")
    assert [run["name"] for run in data["runs"]] == [row["name"] for row in rows]
    for run, row in zip(data["runs"], rows, strict=True):
        shown = dict(zip(data["metrics"], run["figures"], strict=True))
        assert len(shown) >= 7
        for name, value in shown.items():
            if value is not None:
                assert float(row[name]) == value, name
        config = data["config"] | run["settings"]
        assert str(config["seed"]) == row["seed"]
        assert str(config["data.subset.fraction"]) == row["data.subset.fraction"]


def test_the_means_of_the_charts_equal_those_of_tables_csv(report, data):
    tables = {
        r["row"]: float(r["mean"]) for r in rows_of(report / "tables.csv") if " · " in r["row"]
    }
    (panel,) = data["charts"]["plot-1"]
    assert (panel["x"], panel["rows"]) == ("Top-1 accuracy, test, %", [*tables])
    score = data["metrics"].index("eval/test/accuracy_top1")
    found = {}
    for trace in panel["traces"]:
        if trace["kind"] == "means":
            names = [panel["rows"][round(x)] for x in trace["x"]]
            found |= dict(zip(names, trace["y"], strict=True))
        else:  # The runs behind their means.
            figures = [100 * data["runs"][i]["figures"][score] for i in trace["runs"]]
            assert figures == pytest.approx(trace["y"])
    assert found == pytest.approx({name: 100 * mean for name, mean in tables.items()})


def test_the_html_tables_equal_those_of_the_markdown(report, page):
    text = (report / "report.md").read_text()
    for title in ("Top-1 accuracy, test", "Models"):
        block = re.search(rf"## {re.escape(title)}\n\n(.*?)\n\n", text, re.DOTALL)
        assert block is not None
        lines = [line.strip("|").split("|") for line in block[1].splitlines()]
        cells = [[cell.strip().strip("*") for cell in line] for line in lines]
        assert page.tables[title] == [cells[0], *cells[2:]]


def test_texts_of_runs_cannot_become_elements(report, page, data):
    assert page.tags.count("script") == 3
    assert not {"img", "b"} & {*page.tags}
    assert "onerror='window" not in re.sub(
        r"(?s)<script.*?</script>", "", (report / "report.html").read_text()
    )
    (evil,) = [run for run in data["runs"] if run["name"] == EVIL]
    assert evil["log"] == LOG.splitlines()
    assert EVIL in {row[0] for row in page.tables["All runs"]}


def test_a_stopped_run_says_which_signal_ended_it(page, data):
    (evil,) = [run for run in data["runs"] if run["name"] == EVIL]
    assert evil["why"].startswith("exit code -15 (SIGTERM: asked to stop, for example by `kill`")
    why = page.tables["Runs without a result"][1][3]
    assert why.startswith("exit code -15 (SIGTERM: ")


def test_runs_and_pictures_are_links(page, data):
    assert {"plot-1.png", "plot-1.svg", "runs.csv", "tables.csv", "tables.tex", "report.md"} <= {
        *page.links
    }
    run = data["runs"][-1]
    assert run["url"] == f"../jobs/{run['name']}/"
    assert run["files"] == ["config.json", "env.json", "metrics.jsonl", "result.json"]


def test_plotly_is_the_pinned_file_of_npm():
    """The file package/plotly-basic.min.js of plotly.js-basic-dist-min 4.1.1."""
    packed = (resources.files("vit_jax.report") / PLOTLY).read_bytes()
    assert (
        hashlib.sha256(gzip.decompress(packed)).hexdigest()
        == "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
    )
