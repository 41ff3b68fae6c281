"""The page in a real browser: what it shows, live changes, the token, hostile names."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dasktune._dashboard.process import served
from dasktune.storage.database.database import Batch, Database

from .made_study import Made, made_database

pytestmark = pytest.mark.browser

LEGEND = """() => {
  const models = [...Bokeh.documents[0]._all_models.values()];
  const names = models.find(model => model.type === "Legend").items.map(item => item.label.value);
  const data = models.map(model => model.data).find(data => data?.label?.length === names.length);
  return [names, names.map(name => Number(data.last[data.label.indexOf(name)]))];
}"""
"""The names in the legend of the curves, and the last value of each curve."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return made_database(folder, made=Made(trials=300, fails_every=50, running=3))


@pytest.fixture(scope="module")
def address(file: Path) -> Iterator[str]:
    with served(str(file)) as shown:
        yield shown


def at(address: str, place: str) -> str:
    """Return the address of a part of the page."""
    base, _, token = address.partition("#token=")
    return f"{base}#/{place}&token={token}"


def test_page_shows_the_best_trials_and_failures(
    address: str, open_page: Callable[..., Any]
) -> None:
    with open_page(address) as page:
        page.get_by_text("Best so far").wait_for()
        page.locator("#history canvas").first.wait_for()
        assert page.locator("#states .figure").inner_text() == "300"
        assert "5 failed" in page.locator("#states").inner_text()
        failed = page.locator("#failed")
        assert 'raise ValueError("too high")' in failed.inner_text()
        # The token stays in the tab: neither in the address nor in what is sent to others.
        assert "token" not in page.url
        page.reload()
        page.get_by_text("Best so far").wait_for()


def test_each_part_of_the_page_names_the_study(
    tmp_path: Path, address: str, open_page: Callable[..., Any]
) -> None:
    parts = ("overview", "curves", "parameters", "trials", "tree", "failures", "trial/1")
    with open_page(at(address, "1/overview")) as page:
        for part in parts:
            page.evaluate("place => { location.hash = place }", f"#/1/{part}")
            page.locator("#name", has_text="made").wait_for()
            page.locator("#loading").wait_for(state="detached")
    several = made_database(tmp_path, first=Made(trials=4), second=Made(trials=4))
    with served(str(several)) as shown, open_page(shown) as page:
        page.get_by_role("link", name="second").click()
        page.get_by_text("Best so far").wait_for()
        assert page.get_by_label("Study").locator("option:checked").inner_text() == "second"
        assert page.get_by_label("Study").is_visible()


SCALES = """async (cases) => {
  const { Scale } = await import("./charts.js");
  return cases.map(([values, isUp]) => {
    const scale = new Scale(() => {});
    scale.fit(values, isUp);
    const { yLog, yRange } = scale.options;
    return [yLog, yRange ? yRange.map(Math.round) : null];
  });
}"""
CASES: list[tuple[list[float | None], bool, object]] = [
    ([1, 2, 3, 4, 5], False, [False, None]),
    ([1, 2, 3, 4, 40], False, [True, None]),
    ([1, 2, 3, 4, 1e9], False, [False, [1, 7]]),
    ([40, 30, 20, 10, 1e-9], True, [False, None]),
    ([-1, 0, 1, 2, 1e9], False, [False, [-1, 5]]),
    ([0, 10, 20, 30, -1e9], True, [False, [-30, 33]]),
    ([0.5, 0.6, 0.7, 0.8, None], True, [False, None]),
    ([1, 1, 1, 1, 1e9], False, [False, None]),
    ([1, None], False, [False, None]),
    ([], False, [False, None]),
]
"""Values, whether the greatest are the best, and the scale that shows the best ones."""


def test_scale_shows_the_best_beside_outliers(address: str, open_page: Callable[..., Any]) -> None:
    with open_page(address) as page:
        scales = page.evaluate(SCALES, [[values, is_up] for values, is_up, _ in CASES])
    assert scales == [scale for _, _, scale in CASES]


