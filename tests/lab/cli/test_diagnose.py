"""``stimulus-moo diagnose``."""

from .conftest import call


def test_the_diagnosis_is_printed_and_its_page_written(tmp_path):
    result = call("diagnose", "tiny", "--steps", 20)
    page = tmp_path / "runs/tiny/diagnosis.html"
    first = result.stdout.splitlines()[0]
    cause = first.removeprefix("Diagnosis: ").split(".")[0]
    assert f"<h1>Diagnosis: {cause}</h1>" in page.read_text()
    assert "Conflict rate: " in result.stdout
    assert result.stdout.splitlines()[-1] == f"page: {page.relative_to(tmp_path)}"
    assert "squares is a study" in call("diagnose", "squares", code=2).stderr
