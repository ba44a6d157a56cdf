import gzip
from itertools import islice

import numpy as np
import pytest
import torch

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import DATASETS, DataError, list_data, load_census
from stimulus_moo.lab.data.census import COLUMNS

TRAIN, TEST = (file.name for file in DATASETS["census"].files)
NUMBERS = {"age", "wage per hour", "capital gains", "capital losses", "stock dividends", "employer size"} | {
    "weeks worked",
    "instance weight",
}


def row(index: int, **values: object) -> dict[str, object]:
    fields: dict[str, object] = {name: index % 7 if name in NUMBERS else f"{name} {index % 3}" for name in COLUMNS}
    fields["marital status"] = ("Never married", "Divorced", "Widowed")[index % 3]
    fields["education"] = ("Bachelors degree(BA AB BS)", "Children", "10th grade", "Doctorate degree(PhD EdD)")[
        index % 4
    ]
    fields["income"] = "50000+." if index % 5 == 0 else "- 50000."
    return fields | values


def write(folder, train, test):
    folder.mkdir(exist_ok=True)
    for name, rows in ((TRAIN, train), (TEST, test)):
        text = "".join(", ".join(str(fields[column]) for column in COLUMNS) + "\n" for fields in rows)
        (folder / name).write_bytes(gzip.compress(text.encode()))
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "own", [row(i) for i in range(40)], [row(i) for i in range(12)])


def test_shapes_tasks_and_removed_columns(folder):
    data = load_census(folder=folder)
    assert (data.n_train, data.n_validation, data.n_test) == (36, 4, 12)
    assert data.tasks == ("income", "never married")
    assert data.train[1].shape == (36, 2)
    assert all(tensor.dtype == torch.float32 for tensor in (*data.train, *data.validation, *data.test))
    used = {name.partition("=")[0] for name in data.inputs}
    assert used == set(COLUMNS) - {"instance weight", "marital status", "income"}
    assert data.train[0].shape == (36, len(data.inputs))


def test_labels_follow_the_columns_in_the_order_of_the_tasks(folder):
    data = load_census(folder=folder, tasks=("college", "income", "never married"))
    expected = [[i % 4 in (0, 3), i % 5 == 0, i % 3 == 0] for i in range(12)]
    np.testing.assert_array_equal(data.test[1], np.array(expected, float))
    assert not any(name.startswith(("education", "income", "marital")) for name in data.inputs)
    pair = load_census(folder=folder, tasks=("college", "never married"))
    assert not any(name.startswith(("education", "income", "marital")) for name in pair.inputs)


def test_numbers_are_standardised_and_categories_are_one_hot(folder):
    data = load_census(folder=folder)
    inputs = data.train[0]
    # float32 rounding of standardised numbers
    torch.testing.assert_close(inputs[:, :7].mean(0), torch.zeros(7), atol=1e-6, rtol=0)
    torch.testing.assert_close(inputs[:, :7].std(0, correction=0), torch.ones(7), atol=1e-6, rtol=0)
    race = [place for place, name in enumerate(data.inputs) if name.startswith("race=")]
    assert (inputs[:, race].sum(1) == 1).all()


def test_a_category_that_training_lacks_gives_zeros(tmp_path):
    folder = write(tmp_path / "own", [row(i) for i in range(40)], [row(0), row(1, race="Martian")])
    data = load_census(folder=folder)
    race = [place for place, name in enumerate(data.inputs) if name.startswith("race=")]
    assert data.test[0][:, race].sum(1).tolist() == [1, 0]
    assert "race=Martian" not in data.inputs


def test_the_seed_decides_the_validation_rows(folder):
    one, again, other = (load_census(folder=folder, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.train[0], again.train[0])
    assert not torch.equal(one.validation[1], other.validation[1]) or not torch.equal(one.train[1], other.train[1])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"income": "rich"}, r"line 6, column 'income': expected '- 50000\.' or '50000\+\.', found 'rich'"),
        ({"age": "old"}, "line 6, column 'age': expected a finite number, found 'old'"),
        ({"race": "a, b"}, "line 6: expected 42 fields separated by commas, found 43"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path, values, message):
    folder = write(tmp_path / "own", [row(i) for i in range(5)] + [row(5, **values)], [row(0)])
    with pytest.raises(DataError, match=message):
        load_census(folder=folder)


def test_missing_and_other_files_are_refused(folder, tmp_path):
    with pytest.raises(DataError, match=r"census_income_1994_1995_train.*to get it, download census-income"):
        load_census(data=tmp_path)
    folder.rename(tmp_path / "census")
    with pytest.raises(DataError, match=r"expected 103,874,469 bytes of content, found .*pass their folder"):
        load_census(data=tmp_path)


@pytest.mark.parametrize(
    "wrong", [{"tasks": ("wealth",)}, {"tasks": ()}, {"tasks": "income"}, {"tasks": None}, {"seed": -1}]
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(InvalidOption, match=next(iter(wrong))):
        load_census(folder="/nowhere", **wrong)
    with pytest.raises(InvalidOption, match="validation_share"):
        load_census(folder="/nowhere", validation_share=0.0)


def test_the_first_rows_of_the_real_files(shared, tmp_path):
    real = shared("census")
    for name in (TRAIN, TEST):
        with gzip.open(real / name, "rt") as stream:
            (tmp_path / name.removesuffix(".gz")).write_text("".join(islice(stream, 4000)))
    data = load_census(folder=tmp_path, tasks=("income", "never married", "college"))
    assert (data.n_train, data.n_validation, data.n_test) == (3600, 400, 4000)
    # the shares of all rows; five standard deviations of a share of 3600 rows are below 0.042
    torch.testing.assert_close(data.train[1].mean(0), torch.tensor([0.062, 0.434, 0.148]), atol=0.042, rtol=0)
    assert {status.name: status.state for status in list_data()}["census"] == "present"
