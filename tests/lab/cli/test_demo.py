import dataclasses

from stimulus_moo.lab.cli import arguments
from stimulus_moo.lab.cli.demo import DEMO_SEEDS

from .. import fake_lab
from .conftest import call


def test_the_demo_compares_digits_and_goes_on_by_itself(place, monkeypatch):
    digits = dataclasses.replace(fake_lab.TINY, name="digits", settings=fake_lab.TINY.settings.override({"steps": 2}))
    monkeypatch.setattr(arguments, "catalogue", lambda: ({"digits": digits}, {}))
    monkeypatch.setattr("stimulus_moo.lab.report.write_report", lambda folder: folder / "report.html")
    first = call("demo")
    assert "report: runs/demo/report.html" in first.stdout
    assert "A tiny regression" in first.stdout
    assert call("demo").stderr.count("complete already") == DEMO_SEEDS * 4
