"""The example programs run, with fewer steps than on their own, and reach what their pages say."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.database import ENGINES

CHECKED = True  # what users are shown gives no warnings
EXAMPLES = Path(__file__).parents[1] / "examples"
RUN_ELSEWHERE = {"lightning_module", "accelerate_loop", "huggingface_trainer", "fsdp"}  # in tests/distributed


def run(name: str, **options: Any) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="example")["main"](**options)


def test_every_example_is_run() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert names - RUN_ELSEWHERE - tested == set()


def test_every_example_is_on_its_page() -> None:
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if f"../examples/{path.name}\n" not in page] == []


@pytest.fixture(scope="module")
def transformer() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("transformer_example", EXAMPLES / "transformer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "transformer_example", module)  # torch.compile imports it by name
        spec.loader.exec_module(module)
        yield module.main
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def expected(transformer: Any) -> Any:
    return transformer(4, "rowwise", half=False, reweigh=1)["history"]


def near(found: Any, expected: Any) -> bool:
    """bfloat16 has 8 bits."""
    pairs = [(a[name], b[name]) for a, b in zip(found, expected, strict=True) for name in b]
    return all(a == pytest.approx(b, abs=0.02) for a, b in pairs)


@pytest.mark.parametrize(
    ("engine", "half"),
    [
        *((engine, half) for engine in ("auto", "rowwise", "batched") for half in (True, False)),
        pytest.param("compiled", True, marks=pytest.mark.slow),
    ],
)
def test_transformer(engine: str, half: bool, transformer: Any, expected: Any) -> None:
    with ENGINES[engine].used():
        found = transformer(4, engine, half=half, reweigh=1)
    assert near(found["history"], expected)
    chosen = "rowwise" if half else "batched"  # attention in bfloat16 is not vectorised
    assert found["engine"] == (chosen if engine == "auto" else engine)


@pytest.mark.slow
def test_transformer_compiled_by_the_user(transformer: Any, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compiler(model, backend="aot_eager"))
    assert near(transformer(4, compiled=True, reweigh=1)["history"], expected)


def test_drop_in_loop() -> None:
    assert max(run("drop_in_loop", epochs=3)["losses"]) < 0.4  # 1.1 at the start


def test_multi_task_images() -> None:
    pytest.importorskip("sklearn")
    assert min(run("multi_task_images", epochs=8)["accuracy"]) > 0.25  # 0.1 is chance


def test_fairness() -> None:
    pytest.importorskip("sklearn")
    second, _, first = run("fairness", steps=60)["losses"]
    assert first[0] < second[0]  # the group that is preferred has the lower loss
    assert first[1] > second[1]


def test_multi_target_regression() -> None:
    pytest.importorskip("sklearn")
    found = run("multi_target_regression", gradients=20_000)
    assert found["stimulus-m"] < found["scalarisation-adam"]


def test_ranking() -> None:
    pytest.importorskip("moocore")
    found = run("ranking", epochs=3)
    assert found["worst"] > 0.5
    assert found["spread"] > 0.3  # of label 0's NDCG between the two ends of the front


def test_streaming() -> None:
    assert run("streaming", steps=40)["stationarity"] < 0.05  # what epsilon asks for


def test_custom_weighting() -> None:
    found = run("custom_weighting", steps=100)
    assert found["equal pull"] < 1e-3
    assert found["steady pull"] < 1e-3


@pytest.mark.filterwarnings("ignore")  # torchjd's solvers warn on their own behalf
def test_torchjd_weighting() -> None:
    pytest.importorskip("torchjd")
    pytest.importorskip("qpsolvers")
    found = run("torchjd_weighting", steps=150)
    assert found["recursive"] < 1e-2 * found["mini-batch"]