def test_page_without_its_token_shows_nothing(address: str, open_page: Callable[..., Any]) -> None:
    with open_page(address.partition("#")[0]) as page:
        page.get_by_text("This page needs its token").wait_for()
        assert "made" not in page.inner_text("body")
        page.get_by_label("Address or token").fill(address)
        page.get_by_role("button", name="Open").click()
        page.get_by_text("Best so far").wait_for()


CELLS = ["number", "state", "steps", "loss", "lr", "optimizer", "ended"]
ROWS = [
    [0, "complete", 0, 0.5, 0.1, "adam", None],
    [1, "failed", 1, None, 0.5, "=cmd|' /C calc'!A0", None],
    [2, "waiting to go on", 2, 0.25, 0.01, "sgd", 7.5],
    [3, "pruned", 3, 0.75, None, 'a "quoted, name"', None],
]
FILTERS = {
    "": [0, 1, 2, 3],
    "adam": [0],
    "A state=Complete": [0],
    "lr>=0.1": [0, 1],
    "lr<0.1": [2],
    "lr=0.10": [0],
    "state!=failed": [0, 2, 3],
    'state="waiting to go on"': [2],
    "loss>0.3 loss<=0.5": [0],
    "number==2": [2],
    "ended=": [0, 1, 3],
    "nothing-like-this": [],
    "rate>1": "unknown column 'rate'; known: number, state, steps, loss, lr, optimizer, ended",
    "lr<high": "lr<high: a number must follow <, got 'high'",
}
"""Filters with the numbers of the rows that they select, or with the error."""

SELECTIONS = """async ([columns, rows, filters]) => {
  const { conditions, sorted, toCsv } = await import("./table.js");
  const numbers = (some) => some.map(([number]) => number);
  const selected = (text) => {
    try {
      const holds = conditions(text, columns);
      return numbers(rows.filter((cells) => holds.every((test) => test(cells))));
    } catch (error) { return error.message; }
  };
  const by = (name, isDescending = false) =>
    numbers(sorted(rows, columns.indexOf(name), isDescending));
  const orders = [by("loss"), by("loss", true), by("lr"), by("optimizer")];
  return [filters.map(selected), orders, toCsv(columns, rows)];
}"""


def test_table_is_filtered_sorted_and_written(address: str, open_page: Callable[..., Any]) -> None:
    with open_page(address) as page:
        filtered, orders, text = page.evaluate(SELECTIONS, [CELLS, ROWS, [*FILTERS]])
    assert dict(zip(FILTERS, filtered, strict=True)) == FILTERS
    # Empty cells stand last in both directions.
    assert orders == [[2, 0, 3, 1], [3, 0, 2, 1], [2, 0, 1, 3], [1, 3, 0, 2]]
    head, *lines = csv.reader(io.StringIO(text))
    assert head == CELLS
    assert lines[1] == ["1", "failed", "1", "", "0.5", "'=cmd|' /C calc'!A0", ""]
    assert lines[3][5] == 'a "quoted, name"'


def test_table_makes_the_rows_in_view(address: str, open_page: Callable[..., Any]) -> None:
    with open_page(at(address, "1/trials")) as page:
        page.locator(".grid-row").first.wait_for()
        assert 0 < page.locator(".grid-row").count() < 60
        page.locator(".table").evaluate("table => table.scrollTop = 290 * 30")
        page.locator(".grid-row", has_text="299").wait_for()
        page.get_by_label("Filter").fill("state=failed milestone>10")
        page.get_by_text("of 300", exact=False).wait_for()
        page.get_by_role("button", name="steps").click()
        page.locator(".grid-row.FAIL, .grid-row .FAIL").first.wait_for()
        page.get_by_label("Filter").fill("nothing>1")
        page.get_by_text("unknown column 'nothing'; known: ").wait_for()
        page.get_by_label("Filter").fill('state="waiting to go on"')
        page.get_by_text("3 of 300").wait_for()
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").click()
        lines = Path(download.value.path()).read_text().splitlines()
        assert [line.split(",")[:2] for line in lines[1:]] == [
            [str(number), "waiting to go on"] for number in (297, 298, 299)
        ]


