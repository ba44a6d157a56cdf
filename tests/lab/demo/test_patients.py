import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from stimulus_moo.lab.demo import patients


def test_the_losses_are_the_means_of_the_groups():
    inputs, target, shares = patients.load_patients()
    torch.manual_seed(0)
    model = torch.nn.Linear(10, 1)
    found = patients.group_losses(model, (inputs, target, shares))
    for loss, column in zip(found, shares.T, strict=True):
        inside = column > 0
        own = binary_cross_entropy_with_logits(model(inputs[inside]).squeeze(1), target[inside])
        torch.testing.assert_close(loss, own)  # float32
    assert [int((column > 0).sum()) for column in shares.T] == [207, 235]


def test_a_complete_front_is_not_trained_again(tmp_path, monkeypatch):
    monkeypatch.setattr(patients, "POINTS", 3)
    monkeypatch.setattr(patients, "STEPS", 30)
    state = torch.random.get_rng_state()
    first = patients.trace_front(tmp_path)
    second = patients.trace_front(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len(first) == 3
    assert first.losses.tolist() == second.losses.tolist()
    assert first.passes == second.passes
