"""MultiFashion and Fashion+MNIST: pairs of images as in MultiMNIST, of clothes, or of a digit and clothes."""

from __future__ import annotations

from os import PathLike

from stimulus_moo.lab.data.image_pairs import image_files, load_pairs, pair_counts
from stimulus_moo.lab.data.task_data import TaskData


def load_multifashion(
    *,
    n_train: int = 60_000,
    n_test: int = 10_000,
    n_validation: int = 6_000,
    seed: int = 0,
    folder: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    download: bool = True,
) -> TaskData:
    """Load MultiFashion; the tasks are to classify the top-left and the bottom-right piece of clothing.

    Construction, arguments, result and errors are those of ``load_multimnist``, with Fashion-MNIST in place of MNIST.

    Args:
        n_train: training samples.
        n_test: test samples.
        n_validation: validation samples; with 0, ``validation`` is empty.
        seed: seed of the pairs.
        folder: a directory with four IDX files named as Fashion-MNIST's. Default: Fashion-MNIST, with verified
            checksums.
        data: data folder (``--data``), see ``folders.data_folders``.
        download: whether Fashion-MNIST may be downloaded if it is not found.
    """
    counts = pair_counts(n_train, n_validation, n_test, seed)
    files = image_files("fashion-mnist", folder, data, download)
    splits = load_pairs("multifashion", files, files, counts)
    source = f"IDX files in {files.folder}, paired with seed {counts.seed}"
    validation = splits["validation"] if counts.validation else ()
    return TaskData("multifashion", splits["train"], splits["test"], ("left", "right"), False, source, validation)


def load_fashion_plus_mnist(
    *,
    n_train: int = 60_000,
    n_test: int = 10_000,
    n_validation: int = 6_000,
    seed: int = 0,
    mnist_folder: str | PathLike[str] | None = None,
    fashion_folder: str | PathLike[str] | None = None,
    data: str | PathLike[str] | None = None,
    download: bool = True,
) -> TaskData:
    """Load Fashion+MNIST; the tasks are to classify the digit at the top left and the clothes at the bottom right.

    Construction, result and errors are those of ``load_multimnist``, except that the two images of a sample are drawn
    independently, since digits and clothes have no classes in common.

    Args:
        n_train: training samples.
        n_test: test samples.
        n_validation: validation samples; with 0, ``validation`` is empty.
        seed: seed of the pairs.
        mnist_folder: a directory with four IDX files named as MNIST's. Default: MNIST, with verified checksums.
        fashion_folder: the same for the bottom-right image. Default: Fashion-MNIST, with verified checksums.
        data: data folder (``--data``), see ``folders.data_folders``.
        download: whether the files may be downloaded if they are not found.
    """
    counts = pair_counts(n_train, n_validation, n_test, seed)
    digits = image_files("mnist", mnist_folder, data, download)
    clothes = image_files("fashion-mnist", fashion_folder, data, download)
    splits = load_pairs("fashion-plus-mnist", digits, clothes, counts)
    source = f"IDX files in {digits.folder} and {clothes.folder}, paired with seed {counts.seed}"
    validation = splits["validation"] if counts.validation else ()
    return TaskData("fashion+mnist", splits["train"], splits["test"], ("digit", "clothes"), False, source, validation)
