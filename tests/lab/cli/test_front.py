"""``stimulus-moo front``."""

import re

from .conftest import call


def test_a_front_is_traced_shown_and_continued(tmp_path):
    out = tmp_path / "front"
    result = call("front", "tiny", "--points", 3, "--steps", 60, "--out", out, "--set", "n=16")
    assert "of 3 points" in result.stderr
    assert re.search(r"Pareto front: Front\([23] points", result.stdout)  # no gap may be left
    assert (out / "front.html").exists()
    shown = call("front", "show", out)
    assert shown.stdout.splitlines()[:-1] == result.stdout.splitlines()[:-1]
    assert "already has a front; pass --resume" in call("front", "tiny", "--out", out, code=2).stderr
    again = call("front", "tiny", "--points", 4, "--steps", 60, "--out", out, "--set", "n=16", "--resume")
    assert re.search(r"Front\([234] points", again.stdout)


def test_wrong_names_are_refused(tmp_path):
    assert "squares is a study" in call("front", "squares", code=2).stderr
    assert "front show needs the directory" in call("front", "show", code=2).stderr
    assert "there is no front in" in call("front", "show", tmp_path, code=2).stderr
