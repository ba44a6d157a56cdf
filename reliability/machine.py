"""Random sequences of calls against the literal model of the contract (tests/state_machine.py, tests/contract.py)."""

from __future__ import annotations

import logging
from collections import Counter

import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.state_machine import Machine

TITLE = "State machine"
TEXT = """
A machine makes random sequences of up to 50 calls: steps, NaN and exceptions at any evaluation of the losses, freezing,
saving and loading (also into fresh objects), proposals, a safeguard that is attached and detached. After every call it
compares parameters, gradients, rows, weights, counters and random state with a literal model of the contract in numpy,
which shares no code with the library (`tests/contract.py`). After an exception everything must be unchanged, bit for
bit; rows that were being updated in place may be dropped. Estimator, weighting, engine, staging, momentum, dropout and
`on_nonfinite` are drawn for each sequence.
"""
COLUMNS = ("call", "calls", "raised as the contract says", "failures")
RULES, SEQUENCES = 100_000, 100


def rows(*, quick: bool = False) -> list[list[object]]:
    """Run the machine with seed 0, 1, ... until it has made enough calls; return the counts of each kind of call."""
    wanted = 300 if quick else RULES
    failed: Counter[str] = Counter()
    first: dict[str, str] = {}
    Machine.counts.clear()
    Machine.raised.clear()
    logging.getLogger("stimulus_moo").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    number = 0
    while Machine.counts.total() < wanted:
        try:
            run_state_machine_as_test(seed(number)(type("Run", (Machine,), {})), settings=_budget(quick))
        except Exception as error:
            failed[Machine.last] += 1
            first.setdefault(Machine.last, f"seed {number}: {type(error).__name__}: {error}")
        number += 1
    return [
        [name, count, Machine.raised[name], f"{failed[name]}: {first[name]}" if failed[name] else 0]
        for name, count in sorted(Machine.counts.items())
    ]


def _budget(quick: bool) -> settings:
    return settings(
        max_examples=10 if quick else SEQUENCES,
        stateful_step_count=50,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # a failing sequence is shrunk by the test, not here
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
