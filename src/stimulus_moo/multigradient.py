"""Entry point for training loops: batch -> objective -> estimator -> weighting -> ``p.grad``."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from stimulus_moo._engine import saved_state
from stimulus_moo._engine.counts import Counts
from stimulus_moo._engine.differentiation import ENGINES, Engine
from stimulus_moo._engine.exclusive import Exclusive, evaluating, exclusive
from stimulus_moo._engine.inspection import Inspection
from stimulus_moo._engine.loop_check import LoopCheck
from stimulus_moo._engine.nonfinite import SkipPolicy
from stimulus_moo._engine.objective import Losses, Objective
from stimulus_moo._engine.observation import Observation
from stimulus_moo._engine.proposal import Proposal
from stimulus_moo._engine.reweighing import GRAMIANS, find_rule
from stimulus_moo._engine.step import Step
from stimulus_moo._engine.storage import Storage
from stimulus_moo._engine.store import Store
from stimulus_moo._engine.warnings import WarnOnce, batch_norm_message, due_for_check, long_step_message
from stimulus_moo.distributed import find_group, make_reducer, unwrapped
from stimulus_moo.errors import InvalidOption, ModelChanged
from stimulus_moo.estimators import Estimator, Update
from stimulus_moo.estimators.base import check_estimator
from stimulus_moo.options import choice, flag, natural_number
from stimulus_moo.state import Stateful
from stimulus_moo.weightings.base import GramianToWeights, as_weighting
from stimulus_moo.weightings.metric import Metric, Scalings
from stimulus_moo.weightings.min_norm import MinNorm
from stimulus_moo.weightings.names import find_weighting


class MultiGradient(Inspection):
    """Multi-objective gradients for an existing training loop.

    ``backward(batch)`` replaces ``loss.backward()``: it overwrites every ``p.grad`` with that parameter's part of
    d_t = sum_s lambda_t^s u_t^s, so ``zero_grad`` is not needed and any ``torch.optim`` optimizer, schedule or clipping
    works on it. Parameters that no loss reaches, or that are frozen, have ``p.grad`` None.

    Any exception inside ``backward`` leaves parameters, gradients, buffers, random state, estimator and counters as
    they were; S rows above the staging threshold that were being written are dropped, and the estimator restarts. A
    Ctrl-C while the finished step is being written takes effect after it: that step counts as made.

    Args:
        model: a ``torch.nn.Module``, also one from ``torch.compile``; names in states are those of the original. One
            that FSDP2 (``fully_shard``) has split is evaluated by all processes of its mesh together.
        losses: ``losses(model, batch)`` returns the S mean losses, as a tuple of 0-d tensors, a 1-D tensor, or a dict,
            whose names then appear in ``Step``, histories, logs and errors.
        estimator: how gradients are estimated, e.g. ``Recursive(anchor, period)``.
        weighting: any callable from the S x S Gramian of the rows to S weights, also TorchJD's, or a name of
            ``WEIGHTINGS`` such as ``"balanced"`` or ``"upgrad"``; default ``MinNorm()``.
        shared: the parameters whose gradients decide the weights (the trunk of a multi-head model); default all.
        micro_batch: evaluate at most so many samples at once; same result, memory does not grow with the batch.
        batch_size: a function from a batch to its size, where that is not the leading dimension of its first tensor.
        counts: a function from a batch to S numbers, how many samples each mean loss is over (missing labels, means
            over tokens); default the batch's size for all. Pieces, anchors, processes and evaluations are weighted by
            them. A loss with count 0 is ignored; without any count in a step, its row gets nothing new, its entry in
            ``Step.losses`` is NaN and, if its row is zero, its weight 0. Kept weights read an anchor twice, to count.
        engine: how rows are differentiated; results are equal up to rounding. ``"rowwise"``: one backward pass per
            objective, works with everything. ``"batched"``: all rows in one vectorised pass, faster for small models
            without convolutions. ``"compiled"``: both points and all rows in one function by ``torch.compile``, fastest
            for small models; compiling takes several seconds per shape of a batch. ``"auto"``: by the model's size and
            layers. An engine that does not support a model falls back to rowwise.
        process_group: the processes of ``torch.distributed`` that make every step together, each with its part of the
            batch and of the anchor; default all of them after ``init_process_group``, else this process on its own.
        shard: split U over these processes, which divides its memory by their number.
        rows_dtype: the type the rows U are stored in; default that of the parameters, at least float32.
            ``torch.bfloat16`` halves the memory; sums are then rounded stochastically, so that they are unbiased.
        rows_device: where the rows are stored; default beside the parameters. ``"cpu"`` frees an accelerator's memory
            at the cost of moving gradients.
        reweigh: when weights are solved for. 1: at every step, as in the papers. R: at every R-th step. ``"anchor"``:
            at anchors, the choice for ``Recursive`` and ``Page``. ``"auto"``: when due, see ``WhenRising``. Between two
            solves lambda is kept, and a step differentiates the one loss lambda . F: one pass per sample and one row,
            whatever S is. ``Fixed`` weights never need rows.
        metric: None, the Euclidean, or an Adam-type optimizer: the weighting gets U D^-1 U^T, where D is what the
            optimizer divides by, so that its step decreases every objective. Or a function from parameters to positive
            tensors D. See ``Metric``. ``p.grad`` and ``sq_norm`` stay those of d_t.
        gramian: ``"exact"``, or ``"sketch"``: weights are solved for from a random projection of the rows to 32,771
            numbers each, and d_t takes one more pass, so that the S x P matrix of rows never exists.
        on_nonfinite: what happens where a loss, a gradient or the direction is NaN or infinite. ``"raise"``:
            ``NonFiniteError``. ``"skip"``: the call is logged, counted in ``skipped`` and has no effect but that every
            ``p.grad`` is None, so that the optimizer changes nothing. After 10 consecutive skips the next one raises.
        check: look for mistakes in the first steps, see ``check``; each is told by one ``StimulusWarning``.

    Raises:
        InvalidOption: an argument cannot work; the message says which and why.

    >>> import torch
    >>> from stimulus_moo import MultiGradient, Recursive
    >>> model, x, y = torch.nn.Linear(3, 2), torch.randn(64, 3), torch.randn(64, 2)
    >>> def losses(model, batch):
    ...     return (model(batch[0]) - batch[1]).square().mean(0)
    >>> mg, optimizer = MultiGradient(model, losses, Recursive([(x, y)], 8)), torch.optim.SGD(model.parameters(), 0.1)
    >>> for batch in zip(x.split(8), y.split(8)):
    ...     step = mg.backward(batch)
    ...     optimizer.step()
    >>> mg.samples, mg.gradients, mg.passes
    (120, 176, 352)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        losses: Losses,
        estimator: Estimator,
        weighting: GramianToWeights | str | None = None,
        *,
        shared: Iterable[Tensor] | None = None,
        micro_batch: int | None = None,
        batch_size: Callable[[Any], int] | None = None,
        counts: Counts | None = None,
        engine: str = "auto",
        process_group: Any = None,
        shard: bool = False,
        reweigh: int | str = 1,
        metric: Optimizer | Scalings | None = None,
        gramian: str = "exact",
        rows_dtype: torch.dtype | None = None,
        rows_device: torch.device | str | None = None,
        on_nonfinite: str = "raise",
        check: bool = True,
    ) -> None:
        self.exclusive = Exclusive()
        self._group, self._shard = find_group(process_group, shard), shard
        check_estimator(estimator)
        self.estimator = estimator
        self.weighting = as_weighting(MinNorm() if weighting is None else find_weighting(weighting))
        self.objective = Objective(
            unwrapped(model), losses, shared=shared, micro_batch=micro_batch, batch_size=batch_size, counts=counts
        )
        self.reweigh, self.solving_form = find_rule(reweigh, choice("gramian", gramian, GRAMIANS), estimator)
        self._metric = None if metric is None else Metric(metric)
        self._storage = Storage.checked(rows_dtype, rows_device)
        self.store = self._new_store(Engine(choice("engine", engine, ENGINES), model, self.objective.placement))
        #: what a discarded proposal restores
        parts = (estimator, self.weighting, self.reweigh)
        self.stateful_parts: list[Stateful] = [part for part in parts if part is not None and part.has_state()]
        self.t = 0  # calls of backward since the estimator's start
        self.samples = 0  # samples drawn
        self.gradients = 0  # per-sample evaluations of the S objectives with derivatives (IFO calls)
        self.passes = 0  # per-sample derivatives of one scalar: S where all rows are computed, else 1
        self.weights: Tensor | None = None  # lambda of the last step; None before the first
        self.sq_norm: float | None = None  # ||d||^2 of the last step
        self.observation: Observation | None = None  # what it saw; None unless ``watch`` was called
        self._watched = False
        self.policy = SkipPolicy(on_nonfinite)
        self.warn = WarnOnce()  # what was warned about
        self.proposal: Proposal | None = None  # the last one
        self._supervisor: Any = None
        self._loop_check = LoopCheck() if flag("check", check) else None

    def backward(self, batch: Any = None) -> Step:
        """Estimate, weigh, and write d_t into every ``p.grad``; return the record of this step.

        Args:
            batch: any nest of tensors (tuple, dict, dataclass). On an anchor step it is not used and not counted.

        Raises:
            InvalidBatch, InvalidLosses, InvalidWeights: an input does not fit.
            NonFiniteError: a loss, a gradient or the direction is NaN or infinite, and is not to be skipped.
            ModelChanged: parameters were added, removed, frozen, cast or moved since the last call.
            ConcurrentUse: another thread is using this object, or ``losses`` called it; that step is not disturbed.
            DistributedError: the processes could not make this step together; what one raises, all raise.
        """
        watch = self._loop_check
        if watch is not None and watch.due:
            self.exclusive.evaluate(lambda: watch.before(self, batch))
        if self._supervisor is None:
            step = self._step(batch)
        else:
            step = cast(Step, self.exclusive.use(lambda: self._supervisor.backward(batch)))
        if watch is not None:
            watch.after(self, step)
        return step

    @evaluating
    def _step(self, batch: Any) -> Step:
        proposal = self._new_proposal()
        try:
            proposal.evaluate(batch)
            step = proposal.finish()
        except BaseException:
            proposal.undo()
            raise
        if proposal.observes and (message := long_step_message(proposal.observation)):
            self.warn("step", message)
        return step

    @evaluating
    def propose(self, batch: Any = None, *, fresh: bool = False, look_back: bool = False) -> Proposal:
        """Evaluate a step that is not final until it is committed; ``backward`` is both at once.

        An earlier proposal that is still open is discarded.

        Args:
            batch: as for ``backward``.
            fresh: where the estimator would add the batch's difference to its rows, use the batch's own gradient.
            look_back: evaluate the batch at x_{t-1} too, if the estimator keeps that point.

        Raises:
            As ``backward``, except that NaN or infinity is reported in ``Proposal.error``.
        """
        proposal = self._new_proposal()
        proposal.evaluate(batch, fresh=fresh, look_back=look_back)
        return proposal

    @evaluating
    def compare(self, batch: Any) -> Proposal:
        """Evaluate a batch here and at x_{t-1} without changing the rows; the proposal is for looking at only."""
        proposal = self._new_proposal()
        proposal.evaluate(batch, update=Update(keep=float(self.store.rows is not None), now=0.0, look_back=True))
        return proposal

    @exclusive
    def discard(self) -> None:
        """Discard the open proposal, if there is one."""
        if self.proposal is not None:
            self.proposal.discard()

    def attach(self, supervisor: Any) -> None:
        """Let ``backward(batch)`` of a supervisor such as ``Safeguard`` drive the steps until ``detach``."""
        if self._supervisor is not None:
            raise InvalidOption(f"multigradient already has a {type(self._supervisor).__name__}; call its detach first")
        self._supervisor = supervisor

    def detach(self) -> None:
        """Drive the steps without a supervisor again."""
        self._supervisor = None

    def watch(self) -> None:
        """Keep an ``Observation`` of every step in ``observation``. It costs no evaluations and changes nothing.

        >>> import torch
        >>> from stimulus_moo import MultiGradient, Recursive
        >>> model, x = torch.nn.Linear(2, 2), torch.randn(6, 2)
        >>> mg = MultiGradient(model, lambda m, x: m(x).square().mean(0), Recursive([x], period=10))
        >>> mg.watch()
        >>> _ = mg.backward(x)
        >>> mg.observation.anchored
        True
        """
        self._watched = True

    @property
    def watched(self) -> bool:
        """Whether every step is observed: after ``watch``, and while a supervisor is attached."""
        return self._watched or self._supervisor is not None

    def expect_steps(self, steps: int) -> None:
        """Say how many steps will be made at least: in a long run of a small model, steps on one loss are compiled."""
        self.store.engine.expected_steps = natural_number("steps", steps)

    @exclusive
    def reset(self) -> None:
        """Restart the estimator from the model as it is now; counters and weighting continue."""
        self.discard()
        self.adopt()
        self.t = 0
        self.weights = self.sq_norm = None

    @exclusive
    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides the future, as copies that load with ``torch.load(weights_only=True)``.

        Options given at construction, such as a period or beta, are not part of it; those of the object apply.
        """
        return saved_state.save(self)

    def check_state(self, state: Any, path: str = "MultiGradient") -> None:
        """Raise StateMismatch if ``state`` does not fit this object, naming the entry and the parameter."""
        saved_state.check_for_current_model(self, state, path)

    @exclusive
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state, also into a fresh object; the model's parameters are not part of it.

        Raises:
            StateMismatch: it belongs to another model, estimator or weighting; nothing has changed then.
        """
        self.check_state(state)
        self.discard()
        if not self.objective.unchanged():
            self.adopt()
        saved_state.load(self, state)

    def _check_model(self) -> None:
        if not self.objective.unchanged():
            if self.t and self.estimator.remembers:
                raise ModelChanged(
                    "the model's trainable parameters are not those of the last step (added, removed, frozen, cast or "
                    "moved); call reset() to restart the estimator from the model as it is now"
                )
            self.adopt()
        concerned = self.objective.has_batch_norm and self.estimator.finite_sum
        if concerned and "BatchNorm" not in self.warn.given and (layers := self.objective.batch_norms()):
            self.warn("BatchNorm", batch_norm_message(layers))

    def _new_proposal(self) -> Proposal:
        self._check_model()
        if self.proposal is not None:
            self.proposal.undo()
        self.proposal = Proposal(self, observes=self._observes())
        return self.proposal

    def _observes(self) -> bool:
        """Return whether the next step is observed: always on request, else now and then for too long a step."""
        if self.watched or self.estimator.observes:
            return True
        if self.store.reducer is not None or "step" in self.warn.given:  # several processes send no messages for it
            return False
        return due_for_check(self.t)

    def adopt(self) -> None:
        """Continue with the parameters that are trainable now, without rows; called by the library."""
        self.objective.adopt()
        self.store = self._new_store(self.store.engine)

    def _new_store(self, engine: Engine) -> Store:
        placement, halves = self.objective.placement, self.estimator.prepares
        reducer = make_reducer(self._group, self._shard, self._storage, placement, halves=halves)
        one_row = self.reweigh is not None or not self.weighting.needs_rows
        return Store(self.objective, engine, self._storage, reducer, one_row=one_row, metric=self._metric)
