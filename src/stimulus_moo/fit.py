"""Entry point without a loop of one's own: a method by name, data handling, evaluation, stopping, checkpoints."""

import copy
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stimulus_moo import options as checks
from stimulus_moo._engine.counts import Counts
from stimulus_moo._engine.objective import Losses
from stimulus_moo._engine.placement import require_copyable
from stimulus_moo.data.batches import leading_size, require_batches
from stimulus_moo.data.sources import Collate, Source, as_source
from stimulus_moo.distributed import find_group
from stimulus_moo.errors import InvalidOption, NonFiniteError
from stimulus_moo.methods import MethodOptions, Settings, check_options, find_method
from stimulus_moo.training.checkpoint import Checkpoints, bounds_in
from stimulus_moo.training.history import Result
from stimulus_moo.training.limits import Limits
from stimulus_moo.training.progress import Callback, progress_bar
from stimulus_moo.training.run import Run, take_over
from stimulus_moo.training.target import Alone, Target
from stimulus_moo.weightings.base import GramianToWeights

logger = logging.getLogger("stimulus_moo")


def fit(
    model: torch.nn.Module,
    losses: Losses,
    dataset: Any,
    *,
    method: str = "auto",
    lr: float | str = "auto",
    momentum: float = 0.5,
    batch_size: int | None = None,
    period: int | str | None = None,
    guard: bool = True,
    steps: int | None = None,
    gradients: int | None = None,
    passes: int | None = None,
    seconds: float | None = None,
    tolerance: float | None = None,
    evaluation: Iterable[Any] | None = None,
    evaluate_every: int | None = None,
    preference: Sequence[float] | None = None,
    bounds: Mapping[int, float | str] | None = None,
    weighting: GramianToWeights | str | None = None,
    reweigh: int | str | None = None,
    gramian: str = "exact",
    optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    shared: Iterable[Tensor] | None = None,
    micro_batch: int | None = None,
    counts: Counts | None = None,
    engine: str = "auto",
    anchor_batch: int = 1024,
    collate_fn: Collate | None = None,
    workers: int = 0,
    mu: float | None = None,
    seed: int = 0,
    on_nonfinite: str = "raise",
    check: bool = True,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
    checkpoint_keep: int = 2,
    resume: bool = False,
    process_group: Any = None,
    shard: bool = False,
    **options: Unpack[MethodOptions],
) -> Result:
    """Train a model on several losses with any method of ``METHODS``.

    Args:
        model: a ``torch.nn.Module``; it is trained in place, on its device.
        losses: ``losses(model, batch)`` returns the S mean losses of a batch, as a tuple, a 1-D tensor or a dict.
        dataset: tensors in memory (a tensor, tuple, dict or dataclass of tensors, or ``TensorDataset``), which are
            indexed directly; a map-style data set; or, for methods without a full pass, an endless stream.
        method: a name of ``METHODS``; ``"auto"`` is Adam on balanced weights, which are solved for in Adam's metric
            when due, with variance reduction once the losses stall (``Adaptive``, ``Balanced``).
        lr: the learning rate, or ``"auto"``, see ``DoG``; it then decays to 0 at the end of the run, by the limit that
            is closest. For ``method="auto"`` with a guard, a number is limited to twice the rate that ``DoG``
            finds. If ``optimizer`` is given, a number is used for ``mu`` only.
        momentum: for the heavy-ball methods.
        batch_size, period: default ceil(sqrt(n)), as in the theory. Every batch has exactly ``batch_size`` samples; the
            data is reshuffled when fewer are left. ``period`` is for methods with ``Recursive``, as described there.
            A stream has no n: ``batch_size`` must be given for it, and ``period`` if the method uses one.
        guard: attach a ``Safeguard``. False runs the published method unchanged.
        steps: maximum number of steps; 1000 if no other limit is given. The limit that is reached first ends the run.
        gradients: stop after this many per-sample evaluations of the S objectives.
        passes: stop after this many per-sample derivatives of one scalar; a multi-gradient takes S, a weighted loss 1.
        seconds: stop after this wall-clock time of steps, anchors included. Evaluations, callbacks and checkpoints do
            not count. A resumed run continues from the seconds in its checkpoint. The first process decides for all.
        tolerance: stop when the Pareto stationarity on the evaluation data is at most this.
        evaluation: batches to evaluate on; default: the whole data set. Evaluations do not change the counters.
        evaluate_every: steps between evaluations, besides the one at the end; with a tolerance the default is
            ``period``, or 100 if that is ``"auto"`` or None.
        preference: r of ``Ray``, one positive number per objective: train to the Pareto point where r_s f_s is the same
            for all objectives; a larger r_s asks for a smaller loss.
        bounds: upper bounds of some losses, by objective: a number, or ``"5%"`` for 5% above the least loss that a run
            on this objective alone reaches with the same limits; the counters do not include that run, and a resumed
            run keeps the number that was found. The other losses are minimised subject to the bounds, see ``Bounded``;
            ``Result.missed`` has those that were not met. With a preference or bounds, ``"auto"`` means
            ``"stimulus-adam"``: they need losses without the noise of a batch.
        weighting: replaces the method's weighting; an object or a name, as for ``MultiGradient``.
        reweigh, gramian: as for ``MultiGradient``: when weights are solved for, None for the method's own rule, and
            from which Gramian.
        optimizer: a function from parameters to an optimizer, replaces the method's; ``lr="auto"`` sets its rate.
        scheduler: a function from the optimizer to a learning-rate scheduler, which is stepped after every step.
        shared, micro_batch, counts, engine: as for ``MultiGradient``; counts also weigh the evaluations.
        anchor_batch: samples per batch of an anchor pass and of an evaluation.
        collate_fn: for map-style data sets and streams.
        workers: number of processes that prefetch the batches of a map-style data set. The batches are the same.
        mu: strong convexity; ``Result.picked`` is then the random-clock iterate of the strongly convex theorems.
        seed: of all draws except the model's own (initialization, dropout), which use torch's global random state.
        on_nonfinite: as for ``MultiGradient``. ``"raise"`` saves a checkpoint of the last finite step first; a run can
            be resumed with the other choice.
        check: as for ``MultiGradient``: look for mistakes in the first steps.
        callbacks: called with a ``Progress`` after every step; returning True ends the run.
        progress: True shows a progress bar, False does not, None shows one if standard error is a terminal.
        checkpoint, checkpoint_every: a folder for checkpoints, and the steps between them; the last step is saved too.
        checkpoint_keep: number of checkpoints to keep; if the newest is damaged, the previous one is used.
        resume: continue from the newest checkpoint, if there is one. The result equals that of an uninterrupted run,
            bit for bit on the CPU, except for the seconds and for what they decide; with ``lr="auto"`` or kept weights,
            only for the same limits.
        process_group, shard: as for ``MultiGradient``. All processes call ``fit`` with the same arguments, and each
            takes its part of the same batches, so the result is that of one process. Only the first writes checkpoints
            and shows progress. Callbacks run in all processes; one that returns True in any ends the run in all.
        options: options of the method: epsilon, sigma2, c_gamma, c_epsilon (STIMULUS+), alpha (CR-MOGM), beta, gamma,
            rho (MoCo), probability (PAGE-MOO), weights (scalarisation).

    Raises:
        InvalidOption: an argument is invalid; the model is unchanged.
        StateMismatch: the checkpoint belongs to another run; checkpoint and model are unchanged.
        NonFiniteError: a loss or a gradient is NaN or infinite; the model is at the last finite step.
        NotWritten: a checkpoint could not be written; the previous ones are intact.

    >>> import torch
    >>> from stimulus_moo import fit
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(256, 4)
    >>> y = torch.stack([x.sum(1), x[:, 0] - x[:, 1]], dim=1) + 0.1 * torch.randn(256, 2)
    >>> model = torch.nn.Linear(4, 1)
    >>> def losses(model, batch):
    ...     x, y = batch
    ...     return (model(x) - y).square().mean(0)
    >>> result = fit(model, losses, (x, y), method="stimulus-m", lr=0.05, steps=160)
    >>> result.stationarity < 1e-6, result.steps, result.samples, result.gradients, result.passes
    (True, 160, 4960, 7360, 14720)
    """
    target = Target.check(preference, bounds, weighting)
    chosen = find_method(method)
    if target is not None and chosen.targeted is not None:
        chosen = find_method(chosen.targeted)
    check_options(options)
    checks.flag("guard", guard)
    if not isinstance(callbacks, Iterable) or not all(map(callable, callbacks)):
        raise InvalidOption(f"callbacks must be a list of functions, found {callbacks!r}; pass [callback]")
    _check_objects(evaluation, optimizer=optimizer, scheduler=scheduler, collate_fn=collate_fn)
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()  # MultiGradient checks the model
    pin = any(parameter.device.type not in ("cpu", "meta") for parameter in parameters)
    source = as_source(dataset, collate_fn, workers=checks.natural_number("workers", workers), pin=pin)
    batch_size, period = _sizes(source, batch_size, period)
    settings = Settings(
        source=source,
        lr=checks.positive_or_auto("lr", lr),
        momentum=checks.real("momentum", momentum, low=0.0, high=1.0, open_high=True),
        batch_size=batch_size,
        period=period,
        anchor_batch=checks.positive_integer("anchor_batch", anchor_batch),
        seed=checks.seed_number(seed),
        partition=find_group(process_group, shard).partition,
        **options,
    )
    limits = Limits.check(
        steps=steps,
        gradients=gradients,
        passes=passes,
        seconds=seconds,
        tolerance=tolerance,
        evaluate_every=evaluate_every,
        period=period,
    )

    def least(s: int) -> float:
        """Return the least value of one loss, by a run on a copy of the model."""
        require_copyable(model, "a bound relative to an objective's own best")
        limits: Any = {"steps": steps, "gradients": gradients, "passes": passes, "seconds": seconds}
        sizes: Any = {"batch_size": settings.batch_size, "period": settings.period, "anchor_batch": anchor_batch}
        rules: Any = {"lr": lr, "momentum": momentum, "guard": guard, "optimizer": optimizer, "scheduler": scheduler}
        places: Any = {"micro_batch": micro_batch, "engine": engine, "collate_fn": collate_fn, "workers": workers}
        groups: Any = {"process_group": process_group, "shard": shard, "seed": seed, "on_nonfinite": on_nonfinite}
        quiet: Any = {"evaluation": None if source.finite else evaluation, "progress": False, "check": False}
        own = {"counts": counts, **limits, **sizes, **rules, **places, **groups, **quiet, **options}
        found = fit(copy.deepcopy(model), losses, dataset, method=chosen.name, weighting=Alone(s), **own)
        if not found.losses:
            raise InvalidOption(
                f"bounds[{s}] must be a number where the losses cannot be evaluated (NaN, or a stream without "
                "evaluation data), found a share"
            )
        return found.losses[s]

    if target is not None:
        known: dict[int, float] = {}
        if target.shares and resume:
            known = find_group(process_group, shard).broadcast(lambda: bounds_in(checkpoint))
        target = target.resolved(least, known)
        weighting = target.weighting()
    run = Run(
        model,
        losses,
        settings,
        chosen,
        guard=guard,
        timed=limits.seconds is not None,
        reweigh=reweigh,
        gramian=gramian,
        weighting=weighting,
        optimizer=optimizer,
        scheduler=scheduler,
        mu=mu,
        bounds=None if target is None else target.found,
        evaluation=evaluation,
        shared=shared,
        micro_batch=micro_batch,
        counts=counts,
        engine=engine,
        on_nonfinite=on_nonfinite,
        check=check,
        process_group=process_group,
        shard=shard,
    )
    run.multigradient.expect_steps(limits.expected_steps(settings.batch_size))
    checkpoints = Checkpoints(checkpoint, every=checkpoint_every, keep=checkpoint_keep)
    with closing(checkpoints):
        state = run.group.broadcast(lambda: checkpoints.open(resume))
        if state is not None:
            take_over(run, checkpoints.complete(state, run))
            logger.info("resumed %s at step %d", checkpoints.folder, run.step)
        if run.group.rank == 0:
            checkpoints.accept()
        checkpoints.saved = run.step
        result = _train(run, limits, checkpoints, callbacks, progress)
    return result if target is None else target.judge(result)


