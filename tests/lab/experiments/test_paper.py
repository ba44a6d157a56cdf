"""The paper's curve experiments: their settings are the paper's, and tiny versions train."""

from __future__ import annotations

import dataclasses
import math
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from stimulus_moo import fit
from stimulus_moo.lab.data import DataError
from stimulus_moo.lab.experiment import Experiment
from stimulus_moo.lab.experiments import EXPERIMENTS
from stimulus_moo.lab.studies import STUDIES

#: FACTS.md: step size, momentum, inner batch, "full" batch, period
PAPER = {
    "multimnist": (0.3, 0.5, 96, 1024, 10),
    "celeba": (0.0005, 0.01, 32, 1024, 10),
    "attributes": (0.0005, 0.01, 32, 1024, 10),
    "riverflow": (0.001, 0.1, 8, 128, 10),
}


@pytest.mark.parametrize("name", PAPER)
def test_settings_are_those_of_the_paper(name: str) -> None:
    s = EXPERIMENTS[name].settings
    assert (s.lr, s.momentum, s.batch_size, s.n, s.period) == PAPER[name]
    assert s.epsilon == 1e-3


def build(experiment: Experiment, **changes: object):
    try:
        return experiment.build(experiment.settings.override(changes), 0, None)
    except DataError as error:
        pytest.skip(f"no data here: {error}")


def shared_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shared data set the tests must not try to download."""
    import os

    if "STIMULUS_MOO_DATA" not in os.environ:
        pytest.skip("STIMULUS_MOO_DATA is not set")


@pytest.mark.parametrize(("name", "tasks", "n"), [("digits", 2, 64), ("multimnist", 2, 64), ("attributes", 40, 16)])
def test_a_tiny_version_trains(name: str, tasks: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "multimnist":
        shared_data(monkeypatch)
    problem = build(EXPERIMENTS[name], n=n)
    options = {**EXPERIMENTS[name].settings.for_method("stimulus-m"), "steps": 2, "gradients": None}
    options.update(batch_size=4, period=2, lr=0.01, evaluate_every=None)
    result = fit(problem.model, problem.losses, problem.data, **options)
    assert len(result.losses) == len(problem.tasks) == tasks
    assert all(map(math.isfinite, result.losses))
    for values in problem.test(problem.model).values():
        assert len(values) == tasks
        assert all(0.0 <= value <= 1.0 for value in values)


def test_river_flow_counts_are_those_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the paper's T: its exact counts follow by arithmetic, 10 times these."""
    shared_data(monkeypatch)
    experiment = EXPERIMENTS["riverflow"]
    expected = {"smgd": 800, "moco": 800, "mgd": 12_800, "stimulus": 2_720, "stimulus-m": 2_720}
    problem = build(experiment)

    def gradients_of(method: str) -> int:
        options = {**experiment.settings.for_method(method), "steps": 100, "evaluate_every": None}
        return fit(deepcopy(problem.model), problem.losses, problem.data, **options).gradients

    assert {method: gradients_of(method) for method in expected} == expected
    assert all(gradients_of(method) < 2_720 for method in ("stimulus+", "stimulus-m+"))


def test_the_start_depends_on_the_seed_and_the_data_does_not() -> None:
    experiment = EXPERIMENTS["digits"]
    a, b, c = (experiment.build(experiment.settings, seed, None) for seed in (0, 0, 1))
    first, second, third = (next(iter(p.model.parameters())) for p in (a, b, c))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert torch.equal(a.data[0], c.data[0])


def test_the_scaled_digits_differ_in_the_second_loss_only() -> None:
    a, b = (build(EXPERIMENTS[name]) for name in ("digits", "digits-scaled"))
    batch = tuple(column[:8] for column in a.data)
    left, right = a.losses(a.model, batch)
    torch.testing.assert_close(b.losses(b.model, batch), (left, 0.01 * right))
    assert b.tasks == ("left", "right, times 0.01")


def test_per_method_values_are_used() -> None:
    settings = EXPERIMENTS["riverflow"].settings
    assert settings.for_method("scalarisation")["lr"] == 0.3
    assert settings.for_method("mgd")["lr"] == 0.001
    assert settings.for_method("stimulus-m+")["sigma2"] != settings.for_method("stimulus+")["sigma2"]


def test_names_are_unique_and_studies_are_complete() -> None:
    assert not set(EXPERIMENTS) & set(STUDIES)
    assert set(STUDIES) == {
        "momentum-ablation",
        "strongly-convex",
        "scaling-law",
        "rates",
        "pareto-front",
        "ranking-scale",
    }
    for experiment in EXPERIMENTS.values():
        changed = experiment.settings.override(experiment.quick)
        assert dataclasses.asdict(changed) != dataclasses.asdict(experiment.settings)


def test_celeba_reads_the_official_layout(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    folder = tmp_path / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{i:06d}.jpg" for i in range(1, 9)]
    for i, name in enumerate(names):
        pillow.new("RGB", (178, 218), (i * 20, 80, 120)).save(folder / "img_align_celeba" / name)
    attributes = " ".join(f"Attribute_{s}" for s in range(40))
    rows = "\n".join(
        f"{name} " + " ".join("1" if (i + s) % 2 else "-1" for s in range(40)) for i, name in enumerate(names)
    )
    (folder / "list_attr_celeba.txt").write_text(f"{len(names)}\n{attributes}\n{rows}\n")
    parts = "\n".join(f"{name} {0 if i < 6 else 2}" for i, name in enumerate(names))
    (folder / "list_eval_partition.txt").write_text(parts + "\n")
    experiment = EXPERIMENTS["celeba"]
    problem = experiment.build(experiment.settings.override({"n": 6}), 0, tmp_path)
    assert problem.data[0].shape == (6, 3, 64, 64)
    losses = problem.losses(problem.model, tuple(column[:2] for column in problem.data))
    assert losses.shape == (40,)


def test_any_arff_file_with_targets_trains(tmp_path: Path) -> None:
    rows = [[i, i * i % 7, (3 * i) % 5, i + (i % 3), 2.0 * i] for i in range(30)]
    head = "\n".join(f"@attribute a{k} numeric" for k in range(5))
    body = "\n".join(",".join(map(str, row)) for row in rows)
    file = tmp_path / "small.arff"
    file.write_text(f"@relation small\n{head}\n@data\n{body}\n")
    experiment = EXPERIMENTS["riverflow"]
    settings = experiment.settings.override({"files": str(file), "targets": 2, "n": 16, "steps": 3, "batch_size": 4})
    problem = experiment.build(settings, 0, None)
    assert problem.tasks == ("a3", "a4")
    result = fit(problem.model, problem.losses, problem.data, **settings.for_method("stimulus"))
    assert len(result.losses) == 2