LEFTS = """([head, ...rows]) => {
  const left = (row) => [...row.children].map((cell) => cell.getBoundingClientRect().x);
  return [left(head), rows.map(left)];
}"""


def test_columns_of_the_table_stand_below_their_names(
    address: str, open_page: Callable[..., Any]
) -> None:
    with open_page(at(address, "1/trials")) as page:
        first = page.locator(".grid-row").first
        first.locator("span").last.evaluate(
            "cell => cell.textContent = 'a long schedule '.repeat(20)"
        )
        head, rows = page.locator(".grid-head, .grid-row").evaluate_all(LEFTS)
        apart = [abs(x - y) for row in rows for x, y in zip(row, head, strict=True)]
        assert max(apart) < 2, "pixels; a fraction of a column is rounded"


def test_legend_of_curves_begins_with_the_best_trial(
    address: str, open_page: Callable[..., Any]
) -> None:
    with open_page(at(address, "1/curves")) as page:
        page.locator(".chart canvas").first.wait_for()
        names, last = page.evaluate(LEGEND)
        assert len(names) == 8
        assert last == sorted(last)
        assert names != sorted(names)


def test_curves_can_be_chosen(address: str, open_page: Callable[..., Any]) -> None:
    with open_page(at(address, "1/curves")) as page:
        page.locator(".chart canvas").first.wait_for()
        assert "curves of 300 trials" in page.inner_text("main")
        page.get_by_label("Metric").select_option("accuracy")
        page.get_by_label("log values").check()
        page.get_by_label("Trials").fill("1, 5")
        page.get_by_label("Trials").press("Enter")
        page.get_by_text("curves of 300 trials").wait_for(state="hidden")
        page.locator(".chart canvas").first.wait_for()


def test_hyper_parameters_are_drawn(address: str, open_page: Callable[..., Any]) -> None:
    with open_page(at(address, "1/parameters")) as page:
        page.locator("#parallel canvas").first.wait_for()
        assert page.locator(".slices .chart canvas").count() >= 3
        page.get_by_text("PED-ANOVA of Optuna").wait_for()
        assert page.locator("#importance tr").count() == 2


def test_tree_folds_and_leads_to_trials(address: str, open_page: Callable[..., Any]) -> None:
    with open_page(at(address, "1/tree")) as page:
        canvas = page.locator("canvas")
        canvas.wait_for()
        page.get_by_text("525 stages of 300 trials: 225 serve several trials.").wait_for()
        canvas.hover(position={"x": 40, "y": 40})
        tip = page.locator("#tip")
        tip.get_by_text("4 trials: 0, 1, 2, 3").wait_for()
        canvas.click(position={"x": 40, "y": 40})
        page.get_by_role("heading", name="Trial 0").wait_for()


