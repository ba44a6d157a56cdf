import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import CelebA, DataError
from stimulus_moo.lab.data.celeba_lists import read_attributes, read_partition

FUZZ = settings(max_examples=200, derandomize=True, deadline=None)
NAMES = [f"Attribute_{index}" for index in range(40)]
FILES = [f"{index:06d}.jpg" for index in range(1, 13)]
VALUES = np.where(np.random.default_rng(0).random((12, 40)) < 0.3, 1, -1)
ATTRIBUTES = "\n".join(
    ["12", " ".join(NAMES) + " "]
    + [f"{file} " + " ".join(f"{value:2d}" for value in row) for file, row in zip(FILES, VALUES, strict=True)]
) + "\n"  # fmt: skip
PARTITION = "".join(f"{file} {index // 4}\n" for index, file in enumerate(FILES))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "img_align_celeba").mkdir()
    for index, file in enumerate(FILES):
        pixels = np.full((218, 178, 3), (20 * index, 0, 255), np.uint8)
        pixels[:20] = pixels[-20:] = 255  # outside the centred square
        Image.fromarray(pixels).save(tmp_path / "img_align_celeba" / file, quality=95)
    (tmp_path / "list_attr_celeba.txt").write_text(ATTRIBUTES)
    (tmp_path / "list_eval_partition.txt").write_text(PARTITION)
    return tmp_path


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("celeba") / "list.txt"


@pytest.mark.parametrize(("split", "start"), [("train", 0), ("valid", 4), ("test", 8)])
def test_images_and_attributes_of_a_split(folder, split, start):
    data = CelebA(folder, split=split, size=32)
    assert len(data) == 4
    assert data.tasks == tuple(NAMES)
    for index in range(4):
        image, attributes = data[index]
        assert image.shape == (3, 32, 32)
        assert image.dtype == attributes.dtype == torch.float32
        expected = torch.tensor([20 * (start + index) / 255, 0.0, 1.0])
        torch.testing.assert_close(image.mean((1, 2)), expected, atol=0.02, rtol=0)  # JPEG is lossy
        assert attributes.tolist() == (VALUES[start + index] == 1).astype(float).tolist()


def test_limit_keeps_the_first_samples_and_a_loader_makes_batches(folder):
    data = CelebA(folder, limit=3, size=8)
    images, attributes = next(iter(torch.utils.data.DataLoader(data, batch_size=3)))
    assert images.shape == (3, 3, 8, 8)
    assert attributes.shape == (3, 40)


def test_it_travels_to_worker_processes(folder):
    data = CelebA(folder, limit=2, size=8)
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy[1][0], data[1][0])


