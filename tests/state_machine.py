"""A state machine: random sequences of calls, each compared with the literal model of the contract.

``tests/test_state_machine.py`` runs a few, ``python -m reliability machine`` a hundred thousand.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import nn

import stimulus_moo as sm
from stimulus_moo._engine import store
from tests.contract import (
    ANCHORED,
    FEATURES,
    FIXED,
    HIDDEN,
    NAMES,
    PERIOD,
    PROBABILITY,
    SMOOTHING,
    STORM,
    TRACKING,
    Contract,
    Fault,
    Outcome,
    Setting,
)
from tests.harness import differing, everything

RATES = (1e-4, 0.02, 0.1)
TOLERANCE = 1e-8  # the model sums in another order; errors add up over some fifty steps


class Net(nn.Module):
    """The model of the contract in torch."""

    def __init__(self, x: dict[str, Any], dropout: float) -> None:
        super().__init__()
        for name, value in x.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(value)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(inputs @ self.w.T + self.b)  # type: ignore[operator]
        return self.dropout(hidden) @ self.v.T


class Failure(Exception):
    """What the user's losses raise."""


#: exceptions in the losses, by the kind of a fault
RAISED: dict[str, type[BaseException]] = {
    "exception": Failure,
    "interrupt": KeyboardInterrupt,
    "reentrance": sm.ConcurrentUse,
}


def _problem(setting: Setting) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """The start, the anchor's batches (ragged), and the batches, the last of which is NaN."""
    random = np.random.default_rng(setting.seed)
    outputs = setting.objectives
    x = {
        "w": random.normal(size=(HIDDEN, FEATURES)),
        "b": random.normal(size=HIDDEN),
        "v": random.normal(size=(outputs, HIDDEN)),
    }
    data = random.normal(size=(12, FEATURES)), random.normal(size=(12, outputs))
    spans = ((0, 5), (5, 9), (9, 12)), ((0, 2), (2, 5), (5, 9), (9, 12))
    anchor, batches = ([tuple(part[a:b] for part in data) for a, b in cuts] for cuts in spans)
    return x, anchor, [*batches, (np.full((2, FEATURES), np.nan), np.ones((2, outputs)))]


settings_of_a_run = st.builds(
    Setting,
    estimator=st.sampled_from(["mini-batch", "recursive", "storm", "tracking", "page"]),
    objectives=st.sampled_from([2, 2, 3]),
    weighting=st.sampled_from(["min-norm", "smoothed", "fixed"]),
    engine=st.sampled_from(["rowwise", "batched"]),
    staged=st.booleans(),
    skips=st.booleans(),
    momentum=st.sampled_from([0.0, 0.5]),
    dropout=st.sampled_from([0.0, 0.25]),
    seed=st.integers(0, 7),
    reweigh=st.sampled_from([1, 2, 2]),
)
faults = st.one_of(
    st.none(),
    st.none(),
    st.builds(Fault, at=st.integers(1, 3), kind=st.sampled_from(["nan", "exception", "interrupt", "reentrance"])),
)
batch_numbers = st.sampled_from([0, 1, 2, 3, 0, 1, 2, 3, 4])  # the last one is NaN


