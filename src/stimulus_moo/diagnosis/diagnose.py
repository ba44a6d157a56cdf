"""Entry point: short runs on copies of the model tell whether multi-objective training pays on a problem."""

from __future__ import annotations

import copy
import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stimulus_moo import InvalidOption, StimulusWarning
from stimulus_moo.data.sources import as_source
from stimulus_moo.diagnosis.findings import ALIGNED, conflict_rate, find
from stimulus_moo.diagnosis.gradients import Look, look
from stimulus_moo.diagnosis.report import Diagnosis, TaskFigures
from stimulus_moo.diagnosis.trials import Trials, in_order, split
from stimulus_moo.options import positive_integer, seed_number
from stimulus_moo.training.devices import on_device

_BATCHES = 16  # at every point
_POINTS = (0.5, 1.0)  # of the run on the mean loss, besides the start
_PAYS = 0.01  # relative gain that counts


def diagnose(
    model: nn.Module,
    losses: Callable[[Any, Any], Any],
    data: Any,
    *,
    batch_size: int | None = None,
    steps: int = 300,
    counts: Callable[[Any], Any] | None = None,
    shared: Iterable[Tensor] | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
) -> Diagnosis:
    """Tell what stands in the way of training a model on several losses, and whether multi-objective weights help.

    Everything runs on copies: the model, its gradients and the random state are left unchanged. At most 16,384 samples
    are used, a fifth of them held out. From the same initialization, ``fit`` trains on each loss alone, on all losses
    with Adam on their mean and with ``auto``, and with ``auto`` on shuffled inputs, which can teach nothing but means:
    S + 3 runs. Gradients are compared at three points of the run on the mean.

    ==============  ====================================================================================================
    finding         rule
    ==============  ====================================================================================================
    pinned          a gradient is exactly zero on more than half of the batches
    unlearnable     trained alone, the held-out loss is not 2%, and two standard errors, below that with shuffled inputs
    scaled          at the start, the largest gradient is at least 10 times the smallest
    noisy           at the start, the noise of a batch's gradient is at least 3 times its signal
    conflicting     two mean gradients have a cosine below -0.1 at a point, or 60% of the cosines on batches are below 0
    aligned         none of these
    ==============  ====================================================================================================

    Args:
        model: a ``torch.nn.Module`` that ``copy.deepcopy`` can copy; the mode (train or eval) is kept.
        losses: as for ``fit``; it must use the model that it is given.
        data: as for ``fit``, but not a stream. The inputs are the first tensor of a sample.
        batch_size: default ceil(sqrt(n)), as for ``fit``.
        steps: of every run.
        counts, shared: as for ``MultiGradient``.
        names: of the losses; default: the keys of a dict of losses, or "loss 0", "loss 1" and so on.
        seed: of the split and the batches.

    Raises:
        InvalidOption: an argument is invalid.
        NonFiniteError: a loss or gradient is not finite at the start.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(512, 4)
    >>> y = torch.stack([x.sum(1), -x.sum(1)], dim=1) + 0.1 * torch.randn(512, 2)
    >>> losses = lambda model, batch: (model(batch[0]) - batch[1]).square().mean(0)
    >>> found = diagnose(torch.nn.Linear(4, 1), losses, (x, y), steps=60)
    >>> found.cause, found.findings[0].tasks
    ('conflicting', (0, 1))
    """
    steps, seed = positive_integer("steps", steps), seed_number(seed)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", StimulusWarning)
        torch.manual_seed(seed)
        parts = split(data, seed)
        size = math.isqrt(parts.size - 1) + 1 if batch_size is None else positive_integer("batch_size", batch_size)
        if size * 2 > parts.size:
            raise InvalidOption(f"batch_size must be at most half of the {parts.size} training samples, found {size}")
        chosen, losses = None if shared is None else _names_of(model, shared), in_order(on_device(model, losses))
        trials = Trials(model, losses, counts, parts, {"batch_size": size, "steps": steps, "seed": seed}, chosen)
        batches = _batches(parts.train, size, seed)
        looks = [_look(trials, model, batches)]
        labels = _labels(model, losses, batches[0], names, len(looks[0].losses))
        mean, copies = trials.together("scalarisation-adam", points=_POINTS)
        looks += [_look(trials, one, batches) for one in copies if _finite(one)]
        auto, _ = trials.together("auto")
        tests = {
            "mean": _measured(trials, mean, labels),
            "auto": _measured(trials, auto, labels),
            "alone": torch.stack([trials.alone(s) for s in range(len(labels))], dim=1),
            "shuffled": _shuffled(trials, labels),
        }
    return _diagnosis(labels, looks, tests, trials, steps, size)


def _diagnosis(
    names: list[str], looks: list[Look], held_out: dict[str, Tensor], trials: Trials, steps: int, size: int
) -> Diagnosis:
    start = looks[0]
    findings = find(names, looks, list(held_out["alone"].T), list(held_out["shuffled"].T))
    tests = {kind: rows.nanmean(0).tolist() for kind, rows in held_out.items()}
    weights = [math.nan] * len(names) if trials.auto is None else trials.auto.history["weights"][-1]
    tasks = [
        TaskFigures(
            name,
            start.losses[s],
            start.signal[s],
            start.noise[s] / start.signal[s] if start.signal[s] else math.nan,
            weights[s],
            *(tests[kind][s] for kind in ("alone", "shuffled", "mean", "auto")),
        )
        for s, name in enumerate(names)
    ]
    rate = conflict_rate(looks)
    verdict = _verdict(tests, aligned=findings[0].kind == ALIGNED)
    return Diagnosis(findings, tasks, start.cosines, rate, _choices(names, trials, looks), verdict, steps, size)


