"""The interactive page in headless Chromium: it draws, without errors and requests, and fits a phone."""

import pytest
from rich.console import Console

from stimulus_moo.lab.board.make import make_board

from ..report.browser import as_phone, open_browser
from . import toy


@pytest.fixture
def page(monkeypatch, tmp_path):
    toy.install(monkeypatch, toy.problem("one"), toy.problem("two"))
    make_board(["one", "two"], tmp_path, Console(quiet=True), quick=True)
    return tmp_path / "scoreboard.html"


@pytest.mark.slow
def test_the_page_draws_and_fits_a_phone(page, tmp_path):
    with open_browser(tmp_path / "profile") as driver:
        driver.get(page.as_uri())
        heat = driver.execute_script("return document.querySelectorAll('#heat tbody tr').length")
        points = driver.execute_script("return document.querySelectorAll('#cost .point').length")
        assert (heat, points) == (3, 3)
        title = driver.execute_script("return document.querySelector('#problem option').textContent")
        assert title == "Toy <one>"
        second = "const s = document.getElementById('problem'); s.value = 'two'; s.dispatchEvent(new Event('change'));"
        driver.execute_script(second)
        assert driver.execute_script("return document.getElementById('setting').textContent").startswith("Toy <two>: ")
        for theme in ("light", "dark"):
            with as_phone(driver, theme):
                driver.get(page.as_uri())
                wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
                assert driver.execute_script(wide) <= 0
        logged = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        assert logged == []
        sent = [entry["message"] for entry in driver.get_log("performance") if "requestWillBeSent" in entry["message"]]
        assert not [message for message in sent if '"url":"http' in message]
