import numpy as np
import pytest
import torch

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import DataError, load_mulan, load_riverflow


@pytest.fixture
def file(tmp_path):
    rows = [[f"{value:.4f}" for value in row] for row in np.random.default_rng(0).normal(3.0, 5.0, (50, 5))]
    rows[3][0] = rows[9][4] = rows[20][1] = "?"
    return write(tmp_path / "toy.arff", rows)


def write(path, rows):
    header = "".join(f"@attribute x{index} numeric\n" for index in range(len(rows[0])))
    path.write_text(f"@relation toy\n{header}@data\n" + "".join(",".join(row) + "\n" for row in rows))
    return path


def test_the_last_columns_are_targets_and_incomplete_rows_are_dropped(file):
    data = load_mulan(file, targets=2, test_share=0.2, validation_share=0.1)
    assert (data.n_train, data.n_validation, data.n_test) == (33, 5, 9)
    assert data.train[0].shape == (33, 3)
    assert data.validation[1].shape == (5, 2)
    assert (data.name, data.tasks) == ("toy", ("x3", "x4"))


def test_without_validation_it_is_the_loader_of_riverflow(file):
    data, flows = load_mulan(file, targets=2, validation_share=0), load_riverflow(file=file, targets=2)
    assert data.validation == ()
    for a, b in zip((*data.train, *data.test), (*flows.train, *flows.test), strict=True):
        assert torch.equal(a, b)


def test_missing_inputs_become_the_mean_of_the_training_rows(file):
    data = load_mulan(file, targets=2, missing="mean")
    whole = torch.cat((data.train[0], data.validation[0], data.test[0]))
    assert len(whole) == 49  # only the row with a missing target is gone
    assert int((whole == 0).sum()) == 2
    # float32 rounding of standardised numbers
    torch.testing.assert_close(data.train[0].mean(0), torch.zeros(3), atol=1e-5, rtol=0)


def test_a_column_without_numbers_is_named(tmp_path):
    path = write(tmp_path / "toy.arff", [["?", "1", f"{i}"] for i in range(20)])
    with pytest.raises(DataError, match="expected numbers in column 1 of the training rows, found none; remove"):
        load_mulan(path, targets=1, missing="mean")
    with pytest.raises(DataError, match="rows without missing values for a split, found 0"):
        load_mulan(path, targets=1)
    with pytest.raises(DataError, match="expected more than 3 columns"):
        load_mulan(path, targets=3)


@pytest.mark.parametrize(
    "wrong", [{"targets": 0}, {"test_share": 1.0}, {"validation_share": -0.1}, {"missing": "median"}, {"seed": -1}]
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(InvalidOption, match=next(iter(wrong))):
        load_mulan("/nowhere", **({"targets": 2} | wrong))


def test_shares_must_leave_rows_for_training():
    with pytest.raises(InvalidOption, match=r"test_share \+ validation_share must be below 1, found 0.5 \+ 0.5"):
        load_mulan("/nowhere", targets=1, test_share=0.5, validation_share=0.5)
