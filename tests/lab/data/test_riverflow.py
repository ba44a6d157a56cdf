import numpy as np
import pytest
import torch

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import DataError, load_riverflow


@pytest.fixture
def file(tmp_path):
    generator = np.random.default_rng(0)
    rows = [[f"{value:.4f}" for value in row] for row in generator.normal(3.0, 5.0, (50, 4))]
    for row in rows:
        row.insert(1, "7")  # a constant column
    rows[3][0] = rows[9][4] = "?"
    header = "".join(f"@attribute x{index} numeric\n" for index in range(5))
    path = tmp_path / "toy.arff"
    path.write_text(f"@relation toy\n{header}@data\n" + "".join(",".join(row) + "\n" for row in rows))
    return path


def test_incomplete_rows_are_dropped_and_the_last_columns_are_targets(file):
    data = load_riverflow(file=file, targets=2, test_share=0.25)
    assert (data.n_train, data.n_test) == (36, 12)
    assert data.train[0].shape == (36, 3)
    assert data.train[1].shape == (36, 2)
    assert (data.name, data.tasks) == ("toy", ("x3", "x4"))
    assert all(tensor.dtype == torch.float32 for tensor in (*data.train, *data.test))


def test_training_rows_have_mean_0_and_deviation_1_and_a_constant_column_is_0(file):
    data = load_riverflow(file=file, targets=2)
    train = torch.cat(data.train, dim=1)
    varying = [0, 2, 3, 4]
    # float32 rounding of standardised numbers
    torch.testing.assert_close(train.mean(0), torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(train.std(0, correction=0)[varying], torch.ones(4), atol=1e-6, rtol=0)
    assert not train[:, 1].any()
    assert torch.cat(data.test, dim=1).mean(0)[varying].abs().max() > 1e-3  # test rows play no part


def test_the_seed_decides_the_split_and_no_row_is_lost(file):
    one, again, other = (load_riverflow(file=file, targets=1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.train[0], again.train[0])
    assert not torch.equal(one.train[0], other.train[0])
    assert one.n_train + one.n_test == 48


def test_too_few_columns_or_complete_rows_are_refused(file):
    with pytest.raises(DataError, match="expected more than 5 columns"):
        load_riverflow(file=file, targets=5)
    header = file.read_text().partition("@data\n")[0]
    file.write_text(header + "@data\n1,2,3,4,5\n1,2,3,4,?\n")
    with pytest.raises(DataError, match="rows without missing values for a split, found 1"):
        load_riverflow(file=file, targets=1)


@pytest.mark.parametrize("wrong", [{"targets": 0}, {"test_share": 0.0}, {"test_share": 1.0}, {"seed": -1}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(InvalidOption, match=next(iter(wrong))):
        load_riverflow(file="/nowhere", **wrong)


def test_another_file_in_place_of_rf1_is_refused(file, tmp_path):
    (tmp_path / "riverflow").mkdir()
    file.rename(tmp_path / "riverflow" / "rf1.arff")
    with pytest.raises(DataError, match=r"expected 3,019,482 bytes of content, found .*data fetch riverflow"):
        load_riverflow(data=tmp_path)


def test_rf1_itself(shared):
    shared("riverflow")
    data = load_riverflow()
    assert (data.n_train + data.n_test, data.n_test) == (9005, 1801)
    assert data.train[0].shape[1:] == (64,)
    assert data.train[1].shape[1:] == (8,)
    assert data.tasks[0] == "CHSI2_48H__0"
    assert all(tensor.isfinite().all() for tensor in (*data.train, *data.test))
