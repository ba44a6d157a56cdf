"""``diagnose`` names the planted cause, and leaves everything as it was."""

import copy
import math
from functools import cache, partial

import pytest
import torch
from torch import nn

from stimulus_moo import Balanced, InvalidOption, MiniBatch, MultiGradient
from stimulus_moo.diagnosis import diagnose
from stimulus_moo.diagnosis.diagnose import _verdict
from stimulus_moo.diagnosis.gradients import look

from .cases import CASES, SIZES, squared


@cache
def found_in(name, *, steps=100, seed=0, names=None, repeat=0):
    torch.manual_seed(0)
    model, losses, data = CASES[name]()
    return diagnose(model, losses, data, batch_size=SIZES.get(name, 32), steps=steps, seed=seed, names=names)


@pytest.mark.parametrize("name", CASES)
def test_the_planted_cause_is_named_first_and_alone(name):
    found = found_in(name)
    assert found.cause == name, str(found)
    assert [finding.kind for finding in found.findings] == [name], str(found)


def test_figures_of_the_planted_causes():
    opposed = found_in("conflicting")
    assert opposed.cosines[0][1] < -0.8
    assert opposed.conflict_rate > 0.9
    weights = found_in("scaled")
    assert weights.tasks[0].gradient / weights.tasks[1].gradient == pytest.approx(1000, rel=0.05)
    assert weights.tasks[1].weight > weights.tasks[0].weight
    still = found_in("pinned")
    assert still.findings[0].tasks == (1,)
    assert still.tasks[1].gradient == 0
    noise = found_in("unlearnable")
    assert noise.findings[0].tasks == (1,)
    assert noise.tasks[0].alone < 0.5 * noise.tasks[0].shuffled


def test_the_noise_and_signal_are_those_of_the_batches():
    torch.manual_seed(0)
    model, losses, (x, y) = CASES["aligned"]()
    batches = [(x[k : k + 32], y[k : k + 32]) for k in range(0, 320, 32)]
    found = look(model, losses, batches)
    rows = []
    for batch in batches:
        gradients = [torch.autograd.grad(losses(model, batch)[s], model.parameters()) for s in range(2)]
        rows.append(torch.stack([torch.cat([g.flatten() for g in one]) for one in gradients]).double())
    rows = torch.stack(rows)  # batch, loss, parameter
    noise = rows.var(0).sum(1)
    assert torch.allclose(torch.tensor(found.noise).double().square(), noise, rtol=1e-4)
    signal = rows.mean(0).square().sum(1) - noise / len(batches)
    assert torch.allclose(torch.tensor(found.signal).double().square(), signal, rtol=1e-4)
    mean = nn.functional.normalize(rows.mean(0), dim=1)
    assert found.cosines[0][1] == pytest.approx(float(mean[0] @ mean[1]), abs=1e-6)
    assert found.zero == [0, 0]
    assert found.resolved == [True, True]


def test_everything_is_left_as_it_was():
    torch.manual_seed(0)
    model, losses, data = CASES["unlearnable"]()
    model.insert(2, nn.Dropout(0.1))
    model.eval()
    squared(model, data).sum().backward()
    before = copy.deepcopy(model.state_dict())
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    random = torch.get_rng_state()
    diagnose(model, losses, data, steps=20, batch_size=32)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())
    assert all(torch.equal(p.grad, old) for p, old in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), random)
    assert not model.training


def test_it_is_reproducible_and_depends_on_the_seed():
    first, again, other = (found_in("aligned", steps=20, seed=seed, repeat=k) for k, seed in enumerate((0, 0, 1)))
    assert first == again
    assert first.tasks != other.tasks


def test_missing_labels_shared_parameters_names_and_map_style_data():
    torch.manual_seed(0)
    x = torch.randn(400, 4)
    known = torch.rand(400, 2) < 0.7
    y = x[:, :2] * known
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))

    def losses(m, batch):
        x, y, known = batch
        error = (m(x) - y).square() * known
        return {"first": error[:, 0].sum() / known[:, 0].sum(), "second": error[:, 1].sum() / known[:, 1].sum()}

    options = {"counts": lambda batch: batch[2].sum(0), "shared": model[0].parameters(), "steps": 20, "batch_size": 20}
    found = diagnose(model, losses, (x, y, known), **options)
    assert [task.name for task in found.tasks] == ["first", "second"]
    assert all(math.isfinite(value) for task in found.tasks for value in task.numbers())
    samples = list(zip(x, y, known, strict=True))
    listed = diagnose(model, losses, samples, steps=5, batch_size=20)
    assert all(math.isnan(task.shuffled) for task in listed.tasks)  # nothing to shuffle
    assert "unlearnable" not in [finding.kind for finding in listed.findings]


def test_text_and_page_say_the_same(tmp_path):
    found = found_in("conflicting", steps=40, names=("clicks & views", "<sales>"))
    text = str(found)
    assert text.startswith("Diagnosis: conflicting. ")
    assert "clicks & views and <sales> (cosine -0." in text
    found.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<h1>Diagnosis: conflicting</h1>" in page
    assert "&lt;sales&gt;" in page
    assert "<sales>" not in page
    assert "auto would weigh" in page