def _verdict(tests: dict[str, list[float]], *, aligned: bool) -> str:
    """Return whether multi-objective training paid: held-out losses relative to each loss trained alone."""
    ratios = {
        kind: [value / base for value, base in zip(tests[kind], tests["alone"], strict=True) if base > 0.0]
        for kind in ("auto", "mean")
    }
    if not ratios["auto"] or any(map(math.isnan, (*ratios["auto"], *ratios["mean"]))):
        return "The trial did not show whether multi-objective weights help."
    pairs = [[statistics.fmean(found), max(found)] for found in ratios.values()]
    (auto, worst), (mean, worst_mean) = pairs
    figures = (
        f"relative to each loss trained alone, held-out losses are {auto:.3g} times as high on average, {worst:.3g} "
        f"times for the worst, with auto; {mean:.3g} and {worst_mean:.3g} times on the mean"
    )
    gains = [own < (1.0 - _PAYS) * other for own, other in zip(*pairs, strict=True)]
    costs = [own > (1.0 + _PAYS) * other for own, other in zip(*pairs, strict=True)]
    if any(gains):
        word = "helped some losses and hurt others" if any(costs) else "paid"
    else:
        word = "did not pay" if any(costs) or aligned else "made no difference"
    return f"Multi-objective weights {word} in the trial: {figures}."


def _choices(names: Sequence[str], trials: Trials, looks: Sequence[Look]) -> list[str]:
    """Return what auto has chosen in its run, and why."""
    result = trials.auto
    if result is None:
        return ["auto: the run ended with a loss that is not finite."]
    history, count = result.history, len(names)
    weights = ", ".join(f"{name} {weight:.3g}" for name, weight in zip(names, history["weights"][-1], strict=True))
    lines = [f"auto would weigh {weights}: a loss with a smaller gradient gets a larger weight."]
    rates = [lr for lr in history["lr"] if not math.isnan(lr)]
    if rates:
        lines.append(f"Its learning rate reached {max(rates):.3g}, found from the distance covered (DoG).")
    if count > 1 and result.samples:
        solves = (result.passes / result.samples - 1.0) / (count - 1)
        lines.append(
            f"It solved for the weights on about {min(max(solves, 0.0), 1.0):.0%} of the samples, so a sample cost "
            f"{result.passes / result.samples:.2f} backward passes; weights from every batch would cost {count}."
        )
    end = looks[-1]
    ratio = [n / s for n, s in zip(end.noise, end.signal, strict=True) if s > 0.0]
    if any(history["anchored"]):
        lines.append("It used anchors and differences (variance reduction), since the losses had stalled.")
    elif ratio:
        lines.append(
            "It used each batch's own gradient; differences are tried after 300 steps at the earliest. At the end of "
            f"the run on the mean, the noise was {min(ratio):.3g} to {max(ratio):.3g} times the signal."
        )
    return lines


def _look(trials: Trials, model: nn.Module, batches: Sequence[Any]) -> Look:
    copied = copy.deepcopy(model)
    return look(copied, trials.losses, batches, counts=trials.counts, shared=trials.parameters(copied))


def _batches(train: Any, size: int, seed: int) -> list[Any]:
    source = as_source(train)
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed + 1))
    return [source.take(rows) for rows in order[: size * _BATCHES].split(size) if len(rows) == size]


def _measured(trials: Trials, model: nn.Module | None, names: Sequence[str]) -> Tensor:
    return _unknown(trials, names) if model is None else trials.held_out(model)


def _shuffled(trials: Trials, names: Sequence[str]) -> Tensor:
    """Return the held-out losses after training with shuffled inputs; NaN where the loss does not depend on pairs."""
    found = trials.without_inputs()
    if found is None:
        return _unknown(trials, names)
    return torch.where(torch.tensor(trials.depends_on_pairing()), found, torch.nan)


def _unknown(trials: Trials, names: Sequence[str]) -> Tensor:
    return torch.full((len(trials.data.held_out), len(names)), math.nan)


def _finite(model: nn.Module) -> bool:
    return all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


def _names_of(model: nn.Module, shared: Iterable[Tensor]) -> list[str]:
    wanted = {id(parameter) for parameter in shared}
    found = [name for name, parameter in model.named_parameters() if id(parameter) in wanted]
    if not found:
        raise InvalidOption("shared must have parameters of the model, found none of them")
    return found


def _labels(model: nn.Module, losses: Any, batch: Any, names: Sequence[str] | None, count: int) -> list[str]:
    if names is not None:
        if len(names) != count:
            raise InvalidOption(f"names must have one name for each of the {count} losses, found {list(names)}")
        return list(map(str, names))
    with torch.no_grad():
        found = losses(copy.deepcopy(model), batch)
    return list(map(str, found)) if isinstance(found, dict) else [f"loss {s}" for s in range(count)]
