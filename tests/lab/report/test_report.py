"""The report: one page that needs no network, shows names as they are, and says what is missing."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from stimulus_moo.lab import report
from stimulus_moo.lab.experiments import EXPERIMENTS
from stimulus_moo.lab.report.data import experiment_data, to_script, trace_points
from stimulus_moo.lab.report.groups import group_runs
from stimulus_moo.lab.report.page import page
from stimulus_moo.lab.report.sections import command
from stimulus_moo.lab.runs.reading import RecordedRun

from ..fake_runs import EVIL, fake_run, fake_runs, fake_study, store

METHODS = ("mgd", "smgd", "stimulus", "stimulus+", "scalarisation")


def odd_runs() -> list[RecordedRun]:
    return [fake_run(m, s, (EVIL, "b", "c"), steps=60, experiment="odd", title=EVIL, claim=EVIL, data=EVIL)
            for m in ("mgd", EVIL) for s in (0, 1)]  # fmt: skip


class Reader(HTMLParser):
    """Keeps tags with their attributes, and the text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] not in ("script", "style"):
            self.words.append(data)


def test_names_are_escaped_everywhere() -> None:
    study = {
        **fake_study(),
        "title": EVIL,
        "findings": [EVIL],
        "claim": EVIL,
        "verdict": EVIL,
        "settings": {EVIL: EVIL},
    }
    study["tables"] = [{"title": EVIL, "columns": [EVIL], "rows": [[EVIL]]}]
    text = page(group_runs(odd_runs()), [study], "")
    assert "<script>alert" not in text
    assert "</script>\"'" not in text
    read = Reader(text)
    assert [tag for tag, _ in read.tags].count("script") == 3  # data, plotly, ours
    assert sum(EVIL in words for words in read.words) > 20
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)


def hostile(value: Any, name: str = "") -> Any:
    """The same with every text that a file may hold replaced; what chooses code is kept."""
    if isinstance(value, dict):
        return {EVIL if name == "test" else key: hostile(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item, name) for item in value]
    return EVIL if isinstance(value, str) and name not in ("stopped", "kind") else value


def test_a_directory_full_of_hostile_texts_gives_a_page_without_their_markup(tmp_path: Path) -> None:
    """Every text of every file: settings, summaries, versions, machines, tasks, data, study cells."""
    store(fake_runs(2, ("mgd", "scalarisation"), 2, steps=40), [fake_study()], tmp_path)
    for path in tmp_path.rglob("*.json"):
        path.write_text(json.dumps(hostile(json.loads(path.read_text()))))
    read = Reader(report.write_report(tmp_path).read_text(encoding="utf-8"))
    assert [tag for tag, _ in read.tags].count("script") == 3  # data, plotly, ours
    assert sum(EVIL in words for words in read.words) > 5
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)


