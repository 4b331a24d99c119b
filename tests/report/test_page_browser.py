"""The page in headless Chromium: its layout at two widths and in both themes, and every action.

Needs playwright of requirements-dev.txt and Chromium, for example `apt-get install chromium`.
"""

import csv
import shutil

import pytest
from report.page_runs import EVIL, make_page, write_runs

pytestmark = pytest.mark.browser
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
VIEWS = [(width, theme) for width in (1280, 390) for theme in ("light", "dark")]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield make_page(write_runs(tmp_path_factory.mktemp("page") / "sweep"), patch)


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, report):
    """Opens the page, and in the end checks that the console is empty and no network was used."""
    contexts, problems = [], []

    def open_page(width=1280, theme="light"):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda r: r.url.startswith("http") and problems.append(r.url))
        page.goto(f"file://{report / 'report.html'}")
        page.evaluate("async () => { for (const c of charts) { c.drawn = true; await c.draw(); } }")
        return page

    yield open_page
    for context in contexts:
        assert context.pages[0].evaluate("window.hacked") is None
        context.close()
    assert problems == []


@pytest.mark.parametrize(("width", "theme"), VIEWS)
def test_nothing_is_wider_than_the_window(visit, width, theme):
    page = visit(width, theme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    plots = page.locator(".js-plotly-plot")
    assert plots.count() >= 4
    for i in range(plots.count()):
        box = plots.nth(i).bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= width
        drawn = plots.nth(i).locator("svg.main-svg").first.bounding_box()
        assert drawn["width"] <= box["width"] + 1
    # Tables that are wider than the window say so, and can be scrolled.
    page.wait_for_timeout(100)
    assert page.evaluate(
        "[...document.querySelectorAll('main .scroll')].every("
        "box => (box.scrollWidth > box.clientWidth + 1) === box.classList.contains('cut'))"
    )


@pytest.mark.parametrize(("width", "theme"), VIEWS)
def test_texts_have_the_contrast_of_wcag(visit, width, theme):
    """At least 4.5 between the colours of texts and the backgrounds that they are on."""
    ratios = visit(width, theme).evaluate("""() => {
      const root = getComputedStyle(document.documentElement);
      const light = name => { const c = root.getPropertyValue("--" + name).trim().slice(1);
        const [r, g, b] = [0, 2, 4].map(i => parseInt(c.slice(i, i + 2), 16) / 255).map(
          v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
        return .2126 * r + .7152 * g + .0722 * b; };
      const pairs = [["ink", "card"], ["soft", "card"], ["soft", "ground"], ["accent", "card"],
        ["warn", "card"], ["bad", "bad-ground"], ["good", "good-ground"], ["warn", "warn-ground"],
        ["idle", "idle-ground"], ["plot-ink", "card"]];
      return pairs.map(pair => { const [x, y] = pair.map(light).sort((p, q) => q - p);
          return (x + .05) / (y + .05); }); }""")
    assert min(ratios) >= 4.5


def test_hovering_shows_run_seed_and_value(visit):
    page = visit()
    plot = page.locator("figure[data-chart='plot-1'] .js-plotly-plot").first
    plot.scroll_into_view_if_needed()
    # A faint point: one run behind the mean of two.
    point = plot.locator(".scatterlayer .trace").first.locator(".point").first
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = plot.locator(".hoverlayer .hovertext")
    label.wait_for()
    text = label.text_content()
    assert "BiT-R-Mini-" in text
    assert "seed " in text
    assert "Top-1 accuracy, test, %: " in text
    page.mouse.down()
    page.mouse.up()
    page.locator("dialog[open]").wait_for()
    assert page.locator("#run-name").text_content().startswith("BiT-R-Mini-")


def test_tables_sort_and_their_csv_equals_what_is_shown(visit):
    page = visit()
    table = page.locator("#all")
    head = table.locator("thead th").filter(has_text="seed").first
    column = table.locator("thead th").all_text_contents().index("seed")
    for direction in ("ascending", "descending"):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == direction
        seeds = [
            int(row.locator("td, th").nth(column).text_content())
            for row in table.locator("tbody tr").all()
        ]
        assert seeds == sorted(seeds, reverse=direction == "descending")
    with page.expect_download() as download:
        page.locator("#all >> xpath=ancestor::div/following-sibling::p[1]//button").first.click()
    with open(download.value.path(), encoding="utf-8", newline="") as file:  # noqa: PTH123
        rows = [*csv.reader(file)]
    shown = [
        [text.strip() for text in row.locator("td, th").all_text_contents()]
        for row in table.locator("tr").all()
    ]
    assert rows == shown
    assert download.value.suggested_filename == "All-runs.csv"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_details_of_a_failed_run_show_its_log_and_differences(visit, width):
    page = visit(width)
    button = page.locator("#all button.open").filter(has_text=EVIL)
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog[open]")
    dialog.wait_for()
    assert page.locator("#run-name").text_content() == EVIL
    assert "SIGTERM" in dialog.locator(".warning").text_content()
    assert dialog.locator("pre.log").is_visible()
    assert "onerror='window.hacked = 2'>" in dialog.locator("pre.log").text_content()
    differences = dialog.locator("details", has_text="Differences").locator("tbody tr")
    assert "model.name" in differences.locator("th").all_text_contents()
    page.wait_for_function("document.querySelectorAll('dialog .js-plotly-plot').length >= 2")
    dialog.locator("summary", has_text="Config").click()
    assert "optimizer.learning_rate" in dialog.text_content()
    box = dialog.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert page.evaluate("document.getElementById('run').scrollWidth") <= box["width"]
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
