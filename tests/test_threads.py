"""Threads: each with its own MultiGradient is as one after the other; one object for two at once is refused."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from stimulus_moo import ConcurrentUse, Estimator, MiniBatch, MultiGradient, Recursive, Safeguard, Storm, Tracking
from stimulus_moo._engine.interrupts import DeferredInterrupts
from tests.harness import cut, data, differing, everything, same, train, two_heads, two_losses

BATCHES = cut(data(24), 6)

ESTIMATORS: dict[str, Callable[[], Estimator]] = {
    "mini-batch": MiniBatch,
    "recursive": lambda: Recursive(cut(data(24), 12), 3),
    "storm": lambda: Storm(0.2),
    "tracking": lambda: Tracking(0.3),
}

#: every public method that reads or changes the state of a step
CALLS: dict[str, Callable[[MultiGradient], Any]] = {
    "backward": lambda mg: mg.backward(BATCHES[0]),
    "propose": lambda mg: mg.propose(BATCHES[0]),
    "compare": lambda mg: mg.compare(BATCHES[0]),
    "discard": lambda mg: mg.discard(),
    "reset": lambda mg: mg.reset(),
    "rows": lambda mg: mg.rows(),
    "state_dict": lambda mg: mg.state_dict(),
    "load_state_dict": lambda mg: mg.load_state_dict({}),
    "memory_estimate": lambda mg: mg.memory_estimate(BATCHES[0]),
}


def build(kind: str, losses: Any = two_losses, engine: str = "rowwise", seed: int = 0) -> MultiGradient:
    return MultiGradient(two_heads(seed=seed), losses, ESTIMATORS[kind](), engine=engine)


def in_thread(work: Callable[[], Any]) -> Any:
    """The result of ``work`` in a thread of its own, or the exception it raised."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return results[0]


@pytest.mark.parametrize("engine", ["rowwise", "batched"])
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_two_objects_in_two_threads_are_as_one_after_the_other(kind: str, engine: str) -> None:
    batches = BATCHES * 5
    expected = [train(build(kind, engine=engine, seed=seed), batches) for seed in (0, 1)]
    objects = [build(kind, engine=engine, seed=seed) for seed in (0, 1)]
    start, paths = threading.Barrier(2), {}

    def work(i: int) -> None:
        start.wait(60)
        paths[i] = train(objects[i], batches)

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert same([paths[0], paths[1]], expected)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["recursive", "tracking"])
def test_a_second_thread_is_refused_and_does_not_disturb_the_step(kind: str, call: str) -> None:
    found: list[Any] = []

    def losses(model: Any, batch: Any) -> Any:
        if intrude and not found:
            found.append(in_thread(lambda: CALLS[call](mg)))
        return two_losses(model, batch)

    intrude = False
    mg, alone = build(kind, losses), build(kind)
    train(mg, BATCHES[:2])
    train(alone, BATCHES[:2])
    intrude = True
    expected, path = train(alone, BATCHES[2:]), train(mg, BATCHES[2:])
    assert isinstance(found[0], ConcurrentUse)
    assert "another thread was using it" in str(found[0])
    assert same(path, expected)
    assert differing(everything(mg), everything(alone)) == []


@pytest.mark.parametrize("call", CALLS)
def test_losses_cannot_call_their_own_object(call: str) -> None:
    mg = build("storm", lambda model, batch: two_losses(model, batch) if quiet else CALLS[call](mg))
    quiet = True
    train(mg, BATCHES[:2])
    before = everything(mg)
    quiet = False
    with pytest.raises(ConcurrentUse, match="inside its own evaluation"):
        mg.backward(BATCHES[2])
    assert differing(before, everything(mg)) == []
    quiet = True
    assert mg.backward(BATCHES[2]).skipped is False


def test_weightings_and_anchors_cannot_call_their_object() -> None:
    def weighting(gramian: Any) -> Any:
        mg.backward(BATCHES[0])

    def anchor() -> Any:
        mg.reset()
        yield from BATCHES

    class Anchor:
        __iter__ = staticmethod(anchor)

    for estimator, weights in ((MiniBatch(), weighting), (Recursive(Anchor(), 3), None)):
        mg = MultiGradient(two_heads(), two_losses, estimator, weights)
        before = everything(mg)
        with pytest.raises(ConcurrentUse):
            mg.backward(BATCHES[0])
        assert differing(before, everything(mg)) == []


def test_a_proposal_is_refused_to_a_second_thread_too() -> None:
    found: list[Any] = []

    def losses(model: Any, batch: Any) -> Any:
        if proposals:
            found.extend(in_thread(call) for call in (proposals[0].weigh, proposals[0].commit, proposals[0].discard))
        return two_losses(model, batch)

    proposals: list[Any] = []
    mg = build("tracking", losses)
    proposals.append(mg.propose(BATCHES[0]))
    mg.propose(BATCHES[1]).commit()
    assert [type(error) for error in found] == [ConcurrentUse] * 3
    assert (mg.t, mg.samples) == (1, 6)


def test_with_a_safeguard_the_same_holds() -> None:
    found: list[Any] = []

    def losses(model: Any, batch: Any) -> Any:
        found.append(in_thread(lambda: mg.backward(batch)))
        return two_losses(model, batch)

    mg, plain = build("recursive", losses), build("recursive")
    for each in (mg, plain):
        optimizer = torch.optim.SGD(each.objective.model.parameters(), lr=1e-3)
        Safeguard(optimizer, each)
        for batch in BATCHES:
            each.backward(batch)
            optimizer.step()
    assert {type(error) for error in found} == {ConcurrentUse}
    assert differing(everything(plain), everything(mg)) == []


def test_threads_that_collide_lose_no_step_and_mix_none() -> None:
    mg, made, errors = build("tracking"), [], []
    start = threading.Barrier(4)

    def work(batch: Any) -> None:
        start.wait(60)
        for _ in range(25):
            try:
                step = mg.backward(batch)
                made.append(step.losses)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(BATCHES[0],)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(isinstance(error, ConcurrentUse) for error in errors)
    assert len(made) + len(errors) == 100
    assert (mg.t, mg.samples, mg.gradients) == (len(made), 6 * len(made), 6 * len(made))
    alone = build("tracking")
    for _ in made:
        alone.backward(BATCHES[0])
    assert differing(everything(alone), everything(mg)) == []


def test_threads_may_take_turns() -> None:
    mg, alone = build("recursive"), build("recursive")
    paths = [in_thread(lambda batch=batch: train(mg, [batch])) for batch in BATCHES]
    assert same(torch.cat(paths), train(alone, BATCHES))


def test_a_signal_in_the_main_thread_does_not_disturb_a_step_of_another() -> None:
    hits: list[str] = []
    inside, signalled = threading.Event(), threading.Event()

    def losses(model: Any, batch: Any) -> Any:
        inside.set()
        assert signalled.wait(60)
        return two_losses(model, batch)

    def work() -> None:
        with DeferredInterrupts():  # does nothing here: handlers belong to the main thread
            paths.append(train(mg, BATCHES))

    mg, paths = build("storm", losses), []
    before = signal.signal(signal.SIGINT, lambda *_: hits.append("main"))
    try:
        thread = threading.Thread(target=work)
        thread.start()
        assert inside.wait(60)
        signal.raise_signal(signal.SIGINT)
        assert hits == ["main"]
        signalled.set()
        thread.join(60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert same(paths[0], train(build("storm"), BATCHES))