def test_script_data_survives_any_string() -> None:
    value = {"a": EVIL, "b": "\u2028 &amp; ]]> <!--"}
    text = to_script(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


def test_links_stay_inside_the_page() -> None:
    read = Reader(page(group_runs(odd_runs()), [fake_study()], ""))
    for _, attributes in read.tags:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    ids = {attributes.get("id") for _, attributes in read.tags}
    assert {a["href"][1:] for _, a in read.tags if a.get("href")} <= ids


def test_page_is_the_same_every_time() -> None:
    assert page(group_runs(odd_runs()), [fake_study()], "") == page(group_runs(odd_runs()), [fake_study()], "")


def test_missing_pieces_are_stated() -> None:
    runs = [fake_run(m, 0, ("a", "b"), steps=30, every=100) for m in ("mgd", "stimulus")]
    study = {"name": "empty", "charts": [{"title": "Nothing", "series": [{"name": "a", "x": [], "y": []}]}]}
    text = page(group_runs(runs), [study], "")
    for said in ("Only one seed (0)", "there is no loss figure", "there is no stationarity figure", "no verdict",
                 "No scalarisation baseline", "synthetic data", "Nothing: nothing was measured"):  # fmt: skip
        assert said in text, said


def test_the_title_says_what_the_report_is_about() -> None:
    def titles(runs: list[RecordedRun], studies: list[dict[str, Any]]) -> set[str]:
        text = page(group_runs(runs), studies, "")
        return {re.search(f"<{tag}>(.*?)(: stimulus-moo report)?</{tag}>", text)[1] for tag in ("title", "h1")}

    one, two = ([fake_run("mgd", 0, ("a",), steps=20, experiment=name, title=name)] for name in ("Digits", "Rivers"))
    assert titles(one, []) == {"Digits"}
    assert titles(one, [fake_study()]) == {"Digits and The square-root law"}
    assert titles([*one, *two], [fake_study()]) == {"2 experiments and 1 study"}
    assert titles([], []) == {"No runs"}


def test_the_report_has_no_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stimulus_moo.lab.report.figures.FIGURES", {})
    own = {"data": "IDX files in /home/ann/data/mnist, paired", "files": "/home/ann/data/mnist", "experiment": "digits"}
    study = {**fake_study(), "settings": {"data": "C:\\Users\\ann\\data"}, "findings": ["read from ~/ann/table.csv"]}
    store(fake_runs(2, ("mgd",), 1, steps=20, **own), [study], tmp_path)
    text = report.write_report(tmp_path).read_text("utf-8")
    shown = text[: text.index('<script type="application/json"')]
    assert "ann" not in re.sub("[Cc]hannel|annotation|[Ss]panning", "", shown)
    assert str(tmp_path) not in text
    assert "IDX files in mnist, paired" in shown
    assert "--files mnist" in shown


def test_an_empty_folder_says_so() -> None:
    assert "No runs and no studies were found here." in page([], [], "")


def test_long_curves_are_thinned_with_their_ends() -> None:
    (group,) = group_runs(fake_runs(2, ("smgd",), 1, steps=2500, every=1))
    (entry,) = experiment_data(group)["entries"]
    for x in (entry["loss"]["iterations"]["x"], entry["weights"]["x"]):
        assert len(x) <= trace_points(group) == 1000
        assert (x[0], x[-1]) == (1, 2500)
    assert entry["loss"]["iterations"]["mean"][0][-1] == pytest.approx(group.runs[0].records[-1]["losses"][0], rel=1e-4)
    assert "at most 1,000 points" in page([group], [], "")


def test_equal_curves_are_stored_once() -> None:
    (group,) = group_runs(fake_runs(2, ("smgd", "stimulus+"), 2, steps=60))
    fixed, adaptive = experiment_data(group)["entries"]
    assert "mean" not in fixed["loss"]["gradients"]
    assert "mean" in adaptive["loss"]["gradients"]  # the seeds drew different numbers of samples


def test_command_names_methods_seeds_and_changed_settings() -> None:
    runs = fake_runs(2, ("mgd", "stimulus"), 2, steps=60, experiment="digits", epsilon=0.5)
    words = command(group_runs(runs)[0])
    assert words.startswith("stimulus-moo compare digits --methods mgd,stimulus --seeds 2 --out runs")
    assert "--epsilon 0.5" in words
    assert "--c-gamma" not in words


def test_command_knows_quick_runs_and_step_sizes_of_methods() -> None:
    quick = EXPERIMENTS["digits"].quick
    words = command(group_runs(fake_runs(2, ("mgd",), 1, experiment="digits", **quick, lr_of={"mgd": 0.2}))[0])
    assert "--quick" in words
    assert "--lr-of mgd=0.2" in words
    assert "--gradients" not in words


def test_report_and_figures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stimulus_moo.lab.report.figures.FIGURES", {})
    store(fake_runs(2, ("mgd", "stimulus"), 1, steps=20), [fake_study()], tmp_path)
    path = report.write_report(tmp_path)
    assert path == tmp_path / "report.html"
    assert sorted(p.name for p in (tmp_path / "figures").iterdir()) == ["scaling-law-1.pdf", "scaling-law-1.png"]
    text = path.read_text("utf-8")
    assert text.count("plotly.js v") == 1
    assert "The square-root law" in text
    assert 4e6 < len(text) < 6e6


DRAWN = """
const done = arguments[arguments.length - 1];
stimulusReport.drawAll().then(() => done([...document.querySelectorAll('.chart')].map((chart) => ({
  kind: chart.closest('figure').dataset.kind,
  points: chart.data.map((t) => (t.z ? t.z.flat() : t.r || t.y).filter((v) => Number.isFinite(v)).length),
  width: chart.scrollWidth, svg: chart.querySelectorAll('svg.main-svg').length,
}))));
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from .browser import open_browser

    runs = fake_runs(2, METHODS, 2, steps=60, experiment="two") + fake_runs(8, METHODS, 1, steps=60, experiment="eight")
    runs += fake_runs(40, METHODS[:3], 1, steps=60, experiment="forty") + odd_runs()
    plotly = pytest.importorskip("plotly.offline")
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(group_runs(runs), [fake_study()], plotly.get_plotlyjs()), encoding="utf-8")
    with open_browser(tmp_path_factory.mktemp("profile")) as driver:
        driver.get(path.as_uri())
        driver.execute_async_script(DRAWN)
        yield driver


def test_every_figure_has_data(browser) -> None:  # type: ignore[no-untyped-def]
    found = browser.execute_async_script(DRAWN)
    assert {"loss", "stationarity", "weights", "shares", "radar", "normalised", "chart"} == {f["kind"] for f in found}
    assert all(figure["svg"] and figure["points"] and min(figure["points"]) > 1 for figure in found)


def test_no_console_errors_and_no_requests(browser) -> None:  # type: ignore[no-untyped-def]
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    sent = [request["request"]["url"] for request in requests if request["documentURL"] == browser.current_url]
    assert sent
    assert all(re.match("(file|data|blob):", url) for url in sent), sent


def test_legend_hides_and_shows_a_method_in_all_its_figures(browser) -> None:  # type: ignore[no-untyped-def]
    names = """return [...document.querySelectorAll('#e3 [data-kind=loss] .chart, #e3 [data-kind=stationarity] .chart')]
               .map((chart) => chart.data.map((t) => t.name).filter(Boolean))"""
    before = browser.execute_script(names)
    assert all("STIMULUS" in chart for chart in before)
    press = "document.querySelector('#e3 .chip[data-entry=\"2\"]').click()"
    browser.execute_script(press)
    assert not any("STIMULUS" in chart for chart in browser.execute_script(names))
    assert browser.execute_script("return document.querySelector('#e3 .chip[data-entry=\"2\"]').ariaPressed") == "false"
    browser.execute_script(press)
    assert browser.execute_script(names) == before


def test_a_studys_own_legend_toggles(browser) -> None:  # type: ignore[no-untyped-def]
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    item = browser.find_element(By.CSS_SELECTOR, "#s0 .legendtoggle")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", item)
    ActionChains(browser).move_to_element(item).click().perform()
    shown = "return document.querySelector('#s0 .chart').data.some((t) => t.visible === 'legendonly')"
    browser.execute_async_script("setTimeout(arguments[0], 700)")  # plotly waits for a second click
    assert browser.execute_script(shown)


def test_switches_change_axis_and_scale(browser) -> None:  # type: ignore[no-untyped-def]
    figure = "document.querySelector('#e3 [data-kind=loss]')"
    for axis, title in (("gradients", "Gradient evaluations"), ("samples", "Samples"), ("iterations", "Iterations")):
        browser.execute_script(f"{figure}.querySelector('[data-value={axis}]').click()")
        found = browser.execute_script(f"return {figure}.querySelector('.chart').layout.xaxis.title.text")
        assert found.startswith(title)
    browser.execute_script(f"{figure}.querySelector('[data-value=log]').click()")
    assert browser.execute_script(f"return {figure}.querySelector('.chart')._fullLayout.yaxis.type") == "log"


def test_a_task_can_be_chosen(browser) -> None:  # type: ignore[no-untyped-def]
    value = "const f = document.querySelector('#e1 [data-kind=loss]'); const c = f.querySelector('.chart');"
    mean = browser.execute_script(f"{value} return c.data.at(-1).y.at(-1)")
    pick = "const s = f.querySelector('select'); s.value = '39'; s.dispatchEvent(new Event('change', {bubbles: true}));"
    assert browser.execute_script(f"{value} {pick} return c.data.at(-1).y.at(-1)") != mean


def test_strange_names_are_shown_as_they_are(browser) -> None:  # type: ignore[no-untyped-def]
    labels = browser.execute_script("return [...document.querySelectorAll('#e2 .chip')].map((c) => c.textContent)")
    assert EVIL in labels
    radar = (
        "return [...document.querySelectorAll('#e2 [data-kind=radar] .angularaxistick text')].map((t) => t.textContent)"
    )
    assert any(label.startswith("<script>alert(") for label in browser.execute_script(radar))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_scrolls_only_downwards_in_both_themes(browser, theme: str) -> None:  # type: ignore[no-untyped-def]
    from .browser import as_phone

    with as_phone(browser, theme):
        found = browser.execute_async_script(DRAWN)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        assert max(figure["width"] for figure in found) <= 390
        ink = browser.execute_script("return document.querySelector('.chart')._fullLayout.font.color")
        assert ink == {"light": "#1b1f24", "dark": "#e6e9ee"}[theme]
