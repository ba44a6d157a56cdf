import numpy as np
import pandas
import pytest

from stimulus_moo.lab.data.encoding import encode, seen_categories, split_rows, standardise


def test_splits_are_disjoint_complete_and_decided_by_the_seed():
    parts = split_rows(101, validation=0.1, test=0.2, seed=3)
    assert [len(part) for part in parts] == [71, 10, 20]
    assert sorted(np.concatenate(parts)) == list(range(101))
    again, other = (split_rows(101, validation=0.1, test=0.2, seed=seed) for seed in (3, 4))
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))
    assert any((a != b).any() for a, b in zip(parts, other, strict=True))


@pytest.mark.parametrize("kind", ["str", "category"])
def test_categories_not_seen_in_training_give_zeros(kind):
    frame = pandas.DataFrame({"n": [1.0, 2.0, 3.0], "c": ["b", "a", "z"]}).astype({"c": kind})
    categories = seen_categories(frame.iloc[:2], ["c"])
    assert categories == {"c": ["a", "b"]}
    np.testing.assert_array_equal(encode(frame, ["n"], categories), [[1, 0, 1], [2, 1, 0], [3, 0, 0]])


def test_standardising_uses_the_training_rows_and_the_chosen_columns():
    train, test = np.array([[0, 5, 7], [2, 5, 9]], np.float32), np.array([[4, 6, 1]], np.float32)
    standardise(train, test, columns=2)
    np.testing.assert_array_equal(train, [[-1, 0, 7], [1, 0, 9]])
    np.testing.assert_array_equal(test, [[3, 1, 1]])  # the constant column is only shifted
