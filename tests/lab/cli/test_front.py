"""``stimulus-moo front``."""

import re

from .conftest import call


def points_told(stderr, wanted):
    """Return how many points the front has after the last run that the progress shows."""
    return int(re.findall(rf"; (\d+) of {wanted} points$", stderr, re.MULTILINE)[-1])


def test_a_front_is_traced_shown_and_continued(tmp_path):
    out = tmp_path / "front"
    result = call("front", "tiny", "--points", 3, "--steps", 60, "--out", out, "--set", "n=128")
    found = points_told(result.stderr, 3)
    assert 2 <= found <= 3  # dominated runs are left out
    assert f"Pareto front: Front({found} points" in result.stdout
    assert (out / "front.html").exists()
    shown = call("front", "show", out)
    assert shown.stdout.splitlines()[:-1] == result.stdout.splitlines()[:-1]
    assert "already has a front; pass --resume" in call("front", "tiny", "--out", out, code=2).stderr
    again = call("front", "tiny", "--points", 4, "--steps", 60, "--out", out, "--set", "n=128", "--resume")
    assert f"Front({points_told(again.stderr, 4)} points" in again.stdout


def test_wrong_names_are_refused(tmp_path):
    assert "squares is a study" in call("front", "squares", code=2).stderr
    assert "front show needs the directory" in call("front", "show", code=2).stderr
    assert "there is no front in" in call("front", "show", tmp_path, code=2).stderr
