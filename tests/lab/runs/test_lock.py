import pytest

from stimulus_moo.lab.runs.lock import RunLock
from stimulus_moo.lab.runs.storage import RunError


def test_the_second_process_in_a_directory_is_refused(tmp_path):
    with RunLock(tmp_path), pytest.raises(RunError, match="in use by another process"), RunLock(tmp_path):
        pass
    with RunLock(tmp_path):
        pass


def test_a_directory_that_nothing_was_written_to_is_removed(tmp_path):
    with RunLock(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    assert list(tmp_path.iterdir()) == []
    with RunLock(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "kept").touch()
    assert (tmp_path / "a" / "b" / "kept").exists()
