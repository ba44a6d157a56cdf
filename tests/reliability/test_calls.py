"""Junk as arguments: a typed error or a sound object, never a changed model; ``make faults`` draws many more."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from reliability import calls
from stimulus_moo import InvalidBatch, MultiGradient, Recursive, fit
from tests.harness import cut, data, differing, everything, two_heads, two_losses

EXAMPLES = 30


@pytest.mark.filterwarnings("ignore::stimulus_moo.StimulusWarning")
@pytest.mark.parametrize("name", calls.CALLS)
def test_junk_is_refused_with_a_typed_error_and_changes_nothing(name: str) -> None:
    tally = calls.Tally()
    calls.repeated(calls.arguments(name), functools.partial(calls.call, name, tally), EXAMPLES)
    assert tally.other == []
    assert tally.changed == 0
    assert tally.refused > 0


def test_no_words_break_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STIMULUS_MOO_DATA", raising=False)
    monkeypatch.setenv("STIMULUS_MOO_CACHE", str(tmp_path / "cache"))
    tally = calls.Tally()
    with calls.tiny_laboratory():
        calls.repeated(calls.command_lines(), lambda words: calls.command(words, tmp_path, tally), EXAMPLES)
    assert tally.other == []
    assert tally.refused > 0


class Endless:
    """Can be iterated again, and never ends."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        while True:
            yield from self.batches


def test_an_endless_anchor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stimulus_moo.anchors.base._MOST_BATCHES", 50)
    mg = MultiGradient(two_heads(), two_losses, Recursive(Endless(cut(data(24), 6)), 3))
    before = everything(mg)
    with pytest.raises(InvalidBatch, match=r"given 50 batches and does not say how many it has: it may be endless"):
        mg.backward()
    assert differing(before, everything(mg)) == []


def test_a_long_anchor_that_says_how_long_it_is_may_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stimulus_moo.anchors.base._MOST_BATCHES", 2)
    mg = MultiGradient(two_heads(), two_losses, Recursive(cut(data(24), 6), 3))
    assert mg.backward().anchored
    assert mg.samples == 24


@pytest.mark.parametrize("seed", [0, 2**40, 2**64 - 1])
def test_every_seed_that_is_accepted_works(seed: int) -> None:
    result = fit(
        torch.nn.Linear(2, 2), lambda m, b: m(b).square().mean(0), torch.randn(8, 2), lr=0.1, steps=2, seed=seed
    )
    assert result.steps == 2
