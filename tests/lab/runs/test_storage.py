import json
import math
import os

import pytest
import torch

from stimulus_moo.lab.runs.storage import Appender, read_json, read_lines, write_json


def test_json_is_strict_and_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_json(path, {"a": math.nan, "b": (1, torch.tensor([2.0]))})
    assert json.loads(path.read_text()) == {"a": None, "b": [1, [2.0]]}

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"c": 1})
    assert read_json(path) == {"a": None, "b": [1, [2.0]]}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_line_that_does_not_fit_on_the_disk_is_taken_back(tmp_path, monkeypatch):
    lines = Appender(tmp_path / "x.jsonl")
    lines.append('{"a": 1}')
    write = os.write
    sizes = iter([4])

    def full(file, data):
        try:
            return write(file, data[: next(sizes)])
        except StopIteration:
            raise OSError(28, "No space left on device") from None

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        lines.append('{"a": 2}')
    lines.close()
    assert read_lines(tmp_path / "x.jsonl") == ([{"a": 1}], [])
