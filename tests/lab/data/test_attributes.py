import numpy as np
import pytest
import torch

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import load_attributes
from stimulus_moo.lab.data.attribute_effects import EFFECTS
from stimulus_moo.lab.data.attribute_marks import SHAPES
from stimulus_moo.lab.data.attribute_painting import paint
from stimulus_moo.lab.data.attribute_table import ATTRIBUTES, COLOURS, MARKS, TEXTURES, TINTS
from stimulus_moo.lab.data.attributes import draw_labels


def test_it_says_that_it_is_synthetic():
    data = load_attributes(n_train=8, n_test=4)
    assert data.synthetic
    assert "synthetic" in data.name
    assert "synthetic" in data.source


def test_shapes_types_and_range():
    data = load_attributes(n_train=16, n_test=8)
    for (images, labels), n in ((data.train, 16), (data.test, 8)):
        assert images.shape == (n, 3, 32, 32)
        assert labels.shape == (n, 40)
        assert images.dtype == labels.dtype == torch.float32
        assert images.min() >= 0
        assert images.max() <= 1
        assert set(labels.unique().tolist()) == {0.0, 1.0}
    assert len(set(data.tasks)) == 40


def test_the_table_names_only_what_can_be_drawn():
    assert {effect.name for effect in (*TEXTURES, *TINTS)} == set(EFFECTS)
    assert {mark.shape for mark in MARKS} | {mark.decoy for mark in MARKS} - {""} == set(SHAPES)
    assert {mark.colour for mark in MARKS} == set(COLOURS)


@pytest.mark.parametrize("column", range(40), ids=[attribute.name for attribute in ATTRIBUTES])
def test_each_attribute_can_be_seen_and_nothing_else_changes_with_it(column):
    n = 64
    labels = draw_labels(n, np.random.default_rng(7))
    on, off = labels.copy(), labels.copy()
    on[:, column], off[:, column] = True, False
    off[: n // 2, column] = True
    with_it, without = paint(on, np.random.default_rng(8)), paint(off, np.random.default_rng(8))
    np.testing.assert_array_equal(with_it[: n // 2], without[: n // 2])
    largest = abs(with_it - without)[n // 2 :].max(axis=(1, 2, 3))
    assert np.median(largest) > 0.06  # twice the standard deviation of the sensor noise


def test_shares_and_correlations_are_those_of_the_table():
    labels = draw_labels(20_000, np.random.default_rng(0))
    shares = np.array([attribute.share for attribute in ATTRIBUTES])
    np.testing.assert_allclose(labels.mean(axis=0), shares, atol=5 * 0.5 / np.sqrt(20_000))
    correlation = np.corrcoef(labels.T) - np.eye(40)
    assert correlation.max() > 0.3
    assert correlation.min() < -0.3
    other_factor = (np.arange(40)[:, None] - np.arange(40)) % 5 != 0
    assert abs(correlation[other_factor]).max() < 5 / np.sqrt(20_000)


def test_the_seed_decides_the_result_and_train_differs_from_test():
    one, again, other = (load_attributes(n_train=8, n_test=8, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.train[0], again.train[0])
    assert not torch.equal(one.train[0], other.train[0])
    assert not torch.equal(one.train[0], one.test[0])


def test_wrong_numbers_are_refused():
    with pytest.raises(InvalidOption, match="seed must be an integer from 0 to 2\\^64 - 1, found None"):
        load_attributes(seed=None)
