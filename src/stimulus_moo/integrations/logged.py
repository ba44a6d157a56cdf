"""What trainers log of a step, as numbers by name."""

from stimulus_moo import Step


def scalars(step: Step) -> dict[str, float]:
    """Return the losses, the weights and ||d_t||^2 of a step, by tags such as ``loss/left``.

    >>> import torch
    >>> scalars(Step(torch.tensor([0.5]), torch.ones(1), torch.tensor(4.0), False, names=("click",)))
    {'loss/click': 0.5, 'weight/click': 1.0, 'sq_norm': 4.0}
    """
    return {
        **{f"loss/{name}": value for name, value in step.named_losses.items()},
        **{f"weight/{name}": value for name, value in step.named_weights.items()},
        "sq_norm": float(step.sq_norm),
    }