def test_a_tree_that_shares_nothing_is_folded(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    file = made_database(tmp_path, apart=Made(trials=2000, steps=4, shared=False))
    with served(str(file)) as address, open_page(at(address, "1/tree")) as page:
        canvas = page.locator("canvas")
        canvas.wait_for()
        page.get_by_text("nothing is shared, so the trials are folded").wait_for()
        height = "table => table.scrollHeight"
        assert page.locator(".table").evaluate(height) < 400
        canvas.click(position={"x": 40, "y": 40})
        page.wait_for_function("document.querySelector('.table').scrollHeight > 2000 * 20")


def test_trial_shows_its_error_and_lineage(address: str, open_page: Callable[..., Any]) -> None:
    with open_page(at(address, "1/trial/49")) as page:
        error = page.locator("#error-of-trial")
        error.get_by_text('raise ValueError("too high")').first.wait_for()
        page.locator("#lineage").get_by_text("Who uses its states now").wait_for()
        page.locator("[data-used-at]").get_by_text("trials of made").first.wait_for()
        assert page.locator("#stages tbody tr").count() >= 2
        logs = page.locator("#logs details")
        # The trunk of trials 48 to 51 was trained for the first of them.
        logs.first.get_by_text("shared with 48").wait_for()
        logs.first.locator("summary").click()
        logs.first.get_by_text("step 10: loss").wait_for()
        page.get_by_role("button", name="next trial").click()
        page.get_by_role("heading", name="Trial 50").wait_for()


def test_page_follows_the_study(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    name = "<img src=x onerror=alert(1)>"
    file = made_database(tmp_path, **{name: Made(trials=3)})
    with served(str(file)) as address, open_page(address) as page:
        page.get_by_text("Best so far").wait_for()
        assert page.title().startswith(name)
        with closing(Database(file)) as database:
            (last,) = database.some_trials(1, [2])
            record = {**last.record, "values": [0.0005]}
            best = replace(last, number=3, value=0.0005, record=record)
            database.write(Batch(trials=[best]))
        page.locator("#best .figure").get_by_text("0.0005", exact=True).wait_for()
        assert page.locator("#states .figure").inner_text() == "4"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "part", ["overview", "curves", "parameters", "trials", "tree", "trial/5", "failures"]
)
def test_page_fits_a_phone(
    address: str, open_page: Callable[..., Any], part: str, scheme: str
) -> None:
    with open_page(at(address, f"1/{part}"), width=390, scheme=scheme) as page:
        page.locator("canvas, .grid-row, #failed").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        # All tabs are in view: nothing shows that a row of tabs could be scrolled.
        assert page.locator("#tabs").evaluate("tabs => tabs.scrollWidth <= tabs.clientWidth")


def test_page_on_a_phone_shadows_what_can_be_scrolled(
    address: str, open_page: Callable[..., Any]
) -> None:
    with open_page(at(address, "1/trial/5"), width=390) as page:
        stages = page.locator("#stages .scroll")
        assert stages.evaluate("part => part.scrollWidth > part.clientWidth")
        attachment = stages.evaluate("part => getComputedStyle(part).backgroundAttachment")
        assert attachment == "local, local, scroll, scroll"


def test_a_reader_may_queue_and_retry_trials(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    file = made_database(tmp_path, made=Made(trials=20, fails_every=10))
    with served(str(file), allows_changes=True) as address:
        with open_page(at(address, "1/overview")) as page:
            changes = page.locator("#changes")
            changes.get_by_label("lr").fill("5")
            changes.get_by_role("button", name="Queue it").click()
            changes.get_by_text("lr must be a number from 0.001 to 0.1, got 5").wait_for()
            changes.get_by_label("lr").fill("0.05")
            changes.get_by_label("batch").select_option("64")
            changes.get_by_role("button", name="Queue it").click()
            changes.get_by_text('1 trial queued for the next new tuner: {"lr":0.05').wait_for()
            assert changes.get_by_role("button", name="Stop the run").count() == 0
        with open_page(at(address, "1/trial/9")) as page:
            page.get_by_role("button", name="Train it again").click()
            page.get_by_text("The next run trains 1 failed trial again.").wait_for()


def test_a_read_only_page_offers_no_change(address: str, open_page: Callable[..., Any]) -> None:
    with open_page(at(address, "1/trial/49")) as page:
        page.locator("#error-of-trial").wait_for()
        assert page.get_by_role("button", name="Train it again").count() == 0


def test_a_running_trial_shows_its_prediction(address: str, open_page: Callable[..., Any]) -> None:
    with open_page(at(address, "1/trial/298")) as page:
        page.locator("#prediction canvas").first.wait_for()