def _check_objects(evaluation: Iterable[Any] | None, **functions: Any) -> None:
    """Raise for what would fail only after the training has begun."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            kind = type(function).__name__
            built = {"optimizer": "parameters", "scheduler": "optimizer"}.get(name)
            fix = f"; pass {name}=lambda {built}: {kind}({built}, ...)" if built else ""
            raise InvalidOption(f"{name} must be a function or None, found an object of {kind}{fix}")
    if evaluation is not None:
        require_batches("evaluation", evaluation, again=True)
        for batch in evaluation if isinstance(evaluation, list | tuple) else ():
            leading_size(batch)


def _train(
    run: Run, limits: Limits, checkpoints: Checkpoints, callbacks: Sequence[Callback], progress: bool | None
) -> Result:
    """Take steps until a limit is reached or a callback ends the run."""
    run.history.reserve(limits.steps or 0)
    bar = progress_bar(run.method.title, limits.steps, progress if run.group.rank == 0 else False)
    with closing(run.settings.source), bar as move_bar:
        run.stopped = limits.reached(run)
        while run.stopped is None:
            try:
                run.advance(limits.done(run), affordable=limits.affords_anchor(run))
            except NonFiniteError:
                checkpoints.save(run)  # of the last finite step, to resume with on_nonfinite="skip"
                raise
            if limits.evaluate_every and run.step % limits.evaluate_every == 0:
                run.evaluate()
            told = run.progress()
            move_bar(told)
            ended = [callback(told) for callback in callbacks]
            run.stopped = "callback" if run.group.any(any(ended)) else limits.reached(run)
            if run.step % checkpoints.every == 0:
                checkpoints.save(run)
        checkpoints.save(run)
        run.settle()
        return run.result()


def _sizes(source: Source, batch_size: int | None, period: int | str | None) -> tuple[int, int | str | None]:
    """Return both, checked; ceil(sqrt(n)) by default. A stream has no n: methods with a period ask for it then."""
    root = math.isqrt(len(source) - 1) + 1 if source.finite else None
    if batch_size is None and root is None:
        raise InvalidOption("batch_size must be given for a stream, which has no length, found None")
    size = root if batch_size is None else checks.positive_integer("batch_size", batch_size)
    assert size is not None
    if source.finite and size > len(source):
        raise InvalidOption(f"batch_size must be at most the number of samples, {len(source)}, found {size}")
    return size, root if period is None else checks.positive_integer_or_auto("period", period)
