"""The benchmarks run in miniature, and their runner keeps what it was not asked to run; no figure is judged here."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks import __main__ as runner
from benchmarks import (
    anchor,
    distributed,
    end_to_end,
    engines,
    forced,
    fronts,
    hands_free,
    kept_weights,
    memory,
    moves,
    report,
    solver,
    split_models,
    stages,
    step_cost,
)
from benchmarks.problems import CASES
from benchmarks.timing import Timings, alternate, in_blocks, milliseconds
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.folders import find

# torch and TorchJD warn on their own behalf: the profiler, forked workers, deprecated names
pytestmark = pytest.mark.filterwarnings("ignore")

MODULES = [
    step_cost,
    kept_weights,
    stages,
    engines,
    memory,
    anchor,
    distributed,
    split_models,
    end_to_end,
    solver,
    forced,
    fronts,
    moves,
    hands_free,
]
PEERS = {
    step_cost: ["torchjd"],
    kept_weights: ["torchjd"],
    memory: ["torchjd"],
    end_to_end: ["torchjd"],
    solver: ["torchjd", "quadprog"],
}
DATA = {end_to_end: "mnist", forced: "mnist", moves: "compas"}


def name_of(module: ModuleType) -> str:
    return module.__name__.removeprefix("benchmarks.")


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_quick_rows_fill_the_columns(module: Any) -> None:
    for peer in PEERS.get(module, []):
        pytest.importorskip(peer)
    if module in DATA:
        try:
            find(DATA[module], download=False)
        except DataError as error:
            pytest.skip(str(error))
    rows = module.rows(quick=True)
    assert rows
    assert module.TITLE
    assert module.TEXT
    assert {len(row) for row in rows} == {len(module.COLUMNS)}
    if "met" in module.COLUMNS:
        met = module.COLUMNS.index("met")
        assert all(str(row[met]).startswith(("met: ", "missed: ")) for row in rows if row[met])


def test_every_benchmark_is_known_to_the_runner() -> None:
    assert set(map(name_of, MODULES)) <= set(runner.NAMES)


def test_stages_add_up_to_the_step() -> None:
    rows = stages.profile(stages.of_step_cost(quick=True)[0], "rowwise", 5)
    *parts, total = [float(row[3]) for row in rows]
    assert rows[-1][2] == "all"
    assert sum(parts) == pytest.approx(total, rel=0.02)  # three digits are shown


def test_memory_of_a_known_function() -> None:
    kept = []

    def allocate() -> None:
        kept.append(torch.empty(1000))
        torch.empty(3000)

    assert memory.traced(allocate, 2) == (4 * (2 * 1000 + 3000), 4 * 2 * 1000)


def test_memory_leaves_out_the_peak_of_earlier_calls() -> None:
    kept = []

    def allocate() -> None:
        kept.append(torch.empty(1000))
        torch.empty(9000 if len(kept) == 1 else 3000)

    assert memory.traced(allocate, 2, before=1) == (4 * (3 * 1000 + 3000), 4 * 3 * 1000)


def test_a_cell_that_takes_too_long_or_too_much_is_not_measured() -> None:
    def measured(name: str, objectives: int, side: str) -> memory.Found:
        return "out of memory" if side in memory.TORCHJD else {"peak": 4000, "held": 0}

    table = memory._table(memory._TINY, 3, measured, growth=True)
    shown = [str(row[5]) for row in table if "TorchJD" in str(row[1])]
    assert shown == ["not measured: out of memory"] * 2


def test_ratio_is_taken_block_by_block() -> None:
    timings = Timings({"a": [1.0, 20.0, 3.0], "b": [1.0, 10.0, 1.0]})
    ratio = timings.ratio("a", "b")
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 1.5, 2.5)
    assert str(ratio) == "2.00 (1.50-2.50)"
    assert timings["a"] == 3.0


def test_long_sides_are_timed_in_fewer_blocks_and_compared_with_the_nearest() -> None:
    timings = in_blocks({"short": lambda: None, "long": lambda: None}, {"short": 1, "long": 1}, 4, {"long": 2})
    assert [len(timings.blocks[name]) for name in ("short", "long")] == [4, 2]
    ratio = Timings({"short": [1.0, 2.0, 3.0, 4.0], "long": [10.0, 40.0]}).ratio("long", "short")
    assert (ratio.low, ratio.high) == pytest.approx((8.75, 10 + 5 / 6))  # of 10, 5, 13.3 and 10


def test_a_reference_is_timed_before_each_block_of_another_side() -> None:
    order: list[str] = []
    sides = {name: partial(order.append, name) for name in ("sum", "a", "b")}
    timings = in_blocks(sides, dict.fromkeys(sides, 1), 2, {"b": 2}, reference="sum")
    assert order == ["sum", "sum", "a", "sum", "sum", "b", "sum", "sum", "a"]  # two before the seldom one
    timings = Timings({"sum": [1.0], "a": [6.0], "b": [6.0]}, {"sum": {"a": [2.0]}})
    assert [timings.ratio(*pair).median for pair in (("a", "sum"), ("b", "sum"), ("a", "b"))] == [3.0, 6.0, 1.0]


def test_blocks_of_a_stretch_are_whole_multiples() -> None:
    side = kept_weights._Side("side", lambda: None, seconds=0.001, multiple=60)
    assert [side.calls(target) for target in (0.001, 0.1, 0.2)] == [60, 120, 180]


def test_short_calls_fill_a_block_and_long_ones_run_once() -> None:
    calls = {"short": 0, "long": 0}

    def short() -> None:
        calls["short"] += 1

    def long() -> None:
        calls["long"] += 1
        torch.randn(300, 300) @ torch.randn(300, 300)

    alternate({"short": short, "long": long}, blocks=2, target=1e-4)
    assert calls["short"] > 20
    assert calls["long"] < calls["short"]


def outcome(*losses: float, largest: float = 1.0, stationarity: float = 1.0) -> hands_free.Outcome:
    return hands_free.Outcome(None, list(losses), largest, stationarity, 1.0, 1.0)


@pytest.mark.parametrize(
    ("problem", "auto", "met"),
    [
        ("digits", outcome(1.25, 1.25, 1.1), True),
        ("digits", outcome(1.26, 1.0, 1.0), False),
        ("digits", outcome(1.0, 1.0, 1.11), False),
        ("ridge", outcome(1.0, 1.0, 1.0, stationarity=0.1), True),
        ("ridge", outcome(1.0, 1.0, 1.0, stationarity=0.11), False),
        ("digits-scaled", outcome(9.0, 9.0, 0.44), True),
        ("digits-scaled", outcome(1.0, 1.0, 0.45), False),
    ],
)
def test_targets_of_hands_free(problem: str, auto: hands_free.Outcome, met: bool) -> None:
    others = {hands_free.MEAN: outcome(1.0, 1.0, 1.0), hands_free.RELATIVE: outcome(0.4, 0.4, 0.4)}
    _, found = hands_free.verdict(CASES[problem], {hands_free.AUTO: auto, **others})
    assert found.startswith("met: " if met else "missed: ")


def test_scaled_loss_must_be_half_that_of_the_mean() -> None:
    others = {hands_free.MEAN: outcome(1.0, 1.0, 1.0), hands_free.RELATIVE: outcome(1.0, 1.0, 1.0)}
    auto = {hands_free.AUTO: outcome(1.0, 1.0, 0.51)}
    assert hands_free.verdict(CASES["digits-scaled"], {**auto, **others})[1].startswith("missed: ")


def test_summary_is_a_geometric_mean_over_problems() -> None:
    comparisons = [hands_free.Comparison(problem) for problem in ("digits", "multimnist", "digits-scaled")]
    for comparison, ratio in zip(comparisons, (0.5, 2.0, 0.125), strict=True):
        comparison.outcomes[hands_free.AUTO] = outcome(1.0, 1.0, ratio, largest=ratio)
        comparison.outcomes[hands_free.MEAN] = outcome(1.0, 1.0, 1.0)
    rows = hands_free.summary(comparisons)
    assert [row[5] for row in rows] == ["0.500", "1.000", "2.000"]  # all, not scaled, of these the held-out ones
    assert [row[6] for row in rows] == ["not above on 2 of 3", "not above on 1 of 2", "not above on 0 of 1"]
    assert {len(row) for row in rows} == {len(hands_free.COLUMNS)}


@pytest.mark.parametrize(
    ("best", "grid"),
    [(0.001, (0.0003, 0.001, 0.003)), (0.003, (0.001, 0.003, 0.01)), (0.002, (0.001, 0.003))],
)
def test_grid_is_extended_at_the_end_of_the_best(best: float, grid: tuple[float, ...]) -> None:
    assert hands_free._extended((0.001, 0.003), best) == grid


def test_environment_chooses_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDS_FREE", "digits, ridge")
    assert hands_free.chosen_problems() == ["digits", "ridge"]
    monkeypatch.setenv("HANDS_FREE", "nonesuch")
    with pytest.raises(ValueError, match="found 'nonesuch'"):
        hands_free.chosen_problems()
    monkeypatch.delenv("HANDS_FREE")
    assert hands_free.chosen_problems() == list(CASES)


def test_relative_losses_undo_the_scales() -> None:
    """Adam on losses divided by their values at the start does the same whatever the scales are."""
    pytest.importorskip("sklearn")
    ways = [hands_free.train(name, hands_free.RELATIVE, 0.01, 0, 640) for name in ("digits", "digits-scaled")]
    for plain, scaled in zip(*(way["losses"] for way in ways), strict=True):
        assert plain == pytest.approx(scaled, rel=1e-3)  # float32, 20 steps
    mean = hands_free.train("digits-scaled", hands_free.MEAN, 0.01, 0, 640)
    assert mean["losses"][-1][1] > ways[1]["losses"][-1][1] + 0.1
    assert ways[0]["spent"] == 1.0  # 20 batches of 32, one pass per sample


@pytest.mark.parametrize(("seconds", "shown"), [(0.00012345, "0.123"), (0.0012345, "1.23"), (1.2345, "1234")])
def test_milliseconds_have_three_digits(seconds: float, shown: str) -> None:
    assert milliseconds(seconds) == shown


def plain_module(name: str, figure: str) -> ModuleType:
    """A benchmark without TEXT or ``quick``."""
    module = ModuleType(f"benchmarks.{name}")
    module.TITLE, module.COLUMNS = f"Title of {name}", ["case", "bar", "met"]  # type: ignore[attr-defined]
    module.rows = lambda: [["only | one", "at most 1", f"met: {figure}"]]  # type: ignore[attr-defined]
    return module


@pytest.fixture
def two_benchmarks(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    modules = {name: plain_module(name, "0.5") for name in ("first", "second")}
    monkeypatch.setattr(runner, "NAMES", ("first", "second"))
    monkeypatch.setattr(runner, "find_spec", lambda name: name)
    monkeypatch.setattr(runner, "import_module", lambda name: modules[name.removeprefix("benchmarks.")])
    return modules


def test_sections_that_are_not_run_stay(two_benchmarks: dict[str, ModuleType], tmp_path: Path) -> None:
    for name in ("second", "first"):
        assert runner.main([name, "--out", str(tmp_path)]) == 0
    before = report.load(tmp_path)
    assert list(before) == ["first", "second"]  # in the order of NAMES, not of running
    two_benchmarks["first"].rows = lambda: [["only", "at most 1", "missed: 2.5"]]  # type: ignore[attr-defined]
    runner.main(["first", "--out", str(tmp_path)])
    after = report.load(tmp_path)
    assert after["second"] == before["second"]
    assert after["first"]["rows"] == [["only", "at most 1", "missed: 2.5"]]
    text = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert text.index("## Title of first") < text.index("## Title of second")
    assert "| Title of first | only | at most 1 | missed: 2.5 |" in text
    assert "| only \\| one | at most 1 | met: 0.5 |" in text


def test_sections_say_where_they_come_from(two_benchmarks: dict[str, ModuleType], tmp_path: Path) -> None:
    runner.main(["first", "--out", str(tmp_path)])
    section = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["sections"]["first"]
    assert section["versions"]["torch"] == torch.__version__
    assert section["threads"] == torch.get_num_threads()
    assert {"date", "commit", "machine", "python", "seconds"} <= set(section)
    assert section["quick"] is False


def test_failure_keeps_the_old_section(two_benchmarks: dict[str, ModuleType], tmp_path: Path) -> None:
    runner.main(["first", "--out", str(tmp_path)])
    before = (tmp_path / "results.json").read_bytes()

    def broken() -> None:
        raise RuntimeError("no")

    two_benchmarks["first"].rows = broken  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError):
        runner.main(["first", "--out", str(tmp_path)])
    assert (tmp_path / "results.json").read_bytes() == before


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runner.main(["nonesuch"])
    assert "there is no benchmark 'nonesuch'" in capsys.readouterr().err
