"""The momentum ablation: its verdict follows from the losses."""

from __future__ import annotations

import pytest

from stimulus_moo.lab.studies import momentum_ablation


def test_ablation_verdict_follows_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(better: bool):
        def losses_at(settings, lr, momentum, seed):
            end = (0.5 - 0.5 * momentum) if better or lr < 0.1 else (0.1 + momentum)
            return [[2.3, 2.3], [end, end]]

        return losses_at

    settings = {**momentum_ablation.SETTINGS, "iterations": [100, 200]}
    for better, verdict in ((True, "holds"), (False, "holds with another step size")):
        monkeypatch.setattr(momentum_ablation, "losses_at", fake(better))
        report = momentum_ablation.run(settings, 2, lambda key, compute: compute())
        assert report["verdict"] == verdict
        assert report["tables"][0]["rows"][0][0] == 0.1


def test_an_untrained_ablation_is_not_called_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = {0.1: 2.304, 0.3: 2.303, 0.5: 2.302, 0.8: 2.301}
    monkeypatch.setattr(momentum_ablation, "losses_at", lambda s, lr, momentum, seed: [[flat[momentum]] * 2] * 4)
    report = momentum_ablation.run(momentum_ablation.SETTINGS, 1, lambda key, compute: compute())
    assert report["verdict"] == "does not hold"
