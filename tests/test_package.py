"""The built wheel works on torch, numpy and scipy alone."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OPTIONAL = ("sklearn", "pandas", "pooch", "matplotlib", "plotly", "moocore", "typer", "rich", "tqdm", "PIL", "torchjd",
            "tensorboard")  # fmt: skip

USE = f"""
import sys
for name in {OPTIONAL!r}:
    sys.modules[name] = None  # as if not installed
import torch, stimulus_moo
assert {str(ROOT)!r} not in stimulus_moo.__file__, stimulus_moo.__file__
x = torch.randn(64, 3)
model = torch.nn.Linear(3, 2)
result = stimulus_moo.fit(model, lambda m, b: m(b).square().mean(0), x, lr=0.1, steps=20)
print(result.steps, sorted(n for n in sys.modules if n.startswith(("stimulus_moo.lab", "stimulus_moo.ranking"))))
try:
    import stimulus_moo.ranking
except stimulus_moo.MissingDependency as error:
    print(error)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


def test_wheel_holds_the_package_and_its_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "stimulus_moo/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks"))]


def test_wheel_works_without_the_extras(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", USE],
        env={"PYTHONPATH": str(tmp_path), "PATH": "", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "20 []",
        "stimulus_moo.ranking needs scikit-learn: pip install 'stimulus-moo[ranking]'",
    ]
