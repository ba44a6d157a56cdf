"""A signal strikes anywhere in ``backward``: the step was made, or nothing has happened; never half of it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import stimulus_moo
from stimulus_moo import Estimator, MultiGradient, Recursive, Storm
from stimulus_moo._engine.interrupts import DeferredInterrupts
from tests.harness import cut, data, differing, everything, same, train, two_heads, two_losses

BATCHES = cut(data(24), 6)
LIBRARY = str(Path(stimulus_moo.__file__).parent)


@pytest.fixture(autouse=True)
def python_handles_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Striking:
    """Sends SIGINT before the n-th line of the library that runs in the context; n = 0 only counts."""

    def __init__(self, n: int) -> None:
        self.n, self.lines = n, 0

    def __enter__(self) -> Striking:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.n:
                signal.raise_signal(signal.SIGINT)
        return self._trace


def build(kind: str) -> MultiGradient:
    estimator: Estimator = Recursive(cut(data(24), 12), 3) if kind == "recursive" else Storm(0.2)
    mg = MultiGradient(two_heads(torch.nn.Dropout(0.2)), two_losses, estimator)
    torch.manual_seed(5)
    train(mg, BATCHES[:2])
    return mg


def modes() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["recursive", "storm"])
def test_ctrl_c_at_any_line_leaves_all_of_a_step_or_nothing(kind: str) -> None:
    whole = build(kind)
    with Striking(0) as counting:
        whole.backward(BATCHES[2])
    made = everything(whole)
    outcomes = set()
    for n in range(1, counting.lines + 1, 13):
        mg = build(kind)
        before, mode = everything(mg), modes()
        with pytest.raises(KeyboardInterrupt), Striking(n):
            mg.backward(BATCHES[2])
        after = everything(mg)
        outcomes.add(mg.t)
        assert modes() == mode, n
        assert differing(before if mg.t == 2 else made, after) == [], n
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert counting.lines > 200
    assert outcomes == {2, 3}


@pytest.mark.slow
def test_ctrl_c_in_rows_that_are_updated_in_place_never_touches_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that was being written cannot be trusted: then the rows are dropped and the estimator restarts."""
    monkeypatch.setattr("stimulus_moo._engine.store.STAGED_ENTRIES", 0)
    whole = build("storm")
    with Striking(0) as counting:
        whole.backward(BATCHES[2])
    made, outcomes = everything(whole), set()
    for n in range(1, counting.lines + 1, 19):
        mg = build("storm")
        before = everything(mg)
        with pytest.raises(KeyboardInterrupt), Striking(n):
            mg.backward(BATCHES[2])
        after = everything(mg)
        outcomes.add((mg.t, bool(mg.rows())))
        if mg.t == 2 and not bool(mg.rows()):
            del before["state"]["rows"], after["state"]["rows"]
        assert differing(made if mg.t == 3 else before, after) == [], n
        mg.backward(BATCHES[3])
    assert outcomes == {(2, True), (2, False), (3, True)}


def test_a_signal_waits_for_the_end_and_then_acts_as_it_would_have() -> None:
    seen: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(f"signal {number}"))
    try:
        with DeferredInterrupts():
            signal.raise_signal(signal.SIGTERM)
            seen.append("work")
        assert seen == ["work", f"signal {signal.SIGTERM}"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signals_nobody_handles_in_python_are_left_alone() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with DeferredInterrupts():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_may_train_too() -> None:
    paths: list[Any] = []

    def work() -> None:
        paths.append(train(build("storm"), BATCHES[2:]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert same(paths[0], train(build("storm"), BATCHES[2:]))
