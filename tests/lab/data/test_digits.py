import pytest
import torch

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import load_digits


def test_shapes_types_range_and_labels():
    data = load_digits()
    for (images, left, right), n in ((data.train, 2048), (data.test, 512)):
        assert images.shape == (n, 1, 12, 12)
        assert images.dtype == torch.float32
        assert (images.min(), images.max()) == (0, 1)
        assert left.dtype == right.dtype == torch.int64
        assert set(left.tolist()) == set(right.tolist()) == set(range(10))
        assert (left != right).all()
    assert (data.tasks, data.synthetic) == (("left", "right"), False)


def test_no_digit_serves_in_training_and_in_test():
    data = load_digits(n_train=4000, n_test=4000)
    # rows 0-3 show the first digit alone, rows 8-11 the second: enough to tell the images apart
    for part in (slice(0, 4), slice(8, 12)):
        train, test = ({image.numpy().tobytes() for image in split[0][:, 0, part]} for split in (data.train, data.test))
        assert len(train) > 1200
        assert len(train & test) <= 5  # different images can share their upper half, as a few in the bundle do


def test_the_seed_decides_the_result():
    one, again, other = load_digits(n_train=32), load_digits(n_train=32), load_digits(n_train=32, seed=1)
    assert torch.equal(one.train[0], again.train[0])
    assert not torch.equal(one.train[0], other.train[0])


def test_wrong_numbers_are_refused():
    with pytest.raises(InvalidOption, match="n_train must be a positive integer, found 0"):
        load_digits(n_train=0)