@pytest.mark.parametrize(
    ("auto", "mean", "word"),
    [
        ([1.0, 2.0], [1.0, 3.0], "paid"),
        ([1.0, 3.0], [1.0, 2.0], "did not pay"),
        ([1.0, 3.0], [2.5, 2.9], "helped some losses and hurt others"),
        ([1.0, 2.0], [1.0, 2.0], "made no difference"),
    ],
)
def test_the_verdict_compares_means_and_worst_losses(auto, mean, word):
    tests = {"auto": auto, "mean": mean, "alone": [1.0, 1.0]}
    assert _verdict(tests, aligned=False).startswith(f"Multi-objective weights {word} in the trial")
    assert "did not show" in _verdict({**tests, "auto": [math.nan, 1.0]}, aligned=False)


def test_wrong_arguments_are_refused():
    model, losses, data = CASES["aligned"]()
    with pytest.raises(InvalidOption, match="steps must be a positive integer, found 0"):
        diagnose(model, losses, data, steps=0)
    with pytest.raises(InvalidOption, match="data must be a data set of at least 20 samples, found 10 samples"):
        diagnose(model, losses, (data[0][:10], data[1][:10]))
    with pytest.raises(InvalidOption, match="batch_size must be at most half of the 3277 training samples, found 2000"):
        diagnose(model, losses, data, batch_size=2000)
    with pytest.raises(InvalidOption, match="names must have one name for each of the 2 losses"):
        diagnose(model, losses, data, names=["one"])
    with pytest.raises(InvalidOption, match="shared must have parameters of the model"):
        diagnose(model, losses, data, shared=nn.Linear(1, 1).parameters())


def test_a_zero_gradient_pins_min_norm_and_not_balanced_weights():
    """The claim of the finding."""
    torch.manual_seed(0)
    model, losses, data = CASES["pinned"]()
    pinned = MultiGradient(model, losses, MiniBatch()).backward(data)
    assert pinned.weights.tolist() == [0.0, 1.0]
    assert pinned.sq_norm == 0
    assert MultiGradient(model, losses, MiniBatch(), Balanced()).backward(data).sq_norm > 0


def sparse(labels):
    """Three tasks of one linear model, and which samples have a label of each."""
    torch.manual_seed(0)
    x = torch.randn(len(labels), 3)
    y = x @ torch.tensor([[1.0, -1.0, 2.0], [0.5, 0.0, 1.0], [0.0, 1.0, -1.0]])

    def losses(model, batch):
        here = batch[2]
        squares = torch.where(here > 0, (model(batch[0]) - batch[1]).square(), 0.0)
        return squares.sum(0) / here.sum(0)  # NaN without a label

    return nn.Linear(3, 3), losses, (x, y, labels), lambda batch: batch[2].sum(0)


def test_figures_stay_with_their_task_where_labels_are_missing():
    labels = torch.ones(32, 3)
    labels[:, 0] = 0  # never
    labels[8:, 1] = 0  # in the first batch only
    model, losses, columns, counts = sparse(labels)
    batches = [tuple(column[k : k + 8] for column in columns) for k in range(0, 32, 8)]
    found = look(model, losses, batches, counts=counts)
    whole = look(model, lambda m, b: losses(m, b)[2:], batches)
    assert math.isnan(found.losses[0])
    assert math.isnan(found.signal[0])
    assert found.signal[2] == pytest.approx(whole.signal[0])
    assert found.noise[2] == pytest.approx(whole.noise[0])
    assert found.losses[2] == pytest.approx(whole.losses[0])
    assert found.signal[1] > 0
    assert (found.noise[1], found.zero[1]) == (0.0, 0.0)


def test_rare_labels_are_diagnosed():
    torch.manual_seed(1)
    labels = torch.zeros(400, 3)
    labels[torch.arange(400), torch.randint(3, (400,))] = 1.0  # no sample has two
    labels[:, 2] *= (torch.rand(400) < 0.2).float()
    labels[:, 0] = torch.maximum(labels[:, 0], (labels.sum(1) == 0).float())
    model, losses, columns, counts = sparse(labels)
    found = diagnose(model, losses, columns, counts=counts, steps=20, batch_size=8)
    assert all(math.isfinite(task.alone) for task in found.tasks)


def test_a_dict_of_losses_in_another_order_is_the_same():
    torch.manual_seed(0)
    x = torch.randn(120, 3)
    calls = 0

    def losses(model, batch, turns=False):
        nonlocal calls
        calls += 1
        both = {"sum": (model(batch[0])[:, 0] - batch[1]).square().mean(), "flat": 3 + model(batch[0]).square().mean()}
        return both if not turns or calls % 2 else dict(reversed(both.items()))

    figures = []
    for turns in (False, True):
        torch.manual_seed(0)
        found = diagnose(nn.Linear(3, 1), partial(losses, turns=turns), (x, x.sum(1)), steps=10)
        figures.append([(task.name, task.alone, task.mean, task.auto) for task in found.tasks])
    assert figures[0] == figures[1]
