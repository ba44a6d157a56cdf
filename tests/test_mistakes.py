"""Plausible mistakes of new users, as a table: what was done, and what the message must say.

Each message names the argument, the value found and what to do; its error has the URL of a page. Mistakes in a loop are
in ``tests/test_checks.py``, trainers in ``tests/integrations``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stimulus_moo import (
    AdaptiveBatch,
    DoG,
    Fixed,
    HeavyBall,
    MiniBatch,
    MinNorm,
    MultiGradient,
    Page,
    Recursive,
    Safeguard,
    StimulusError,
    StimulusWarning,
    Storm,
    fit,
    measure,
)

CHECKED = True

X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.ones(24, 2)


def line() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean(0)


def of(function: Any) -> Callable[[], Any]:
    """Use a function as ``losses`` in one step."""
    return lambda: MultiGradient(line(), function, MiniBatch()).backward(X)


def built(*arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: MultiGradient(line(), losses, *(arguments or (MiniBatch(),)), **options)


def trained(data: Any = X, **options: Any) -> Callable[[], Any]:
    return lambda: fit(line(), losses, data, **{"steps": 2, **options})


def guarded(optimizer: Any, estimator: Any) -> Callable[[], Any]:
    def call() -> Any:
        model = line()
        return Safeguard(optimizer(model.parameters()), MultiGradient(model, losses, estimator))

    return call


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


class Mistake(NamedTuple):
    done: str
    call: Callable[[], Any]
    message: str


MISTAKES = (
    # fit: names of other libraries
    Mistake(
        "fit(epochs=3)", trained(epochs=3), "'epochs' is unknown; limit a run by steps=, gradients=, passes= or sec"
    ),
    Mistake("fit(max_epochs=3)", trained(max_epochs=3), "limit a run by steps=, gradients=, passes= or seconds="),
    Mistake(
        "fit(learning_rate=0.1)", trained(learning_rate=0.1), "'learning_rate' is unknown; the learning rate is lr="
    ),
    Mistake("fit(max_steps=10)", trained(max_steps=10), "the number of steps is steps="),
    Mistake("fit(verbose=1)", trained(verbose=1), "progress=True shows a progress bar"),
    Mistake("fit(validation_data=X)", trained(validation_data=X), "pass batches as evaluation="),
    Mistake("fit(num_workers=2)", trained(num_workers=2), "processes that load data is workers="),
    Mistake("fit(random_state=0)", trained(random_state=0), "the seed is seed="),
    Mistake(
        "fit(gradient_accumulation_steps=4)", trained(gradient_accumulation_steps=4), "batch_size= and micro_batch="
    ),
    Mistake("fit(shuffle=True)", trained(shuffle=True), "fit draws the batches itself"),
    Mistake("fit(loss_weights=...)", trained(loss_weights=[1, 2]), "method='scalarisation' takes weights="),
    Mistake("fit(bta=0.1)", trained(bta=0.1), "'bta' is unknown; did you mean 'beta'"),
    Mistake("fit(method='stimlus')", trained(method="stimlus"), "did you mean 'stimulus'"),
    Mistake("fit(weighting='upgard')", trained(weighting="upgard"), "did you mean 'upgrad'"),
    # fit: values
    Mistake("fit(losses, model)", lambda: fit(losses, line(), X), "model must be a torch.nn.Module, found function"),
    Mistake(
        "an optimizer object", trained(optimizer=adam(line())), "found an object of Adam; pass optimizer=lambda param"
    ),
    Mistake(
        "a scheduler object",
        trained(scheduler=torch.optim.lr_scheduler.StepLR(adam(line()), 1), lr=0.1),
        "found an object of StepLR; pass scheduler=lambda optimizer",
    ),
    Mistake("LBFGS", trained(optimizer=torch.optim.LBFGS, lr=0.1), "LBFGS evaluates the loss itself; use SGD"),
    Mistake("lr='0.1'", trained(lr="0.1"), "lr must be a finite number above 0, or 'auto', found '0.1'"),
    Mistake("lr=-1", trained(lr=-1), "lr must be a finite number above 0"),
    Mistake("steps=0", trained(steps=0), "steps must be a positive integer, found 0"),
    Mistake("steps=1e3", trained(steps=1e3), "steps must be a positive integer, found 1000.0"),
    Mistake("batch_size=100 of 24", trained(batch_size=100), "batch_size must be at most the number of samples, 24"),
    Mistake("tolerance=-1", trained(tolerance=-1), "tolerance must be a finite number of at least 0"),
    Mistake("one callback", trained(callbacks=print), r"callbacks must be a list of functions.*pass \[callback\]"),
    Mistake("evaluation=X", trained(evaluation=X), r"evaluation must be an iterable of batches.*pass \[batch\]"),
    Mistake("mu without lr", trained(mu=0.1), "mu needs a number for lr, found 'auto'"),
    Mistake("lr='auto' and a scheduler", trained(scheduler=lambda o: None), "lr='auto' sets the learning rate itself"),
    Mistake("checkpoint is a file", trained(checkpoint=__file__), "checkpoint must be a folder, found the file"),
    # data
    Mistake("a DataLoader as data", trained(DataLoader(X)), r"found DataLoader; pass its .dataset"),
    Mistake("no data", trained(X[:0]), "the data set is empty"),
    Mistake("columns of two lengths", trained((X, Y[:5])), "must have the same length"),
    Mistake("a number as data", trained(5), "a data set must be tensors, a map-style data set or an iterable"),
    Mistake(
        "a stream for STIMULUS",
        trained((x for x in X), method="stimulus", batch_size=2, period=2, lr=0.1),
        "needs a data set with a length, found a stream",
    ),
    Mistake("a stream without sizes", trained(x for x in X), "batch_size must be given for a stream"),
    # the model
    Mistake(
        "a list of models", lambda: MultiGradient([line()], losses, MiniBatch()), "model must be a torch.nn.Module"
    ),
    Mistake("a frozen model", lambda: MultiGradient(line().requires_grad_(False), losses, MiniBatch()), "found none"),
    Mistake("a lazy model", lambda: MultiGradient(nn.LazyLinear(2), losses, MiniBatch()), "run one forward pass first"),
    Mistake(
        "a meta model", lambda: fit(nn.Linear(4, 2, device="meta"), losses, X), r"on the meta device; call.*to_empty"
    ),
    Mistake(
        "a complex model",
        lambda: MultiGradient(nn.Linear(4, 2, dtype=torch.complex64), losses, MiniBatch()),
        "parameters must be real floating point, found weight of torch.complex64",
    ),
    # losses
    Mistake("a list of losses", lambda: MultiGradient(line(), [losses], MiniBatch()), "losses must be a function"),
    Mistake(
        "one scalar", of(lambda m, x: losses(m, x).sum()), r"found a tensor of shape \[\]; for one objective return"
    ),
    Mistake("losses of samples", of(lambda m, x: m(x).square()), r"1-D tensor, found a tensor of shape \[24, 2\]"),
    Mistake(
        "reduction='none'", of(lambda m, x: (m(x)[:, 0],)), r"loss 0 must be a real 0-d tensor.*found shape \[24\]"
    ),
    Mistake(".item()", of(lambda m, x: [v.item() for v in losses(m, x)]), "loss 0 must be a real 0-d tensor"),
    Mistake(".detach()", of(lambda m, x: losses(m, x).detach()), r"without .detach\(\), .item\(\) or torch.no_grad"),
    Mistake("no_grad", of(torch.no_grad()(losses)), r"depends on no trainable parameter"),
    Mistake("nothing returned", of(lambda m, x: None), "found NoneType"),
    Mistake("no losses", of(lambda m, x: ()), "losses must return at least one loss, found none"),
    Mistake("an integer loss", of(lambda m, x: (m(x).mean().long(),)), r"found shape \[\] of torch.int64"),
    Mistake("a NumPy array", of(lambda m, x: np.ones(2)), "found ndarray"),
    Mistake("a generator", of(lambda m, x: (v for v in losses(m, x))), "found generator"),
    Mistake("names that are numbers", of(lambda m, x: {0: m(x).mean()}), "names of losses must be strings"),
    Mistake(
        "an empty mask", of(lambda m, x: (m(x).mean(), m(x)[x[:, 0] > 99].mean())), "objective 1 is nan.*pass counts="
    ),
    Mistake(
        "a NaN gradient", of(lambda m, x: (m(x).mean(), (0 * m(x)).sum().sqrt())), "Check for a square root, a norm"
    ),
    # batches
    Mistake(
        "backward()",
        lambda: MultiGradient(line(), losses, MiniBatch()).backward(),
        r"call backward\(batch\), found None",
    ),
    Mistake(
        "backward(array)", lambda: MultiGradient(line(), losses, MiniBatch()).backward(np.ones(3)), "found ndarray"
    ),
    Mistake("an empty batch", lambda: MultiGradient(line(), losses, MiniBatch()).backward(X[:0]), "found size 0"),
    Mistake(
        "a 0-d tensor first",
        lambda: MultiGradient(line(), losses, MiniBatch()).backward((torch.tensor(1.0), X)),
        "put a per-sample tensor first, or pass batch_size=function",
    ),
    Mistake(
        "backward(loss)",
        lambda: MultiGradient(line(), lambda m, x: m(X).mean(0), MiniBatch()).backward(losses(line(), X)),
        "backward takes the batch and evaluates losses itself",
    ),
    # anchors
    Mistake("anchor=X", lambda: Recursive(X, 3), r"anchor must be an iterable of batches.*pass \[batch\]"),
    Mistake("anchor=array", lambda: Recursive(X.numpy(), 3), "found ndarray; for a single batch"),
    Mistake("a generator as anchor", lambda: Recursive(iter(X.split(4)), 3), "must be iterable more than once"),
    Mistake("a data set as anchor", lambda: Recursive(TensorDataset(X), 3), "found TensorDataset"),
    Mistake("period=0", lambda: Recursive([X], 0), "period must be a positive integer or 'auto', found 0"),
    Mistake("probability=1.5", lambda: Page([X], 1.5), r"probability must lie in \[0, 1\]"),
    Mistake("beta=2", lambda: Storm(2.0), r"beta must lie in \[0, 1\]"),
    Mistake("epsilon=0", lambda: AdaptiveBatch(X, epsilon=0), "epsilon must be a finite number above 0"),
    Mistake("measure(batches=X)", lambda: measure(line(), losses, X), "batches must be an iterable of batches"),
    # options of MultiGradient
    Mistake("estimator='mini-batch'", built("mini-batch"), r"such as Recursive\(anchor, period\) or MiniBatch\(\)"),
    Mistake("the class MiniBatch", built(MiniBatch), "estimator must be an Estimator"),
    Mistake("the class MinNorm", built(MiniBatch(), MinNorm), r"found the class MinNorm; pass MinNorm\(\)"),
    Mistake("weighting=[0.5, 0.5]", built(MiniBatch(), [0.5, 0.5]), "function from an S x S Gramian to S weights"),
    Mistake(
        "weights of another length", lambda: built(MiniBatch(), Fixed([1, 2, 3]))().backward(X), r"per objective \(2\)"
    ),
    Mistake("negative weights", lambda: Fixed([-1.0, 1.0]), r"weights\[0\] must be a finite number of at least 0"),
    Mistake("engine='fast'", built(engine="fast"), "engine must be one of 'auto', 'rowwise', 'batched', 'compiled'"),
    Mistake("shared=['weight']", built(shared=["weight"]), "pass for instance model.trunk.parameters"),
    Mistake("micro_batch=0", built(micro_batch=0), "micro_batch must be a positive integer"),
    Mistake("on_nonfinite='ignore'", built(on_nonfinite="ignore"), "must be one of 'raise', 'skip'"),
    Mistake("reweigh=2 with Recursive", built(Recursive([X], 3), reweigh=2), "reweigh must be 1, 'anchor' or 'auto'"),
    Mistake("metric=SGD", built(metric=torch.optim.SGD(line().parameters(), 0.1)), "SGD and HeavyBall need none"),
    Mistake("counts=[1, 2]", built(counts=[1, 2]), "counts must be a function from a batch to S numbers"),
    Mistake(
        "three counts", lambda: built(counts=lambda x: [1, 2, 3])().backward(X), r"one number per loss \(2\), found 3"
    ),
    Mistake("a negative count", lambda: built(counts=lambda x: [1, -2])().backward(X), "at least 0, found -2 for obj"),
    Mistake("check='yes'", built(check="yes"), "check must be True or False"),
    # optimizers and the safeguard
    Mistake(
        "momentum=1", lambda: HeavyBall(line().parameters(), lr=0.1, momentum=1.0), r"momentum must lie in \[0, 1\)"
    ),
    Mistake("a guard for LBFGS", guarded(torch.optim.LBFGS, Storm(0.1)), "LBFGS evaluates the loss itself"),
    Mistake(
        "a guard for one point", guarded(torch.optim.SGD, MiniBatch()), "Safeguard has nothing to judge with MiniBatch"
    ),
    Mistake(
        "arguments swapped", lambda: Safeguard(built()(), adam(line())), "optimizer must be a torch.optim.Optimizer"
    ),
    Mistake(
        "DoG for LBFGS", lambda: DoG(torch.optim.LBFGS(line().parameters()), built()()), "LBFGS evaluates the loss"
    ),
    Mistake("a foreign state", lambda: built()().load_state_dict({}), "the state of MultiGradient must be a dict with"),
)


def test_the_table_has_no_name_twice() -> None:
    names = [mistake.done for mistake in MISTAKES]
    assert len(set(names)) == len(names) >= 81


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.done for mistake in MISTAKES])
def test_a_mistake_is_told_with_the_fix(mistake: Mistake) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", StimulusWarning)
        with pytest.raises((StimulusError, StimulusWarning)) as told:
            mistake.call()
    text = " ".join([str(told.value), *getattr(told.value, "__notes__", ())])
    assert re.search(mistake.message, text, re.DOTALL)
    assert "https://" in text


def test_arrays_are_taken_as_data() -> None:
    arrays = X.numpy(), Y.numpy()
    found = fit(line(), lambda m, b: (m(b[0]) - b[1]).square().mean(0), arrays, steps=3).losses
    assert found == fit(line(), lambda m, b: (m(b[0]) - b[1]).square().mean(0), (X, Y), steps=3).losses
    named = {"x": X.numpy(), "y": Y.numpy()}
    assert found == fit(line(), lambda m, b: (m(b["x"]) - b["y"]).square().mean(0), named, steps=3).losses


def test_a_frame_is_refused_with_the_way() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(StimulusError, match=r"found a DataFrame; pass torch.from_numpy\(frame.to_numpy\(\)\)"):
        fit(line(), losses, pandas.DataFrame(X.numpy()), steps=2)


def test_a_ranker_without_queries_is_told() -> None:
    ranking = pytest.importorskip("stimulus_moo.ranking")
    features, labels = np.random.default_rng(0).normal(size=(1001, 2)), np.zeros((1001, 2))
    labels[:5, 0] = labels[3:9, 1] = 1.0
    ranker = ranking.MultiLabelRanker(epochs=1, batch_size=1)
    with pytest.warns(StimulusWarning, match="qid is None, so all 1001 rows are one list; pass qid="):
        ranker.fit(features, labels)
