import dataclasses

from stimulus_moo.lab.cli import arguments
from stimulus_moo.lab.cli.demo import DEMO_METHODS, DEMO_SEEDS, DEMO_SETTINGS
from stimulus_moo.lab.runs import load_runs

from .. import fake_lab
from .conftest import call


def test_the_demo_compares_digits_and_goes_on_by_itself(place, monkeypatch):
    digits = dataclasses.replace(fake_lab.TINY, name="digits")
    monkeypatch.setitem(DEMO_SETTINGS, "passes", 320)
    monkeypatch.setattr(arguments, "catalogue", lambda: ({"digits": digits}, {}))
    monkeypatch.setattr("stimulus_moo.lab.report.write_report", lambda folder: folder / "report.html")
    first = call("demo")
    assert "report: runs/demo/report.html" in first.stdout
    assert "A tiny regression" in first.stdout
    assert call("demo").stderr.count("complete already") == DEMO_SEEDS * len(DEMO_METHODS)
    spent = {run.method: run.summary["passes"] for run in load_runs(place / "runs" / "demo")}
    assert set(spent) == set(DEMO_METHODS)
    assert all(320 <= passes < 320 + 2 * 64 for passes in spent.values())  # the last step may be an anchor
