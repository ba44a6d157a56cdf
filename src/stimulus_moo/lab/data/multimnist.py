"""MultiMNIST: two different digits on one canvas, one task each, from four IDX files named as MNIST's."""

from __future__ import annotations

from os import PathLike

from stimulus_moo.lab.data.image_pairs import image_files, load_pairs, pair_counts
from stimulus_moo.lab.data.task_data import TaskData


def load_multimnist(
    *,
    n_train: int = 60_000,
    n_test: int = 10_000,
    n_validation: int = 0,
    seed: int = 0,
    folder: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    download: bool = True,
) -> TaskData:
    """Load MultiMNIST; the tasks are to classify the top-left and the bottom-right digit.

    Each sample combines two 28 x 28 images of different classes on a 36 x 36 canvas; where they overlap, the brighter
    pixel is kept. Training and validation samples come from the ``train`` files, test samples from the ``t10k`` files.
    The result depends only on the content of the files, the seed and the sizes, and is stored in the user's cache.

    Args:
        n_train: training samples.
        n_test: test samples.
        n_validation: validation samples; with 0, ``validation`` is empty.
        seed: seed of the pairs.
        folder: a directory with four IDX files named as MNIST's, with or without ``.gz``, e.g.
            Fashion-MNIST. Default: MNIST, with verified checksums.
        data: data folder (``--data``), see ``folders.data_folders``.
        download: whether MNIST may be downloaded if it is not found.

    Returns:
        ``train``, ``validation`` and ``test`` hold images (float32 in [0, 1], n x 1 x 36 x 36), left labels and
        right labels (int64).

    Raises:
        DataError: a file is missing, damaged or not in MNIST's layout.
        InvalidOption: a size or the seed is out of range.
    """
    counts = pair_counts(n_train, n_validation, n_test, seed)
    files = image_files("mnist", folder, data, download)
    splits = load_pairs("multimnist", files, files, counts)
    name = "multimnist" if folder is None else f"multimnist ({files.folder.name})"
    source = f"IDX files in {files.folder}, paired with seed {counts.seed}"
    validation = splits["validation"] if counts.validation else ()
    return TaskData(name, splits["train"], splits["test"], ("left", "right"), False, source, validation)
