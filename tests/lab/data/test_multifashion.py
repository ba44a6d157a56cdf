import numpy as np
import pytest
import torch

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import DataError, load_fashion_plus_mnist, load_multifashion, load_multimnist, read_idx

from .conftest import write_mnist_layout

SIZES = {"n_train": 40, "n_test": 20, "n_validation": 10}


def parts(data) -> tuple[torch.Tensor, ...]:
    return (*data.train, *data.validation, *data.test)


def test_multifashion_is_the_construction_of_multimnist_on_other_files(tmp_path):
    folder = write_mnist_layout(tmp_path / "fashion")
    clothes, digits = load_multifashion(folder=folder, **SIZES), load_multimnist(folder=folder, **SIZES)
    assert all(torch.equal(a, b) for a, b in zip(parts(clothes), parts(digits), strict=True))
    assert (clothes.name, clothes.tasks) == ("multifashion", ("left", "right"))


def test_fashion_plus_mnist_has_a_digit_top_left_and_clothes_bottom_right(tmp_path):
    digits = write_mnist_layout(tmp_path / "digits", seed=1)
    clothes = write_mnist_layout(tmp_path / "clothes", seed=2, n=25)
    data = load_fashion_plus_mnist(mnist_folder=digits, fashion_folder=clothes, **SIZES)
    assert data.tasks == ("digit", "clothes")
    for part, (images, first, second) in (("train", data.train), ("train", data.validation), ("t10k", data.test)):
        sources = [
            (read_idx(folder / f"{part}-images-idx3-ubyte.gz"), read_idx(folder / f"{part}-labels-idx1-ubyte.gz"))
            for folder in (digits, clothes)
        ]
        corners = {image[0, :8].tobytes(): label for image, label in zip(*sources[0], strict=True)}
        ends = {image[27, 20:].tobytes(): label for image, label in zip(*sources[1], strict=True)}
        pixels = (images[:, 0] * 255).round().to(torch.uint8).numpy()
        assert [corners[canvas[0, :8].tobytes()] for canvas in pixels] == first.tolist()
        assert [ends[canvas[35, 28:].tobytes()] for canvas in pixels] == second.tolist()


def test_digit_and_clothes_are_independent(tmp_path):
    digits = write_mnist_layout(tmp_path / "digits", classes=2)
    clothes = write_mnist_layout(tmp_path / "clothes", classes=2, seed=1)
    data = load_fashion_plus_mnist(mnist_folder=digits, fashion_folder=clothes, n_train=4000, n_test=1, n_validation=0)
    same = (data.train[1] == data.train[2]).double().mean()
    assert abs(same - 0.5) < 5 * np.sqrt(0.25 / 4000)  # five standard deviations
    assert data.validation == ()


def test_the_seed_decides_the_pairs(tmp_path):
    folder = write_mnist_layout(tmp_path / "fashion")
    one, again, other = (load_multifashion(folder=folder, seed=seed, **SIZES) for seed in (0, 0, 1))
    assert torch.equal(one.train[0], again.train[0])
    assert not torch.equal(one.train[0], other.train[0])


def test_other_files_in_place_of_fashion_mnist_are_refused(tmp_path):
    write_mnist_layout(tmp_path / "fashion-mnist")
    with pytest.raises(DataError, match=r"expected 47,040,016 bytes of content, found .*data fetch fashion-mnist"):
        load_multifashion(data=tmp_path, **SIZES)


def test_wrong_numbers_are_refused_before_any_file_is_read():
    for load in (load_multifashion, load_fashion_plus_mnist):
        with pytest.raises(InvalidOption, match="n_validation must be 0 or a positive integer, found -1"):
            load(n_validation=-1)


def test_digits_and_clothes_themselves(shared):
    shared("mnist")
    shared("fashion-mnist")
    data = load_fashion_plus_mnist(n_train=512, n_test=64, n_validation=64)
    assert data.train[0].shape == (512, 1, 36, 36)
    assert data.train[0][:, :, 8:, 8:].mean() > data.train[0][:, :, :28, :28].mean()  # clothes cover more than digits
    assert [int(labels.max()) for labels in data.train[1:]] == [9, 9]
