import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

SHARED = os.environ.get("STIMULUS_MOO_DATA")
IDX_CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, IDX_CODES[str(array.dtype)], array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_mnist_layout(folder: Path, n: int = 30, classes: int = 5, packed: bool = True, seed: int = 0) -> Path:
    generator = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        images = generator.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = (np.arange(n) % classes).astype(np.uint8)
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            content = idx_bytes(array)
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(content) if packed else content)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has an empty user cache and no data folder, whatever the machine has."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STIMULUS_MOO_CACHE", str(cache))
    monkeypatch.delenv("STIMULUS_MOO_DATA", raising=False)
    return cache


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """The folder of a real data set; skips the test where it is absent."""

    def folder(name: str) -> Path:
        if not SHARED or not Path(SHARED, name).is_dir():
            pytest.skip(f"STIMULUS_MOO_DATA names no folder with {name}/")
        monkeypatch.setenv("STIMULUS_MOO_DATA", SHARED)
        return Path(SHARED, name)

    return folder
