"""The page of a front in headless Chromium: no errors, hover shows a point, a click copies the loading code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fronts.test_front import front
from tests.lab.report.browser import as_phone, open_browser

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("front")
    front().save(folder)
    with open_browser(tmp_path_factory.mktemp("profile")) as driver:
        driver.get((folder / "front.html").as_uri())
        yield driver


def _place(browser: Any, number: int) -> tuple[float, float]:
    """Return where a point is drawn."""
    script = (
        "const box = [...document.querySelectorAll('#plot .scatterlayer .trace')].pop()"
        ".querySelectorAll('.point')[arguments[0]].getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]"
    )
    x, y = browser.execute_script(script, number)
    return x, y


def _mouse(browser: Any, kind: str, x: float, y: float) -> None:
    event = {"type": kind, "x": x, "y": y, "button": "none" if kind == "mouseMoved" else "left", "clickCount": 1}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)


def _after(browser: Any, script: str) -> Any:
    """Return a value of the page once it is not empty."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 10).until(lambda driver: driver.execute_script(script))


def test_it_opens_without_errors_and_without_requests(browser: Any) -> None:
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    sent = [request["request"]["url"] for request in requests if request["documentURL"] == browser.current_url]
    assert all(url.startswith(("file:", "data:", "blob:")) for url in sent), sent


def test_hover_shows_a_point(browser: Any) -> None:
    _mouse(browser, "mouseMoved", *_place(browser, 1))
    text = _after(browser, "return document.querySelector('#plot .hovertext')?.textContent")
    assert "Point 1" in text
    assert "f0 0.2, weight 0.500" in text


def test_a_click_copies_the_code_that_loads_the_model(browser: Any) -> None:
    x, y = _place(browser, 3)
    _mouse(browser, "mouseMoved", x, y)
    assert _after(browser, "return document.querySelector('#plot .hovertext')?.textContent.includes('Point 3')")
    for kind in ("mousePressed", "mouseReleased"):
        _mouse(browser, kind, x, y)
    assert _after(browser, "return document.getElementById('copied').textContent") == "Copied."
    code = browser.execute_script("return document.getElementById('code').textContent")
    path = Path(code.split('"')[1])
    assert path.name == "point-003.pt"
    assert path.exists()
    assert "weights_only=True" in code


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_phone_in_both_themes(browser: Any, theme: str) -> None:
    with as_phone(browser, theme):
        assert _after(browser, "return document.documentElement.scrollWidth <= 390")
        paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(255, 255, 255)" if theme == "light" else "rgb(13, 17, 23)")