class Machine(RuleBasedStateMachine):
    """Calls of MultiGradient, Safeguard and an optimizer in any order."""

    counts: ClassVar[Counter[str]] = Counter()  # how often each rule was run
    raised: ClassVar[Counter[str]] = Counter()  # how often it raised what the contract says
    last: ClassVar[str] = ""  # the rule that runs, or ran last

    @initialize(setting=settings_of_a_run)
    def start(self, setting: Setting) -> None:
        self._count("start")
        if setting.objectives == 3 and setting.weighting != "fixed":
            setting = replace(setting, weighting="fixed")
        if setting.reweigh != 1 and setting.estimator in ANCHORED:
            setting = replace(setting, reweigh="anchor")
        self._threshold, store.STAGED_ENTRIES = store.STAGED_ENTRIES, (1 << 16) if setting.staged else 0
        self._random = torch.get_rng_state()
        torch.manual_seed(setting.seed)
        self.setting = setting
        x, anchor, self.batches = _problem(setting)
        self.contract = Contract(setting, x, anchor)
        self.guard: sm.Safeguard | None = None
        self.proposal: tuple[sm.Proposal, Outcome, Any] | None = None  # with what it leads to, and the random state
        self.closed: sm.Proposal | None = None  # a proposal that was committed or discarded
        self.saves: list[tuple[Any, Contract]] = []
        self.fault: Fault | None = None
        self.evaluations = 0
        self.lr = RATES[1]
        self._build(seed=setting.seed)

    def teardown(self) -> None:
        if hasattr(self, "setting"):
            store.STAGED_ENTRIES = self._threshold
            torch.set_rng_state(self._random)

    # Steps

    @rule(number=batch_numbers, fault=faults)
    def backward(self, number: int, fault: Fault | None) -> None:
        self._count("backward")
        self._forget_proposal(number, fault)
        batch = self.batches[number]
        found = self.contract.evaluate(batch, fault)
        strict = self._quiet() and not (self.guard is not None and self._guarded_differently(found))
        before = self._visible(), self.mg.t, self.mg.samples
        step, error = self._call(lambda: self.mg.backward(_tensors(batch)), fault)
        if not (strict and self._quiet()):
            self._check_weakly(before, step, error)
            return
        if found.kind == "ready":
            assert error is None, error
            self.contract.commit(found)
            self._check_step(step, found)
        elif found.kind == "nan" and self.contract.skips():
            assert error is None, error
            assert step.skipped
            self.contract.undo(found)
            self.contract.skip()
        else:
            self._check_refused(error, found, before[0])
            self.contract.undo(found)

    @rule(numbers=st.lists(st.integers(0, 3), min_size=1, max_size=3))
    def usual_loop(self, numbers: list[int]) -> None:
        for number in numbers:
            self.backward(number, None)
            self.is_as_the_contract_says()
            self.optimizer_step()

    @precondition(lambda self: self.guard is None)
    @rule(number=batch_numbers, fault=faults, then=st.sampled_from(["", "commit", "discard"]))
    def propose(self, number: int, fault: Fault | None, then: str) -> None:
        self._count("propose")
        self._forget_proposal(number, fault)
        batch = self.batches[number]
        found, before, random = self.contract.evaluate(batch, fault), self._visible(), self.contract.random
        proposal, error = self._call(lambda: self.mg.propose(_tensors(batch)), fault)
        if found.kind == "ready":
            assert error is None, error
            self.contract.open(found)
        elif found.kind == "nan":
            assert isinstance(proposal.error, sm.NonFiniteError)
            self.contract.undo(found)
        else:
            self._check_refused(error, found, before)
            self.contract.undo(found)
            return
        self.proposal = proposal, found, random
        if then:
            self.is_as_the_contract_says()
            self.commit() if then == "commit" else self.discard(through_object=True)

    @precondition(lambda self: self.proposal is not None)
    @rule()
    def commit(self) -> None:
        self._count("commit")
        assert self.proposal is not None
        proposal, found, _ = self.proposal
        self.proposal, self.closed = None, proposal
        step, error = self._call(proposal.commit)
        if found.kind == "ready":
            assert error is None, error
            self.contract.commit(found)
            self._check_step(step, found)
        elif self.contract.skips():
            assert error is None, error
            assert step.skipped
            self.contract.skip()
        else:
            assert isinstance(error, sm.NonFiniteError), error
            self.raised["commit"] += 1

    @precondition(lambda self: self.proposal is not None)
    @rule(through_object=st.booleans())
    def discard(self, through_object: bool) -> None:
        self._count("discard")
        assert self.proposal is not None
        proposal = self.proposal[0]
        (self.mg.discard if through_object else proposal.discard)()
        self._undo_proposal()

    @precondition(lambda self: self.closed is not None)
    @rule(commits=st.booleans())
    def use_a_closed_proposal(self, commits: bool) -> None:
        """A second commit is refused; a second discard does nothing."""
        self._count("use a closed proposal")
        assert self.closed is not None
        if commits:
            _, error = self._call(self.closed.commit)
            assert isinstance(error, sm.InvalidOption), error
            self.raised["use a closed proposal"] += 1
        else:
            self.closed.discard()

    @precondition(lambda self: self.proposal is None)
    @rule()
    def optimizer_step(self) -> None:
        self._count("optimizer step")
        quiet = self._quiet()
        self.optimizer.step()
        if quiet:
            self.contract.step(self.lr)
        else:
            self._adopt_actual()

    @rule(lr=st.sampled_from(RATES))
    def learning_rate(self, lr: float) -> None:
        self._count("learning rate")
        self.lr = self.optimizer.param_groups[0]["lr"] = lr

    # The model

    @precondition(lambda self: self.proposal is None)
    @rule(name=st.sampled_from(NAMES[:2]))
    def freeze_or_unfreeze(self, name: str) -> None:
        self._count("freeze or unfreeze")
        self.contract.trainable[name] = not self.contract.trainable[name]
        getattr(self.net, name).requires_grad_(self.contract.trainable[name])

    @precondition(lambda self: self.setting.dropout)
    @rule()
    def train_or_eval(self) -> None:
        self._count("train or eval")
        self.contract.training = not self.contract.training
        self.net.train(self.contract.training)

    @precondition(lambda self: self.proposal is None)
    @rule()
    def draw_a_random_number(self) -> None:
        self._count("draw a random number")
        assert self.contract.draw() == float(torch.rand(()))

    # The object

    @rule()
    def reset(self) -> None:
        self._count("reset")
        self._undo_proposal()
        self.mg.reset()
        self.contract.reset()

    @precondition(lambda self: len(self.saves) < 4)
    @rule()
    def save(self) -> None:
        self._count("save")
        state = copy.deepcopy((self.mg.state_dict(), self.net.state_dict(), self.optimizer.state_dict()))
        contract = self.contract.copy()
        if self.proposal is not None:  # what is saved is the state before it
            contract.random = self.proposal[2]
            contract.rows = None if self.proposal[1].lost else contract.rows
        self.saves.append((state, contract))

    @precondition(lambda self: self.saves)
    @rule(number=st.integers(0, 3), whole=st.booleans())
    def load(self, number: int, whole: bool) -> None:
        self._load("load", number, whole)

    @precondition(lambda self: self.saves)
    @rule(number=st.integers(0, 3), whole=st.booleans())
    def load_into_fresh_objects(self, number: int, whole: bool) -> None:
        self._undo_proposal(discard=True)
        self._detach()
        self._build(seed=99)
        self._load("load into fresh objects", number, whole, fresh=True)

    @precondition(lambda self: self.proposal is None)
    @rule()
    def guard_on_or_off(self) -> None:
        self._count("guard on or off")
        if self.guard is not None:
            self._detach()
        elif self.contract.current == self.contract.adopted:
            self.guard = sm.Safeguard(self.optimizer, self.mg)

    # Rules to come are added here. ``metric=``: ``Contract._weigh`` divides by it.

    @invariant()
    def is_as_the_contract_says(self) -> None:
        contract, mg = self.contract, self.mg
        for name, parameter in self.net.named_parameters():
            _close(parameter.detach(), contract.x[name], name)
            expected = contract.grad[name]
            assert (parameter.grad is None) == (expected is None), f"{name}.grad"
            if expected is not None:
                _close(parameter.grad, expected, f"{name}.grad")
        found = mg.t, mg.samples, mg.gradients, mg.passes, mg.skipped
        assert found == (contract.t, contract.samples, contract.gradients, contract.passes, contract.skipped)
        assert (mg.weights is None) == (contract.weights is None)
        if contract.weights is not None:
            _close(mg.weights, contract.weights, "weights")
            _close(mg.sq_norm, contract.sq_norm, "sq_norm")
        assert torch.equal(torch.get_rng_state(), contract.random), "the random state"
        if self.proposal is None or self.setting.staged or contract.one_row:
            rows = mg.rows()
            assert len(rows) == len(contract.rows or [])
            for row, other in zip(rows, contract.rows or [], strict=True):
                assert row.keys() == other.keys()
                for name in row:
                    _close(row[name], other[name], f"row {name}")

    # Helpers

    def _count(self, name: str) -> None:
        Machine.last = name
        Machine.counts[name] += 1

    def _losses(self, net: Any, batch: Any) -> Any:
        self.evaluations += 1
        spoilt = self.fault is not None and self.fault.at == self.evaluations
        if spoilt and self.fault is not None and self.fault.kind != "nan":
            if self.fault.kind == "reentrance":
                self.mg.backward(batch)
            raise RAISED[self.fault.kind]
        values = (net(batch[0]) - batch[1]).square().mean(0)
        return values * torch.nan if spoilt else values

    def _call(self, call: Any, fault: Fault | None = None) -> tuple[Any, BaseException | None]:
        """The result of a call, or the exception it raised."""
        self.fault, self.evaluations = fault, 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", sm.StimulusWarning)
                return call(), None
        except (sm.StimulusError, Failure, KeyboardInterrupt) as error:
            return None, error
        finally:
            self.fault = None

    def _check_step(self, step: Any, found: Outcome) -> None:
        assert found.rule is not None
        assert (step.anchored, step.reweighed, step.skipped) == (found.rule.anchor, found.solved, False)
        _close(step.losses, found.losses, "losses")
        _close(step.weights, self.contract.weights, "weights of the step")

    def _check_refused(self, error: BaseException | None, found: Outcome, before: Any) -> None:
        expected = {**RAISED, "changed": sm.ModelChanged, "nan": sm.NonFiniteError}[found.kind]
        assert isinstance(error, expected), (found.kind, error)
        Machine.raised[Machine.last] += 1
        self._check_unchanged(before, rows=not found.lost and not found.adopts)

    def _check_unchanged(self, before: Any, *, rows: bool) -> None:
        changed = differing(before, self._visible())
        assert set(changed) <= (set() if rows else {"rows", "previous"}), f"{changed} changed although the call failed"

    def _visible(self) -> dict[str, Any]:
        """Everything that a call may change; rows and the point apart, since they may be dropped."""
        found = everything(self.mg)
        state = found.pop("state")
        return {
            **found,
            **{name: state.pop(name) for name in ("rows", "previous", "layout")},
            "state": state,
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
        } | {"layout": None}

    def _quiet(self) -> bool:
        """Whether the guard, if there is one, has not acted, so that everything is as without it."""
        guard = self.guard
        return guard is None or (guard.suspended, guard.alone, guard.taken_back, guard.lr_scale) == (0, 0, 0, 1.0)

    def _guarded_differently(self, found: Outcome) -> bool:
        """Whether the guard may act on this very call: NaN, or one point where it could look back."""
        restarts = found.rule is not None and not found.rule.anchor and not found.rule.before
        return found.kind == "nan" or (restarts and self.contract.previous is not None)

    def _check_weakly(self, before: Any, step: Any, error: BaseException | None) -> None:
        """What holds although the guard may have acted."""
        (state, t, samples), mg = before, self.mg
        if error is not None:
            Machine.raised[Machine.last] += 1
            self._check_unchanged(state, rows=False)
        else:
            assert mg.t == t + (not step.skipped)
            assert mg.samples >= samples
            for name, parameter in self.net.named_parameters():
                assert bool(torch.isfinite(parameter).all())
                assert (parameter.grad is None) == (step.skipped or name not in mg.objective.names)
                assert parameter.grad is None or bool(torch.isfinite(parameter.grad).all())
        self._adopt_actual()

    def _adopt_actual(self) -> None:
        """Continue from where the guard has led."""
        contract, mg = self.contract, self.mg
        for name, parameter in self.net.named_parameters():
            contract.x[name] = parameter.detach().numpy().copy()
            contract.grad[name] = None if parameter.grad is None else parameter.grad.numpy().copy()
            buffer = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            contract.buffers.pop(name, None)
            if buffer is not None:
                contract.buffers[name] = buffer.numpy().copy()
        contract.adopted = tuple(mg.objective.names)
        contract.t, contract.samples, contract.gradients, contract.passes = mg.t, mg.samples, mg.gradients, mg.passes
        contract.skipped, contract.in_a_row = mg.skipped, mg.policy.in_a_row
        contract.weights, contract.sq_norm = None if mg.weights is None else mg.weights.numpy().copy(), mg.sq_norm
        state = mg.state_dict()
        contract.rows = [_arrays(row) for row in state["rows"]] or None
        contract.previous = None if state["previous"] is None else _arrays(state["previous"])
        contract.coin = state["estimator"].get("generator", contract.coin)
        smoothed = state["weighting"].get("previous")
        contract.smoothed = None if smoothed is None else smoothed.numpy().copy()
        contract.random = torch.get_rng_state()

    def _forget_proposal(self, number: int, fault: Fault | None) -> None:
        """A new call discards an open proposal, unless it is refused before that."""
        if self.contract.evaluate(self.batches[number], fault).kind != "changed":
            self._undo_proposal(discard=True)

    def _undo_proposal(self, *, discard: bool = False) -> None:
        if self.proposal is not None:
            proposal, found, random = self.proposal
            if discard:
                proposal.discard()
            if found.kind == "ready":
                self.contract.undo(Outcome("", lost=found.lost))
                self.contract.random = random
            self.proposal, self.closed = None, proposal

    def _load(self, name: str, number: int, whole: bool, *, fresh: bool = False) -> None:
        self._count(name)
        state, saved = self.saves[number % len(self.saves)]
        before = self._visible()
        _, error = self._call(lambda: self.mg.load_state_dict(state[0]))
        if not self.contract.fits(saved):
            assert isinstance(error, sm.StateMismatch), error
            Machine.raised[name] += 1
            self._check_unchanged(before, rows=True)
            if fresh:
                self.contract.reset()
                for counter in ("samples", "gradients", "passes", "skipped", "in_a_row"):
                    setattr(self.contract, counter, 0)
                self.contract.smoothed = None
                self.contract.coin = torch.Generator().manual_seed(99).get_state()
            return
        assert error is None, error
        self._undo_proposal()
        if whole:
            self.net.load_state_dict(state[1])
            self.optimizer.load_state_dict(copy.deepcopy(state[2]))
            self.optimizer.param_groups[0]["lr"] = self.lr
            torch.set_rng_state(saved.random)
        self.contract.load(saved, whole=whole)

    def _detach(self) -> None:
        if self.guard is not None:
            self.guard.detach()
            self.guard = None

    def _build(self, seed: int) -> None:
        """New objects on the current values of the contract."""
        setting, contract = self.setting, self.contract
        net = Net(contract.x, setting.dropout)
        net.train(contract.training)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(contract.trainable[name])
            grad = contract.grad[name]
            parameter.grad = None if grad is None else torch.tensor(grad)
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=self.lr, momentum=setting.momentum)
        for name, buffer in contract.buffers.items():
            self.optimizer.state[getattr(net, name)]["momentum_buffer"] = torch.tensor(buffer)
        anchor = [_tensors(batch) for batch in contract.anchor]
        estimators = {
            "mini-batch": sm.MiniBatch,
            "recursive": lambda: sm.Recursive(anchor, PERIOD),
            "page": lambda: sm.Page(anchor, PROBABILITY, seed=seed),
            "storm": lambda: sm.Storm(STORM),
            "tracking": lambda: sm.Tracking(TRACKING),
        }
        weightings = {
            "min-norm": sm.MinNorm,
            "smoothed": lambda: sm.Smoothed(sm.MinNorm(), SMOOTHING),
            "fixed": lambda: sm.Fixed(FIXED[: setting.objectives]),
        }
        self.mg = sm.MultiGradient(
            net,
            self._losses,
            estimators[setting.estimator](),
            weightings[setting.weighting](),
            engine=setting.engine,
            reweigh=setting.reweigh,
            on_nonfinite="skip" if setting.skips else "raise",
        )
        self.closed = None


def _tensors(batch: Any) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(part) for part in batch)


def _arrays(row: Any) -> dict[str, Any]:
    return {name: part.numpy().copy() for name, part in row.items()}


def _close(found: Any, expected: Any, what: str) -> None:
    found = np.asarray(found, dtype=float)
    assert np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE), f"{what}: found {found}, expected {expected}"
