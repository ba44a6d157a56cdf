from .conftest import call


def test_tune_names_the_best_step_size_of_every_method():
    result = call("tune", "tiny", "--methods", "mgd,smgd", "--steps", 3, "--n", 16)
    assert "mgd lr=0.1: mean loss" in result.stderr
    assert "Mean training loss by step size" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("--lr-of mgd=")
    assert "squares is a study" in call("tune", "squares", code=2).stderr