def test_it_is_found_in_the_data_folder(folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    (root / "celeba").symlink_to(folder)
    assert len(CelebA(data=root)) == 4
    with pytest.raises(DataError, match=r"found nothing; to get it, get img_align_celeba\.zip"):
        CelebA(data=folder)


@pytest.mark.parametrize("wrong", [{"split": "dev"}, {"size": 0}, {"limit": 0}])
def test_wrong_options_are_refused(folder, wrong):
    with pytest.raises(InvalidOption, match=next(iter(wrong))):
        CelebA(folder, **wrong)


def test_missing_images_are_counted_and_the_first_is_named(folder):
    for name in FILES[1:3]:
        (folder / "img_align_celeba" / name).unlink()
    with pytest.raises(DataError, match=r"000002\.jpg.*2 of 4 images of this split are missing"):
        CelebA(folder)
    assert len(CelebA(folder, limit=1)) == 1


@pytest.mark.parametrize("damage", ["truncate", "text", "empty", "bomb", "directory"])
def test_a_damaged_image_raises_a_data_error_that_names_it(folder, damage):
    path: Path = folder / "img_align_celeba" / FILES[0]
    content = path.read_bytes()
    if damage == "directory":
        path.unlink()
        path.mkdir()
    elif damage == "bomb":
        stream = io.BytesIO()
        Image.new("1", (20_000, 20_000)).save(stream, "PNG")
        path.write_bytes(stream.getvalue())
    else:
        path.write_bytes({"truncate": content[: len(content) // 2], "text": b"hello", "empty": b""}[damage])
    data = CelebA(folder)
    with pytest.raises(DataError, match=FILES[0]):
        data[0]
    assert data[1][0].shape == (3, 64, 64)


def line(number: int, text: str, source: str = ATTRIBUTES) -> str:
    lines = source.split("\n")
    lines[number - 1] = text
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected the number of images, found ''"),
        ("many\n", "line 1: expected the number of images, found 'many'"),
        (line(1, "1" * 13), "line 1: expected the number of images"),
        (line(1, "999999999999"), "expected 999999999999 images, as line 1 says, found 12"),
        (line(1, "11"), "expected 11 images, as line 1 says, found 12"),
        (line(2, " ".join(NAMES[:39])), "line 2: expected 40 different attribute names, found 39"),
        (line(2, " ".join([*NAMES[:39], NAMES[0]])), "line 2: expected 40 different attribute names, found 39"),
        (line(5, FILES[2] + " 1" * 39), "line 5: expected a file and 40 times -1 or 1"),
        (line(5, FILES[2] + " 1" * 39 + " 0"), "line 5: expected a file and 40 times -1 or 1"),
        (line(5, "../../etc/x.jpg" + " 1" * 40), "line 5: expected the name of a jpg or png file"),
        (line(5, "/etc/passwd" + " 1" * 40), "line 5: expected the name of a jpg or png file"),
        (line(5, FILES[0] + " 1" * 40), "expected each image once, found 1 repeated"),
        (line(5, ""), "line 5: expected no empty line"),
        (ATTRIBUTES + "caf\u00e9.jpg" + " 1" * 40, "ASCII"),
    ],
)
def test_a_broken_attribute_list_is_refused_with_its_line(file, text, message):
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        read_attributes(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected 12 images, as list_attr_celeba.txt has, found 0"),
        (line(3, "000003.jpg 3", PARTITION), "line 3: expected a file name and 0, 1 or 2"),
        (line(3, "000003.jpg", PARTITION), "line 3: expected a file name and 0, 1 or 2"),
        (line(3, "000004.jpg 0", PARTITION), "line 3: expected 000003.jpg as in list_attr_celeba.txt"),
        (PARTITION + "000013.jpg 0\n", "line 13: expected the end of the file"),
    ],
)
def test_a_broken_partition_is_refused_with_its_line(file, text, message):
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        read_partition(file, FILES)
    assert message in str(caught.value)


def test_a_split_without_images_is_refused(folder):
    (folder / "list_eval_partition.txt").write_text(PARTITION.replace(".jpg 2", ".jpg 1"))
    with pytest.raises(DataError, match="expected images of the split 'test', found none"):
        CelebA(folder, split="test")


@FUZZ
@given(st.binary(max_size=300), st.sampled_from([b"", b"2\n", ATTRIBUTES[:400].encode(), ATTRIBUTES.encode()]))
def test_random_bytes_give_a_data_error(file, content, start):
    file.write_bytes(start + content)
    for read in (read_attributes, lambda path: read_partition(path, FILES)):
        try:
            read(file)
        except DataError:
            continue
        assert start + content in (ATTRIBUTES.encode(), PARTITION.encode())


@FUZZ
@given(st.integers(0, len(ATTRIBUTES) - 1), st.binary(max_size=3), st.integers(0, 3))
def test_a_changed_attribute_list_gives_a_table_of_the_right_shape_or_a_data_error(file, position, new, removed):
    content = ATTRIBUTES.encode()
    file.write_bytes(content[:position] + new + content[position + removed :])
    try:
        table = read_attributes(file)
    except DataError:
        return
    assert table.values.shape == (len(table.files), 40)
    assert all("/" not in name for name in table.files)
