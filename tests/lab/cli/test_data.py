from .conftest import call


def test_data_list_and_check(place):
    assert "built in" in call("data", "list").stdout
    assert "built in" in call("data", "check", "digits").stdout
    assert "missing" in call("data", "check", "mnist", code=1).stdout
    assert "missing" in call("data", "check").stdout
