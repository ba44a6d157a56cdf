import gzip

import pytest
import torch

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import DataError, load_adult, load_compas, load_credit

LOADERS = {"adult": load_adult, "compas": load_compas, "credit": load_credit}
ADULT = "{age}, {work}, 77516, {education}, 13, {married}, ?, Husband, White, {sex}, 0, 0, 40, ?, {income}\n"
COMPAS = "sex,age,days_b_screening_arrest,c_jail_in,c_jail_out,is_recid,score_text,c_charge_degree,race,age_cat"
COMPAS_HEADER = f"id,{COMPAS},priors_count,decile_score,two_year_recid,priors_count\n"
PAYMENTS = [f"PAY_{month}" for month in (0, 2, 3, 4, 5, 6)]
AMOUNTS = [f"{kind}_AMT{month}" for kind in ("BILL", "PAY") for month in range(1, 7)]
ONE_HOT = [f"EDUCATION_{i}" for i in range(7)] + [f"MARRIAGE_{i}" for i in range(4)]
CREDIT = ["ID", "LIMIT_BAL", "SEX", "AGE", *PAYMENTS, *AMOUNTS, "default-payment-next-month", *ONE_HOT]


def adult_row(i: int, stop: str = "", **values: object) -> str:
    fields = {
        "age": 20 + i,
        "work": ("Private", "?", "State-gov")[i % 3],
        "education": ("9th", "10th", "Some-college", "HS-grad")[i % 4],
        "married": ("Married-AF-spouse", "Divorced")[i % 2],
        "sex": ("Male", "Female")[i % 2],
        "income": ("<=50K", ">50K")[i % 5 == 0] + stop,
    }
    return ADULT.format(**(fields | values))


def write_adult(folder, last: str = ""):
    (folder / "adult.data").write_text("".join(adult_row(i) for i in range(30)) + last + "\n")
    (folder / "adult.test").write_text("|a comment\n" + "".join(adult_row(i, ".") for i in range(30, 50)) + "\n")


def compas_row(i: int, days: object = 0, recid: int = 0, score: str = "Low", degree: str = "F", out: str = "") -> str:
    group, race = ("25 - 45", "Less than 25")[i % 2], ("Other", "Asian", "Hispanic")[i % 3]
    out = out or f"2013-08-15 0{i % 8}:30:00"
    sex = ("Male", "Female")[i % 4 == 0]
    return (
        f"{i},{sex},{20 + i},{days},2013-08-14 00:00:00,{out},{recid},{score},{degree},{race},{group},{i},3,{i % 2},9\n"
    )


def write_compas(folder, last: str = ""):
    dropped = (compas_row(0, 31), compas_row(1, ""), compas_row(2, -31, out="?"), compas_row(3, recid=-1))
    dropped = (*dropped, compas_row(4, score="N/A"), compas_row(5, degree="O"))
    text = COMPAS_HEADER + "".join(dropped) + "".join(compas_row(i) for i in range(40)) + last
    (folder / "compas-scores-two-years.csv").write_text(text)


def write_credit(folder, sex: int = 1):
    lines = [",".join(CREDIT)]
    for i in range(30):
        fields = {name: i * (place + 1) % 11 for place, name in enumerate(CREDIT)} | dict.fromkeys(ONE_HOT, i % 2)
        fields |= dict.fromkeys(PAYMENTS, i % 3 - 1)
        fields |= {"ID": i + 1, "SEX": i % 2 if i < 29 else sex, "default-payment-next-month": int(i % 4 == 0)}
        lines.append(",".join(str(fields[name]) for name in CREDIT))
    (folder / "credit-default.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))


WRITERS = {"adult": write_adult, "compas": write_compas, "credit": write_credit}


def column(data, name: str) -> torch.Tensor:
    whole = torch.cat([data.train[0], data.validation[0], data.test[0]])
    return whole[:, data.inputs.index(name)]


@pytest.mark.parametrize(("name", "rows"), [("adult", 50), ("compas", 40), ("credit", 30)])
def test_split_types_and_scale(tmp_path, name, rows):
    WRITERS[name](tmp_path)
    data = LOADERS[name](folder=tmp_path)
    assert (data.n_train, data.n_validation, data.n_test) == (rows * 7 // 10, rows // 10, rows // 5)
    inputs, label, sensitive = data.train
    assert (inputs.dtype, label.dtype, sensitive.dtype) == (torch.float32, torch.float32, torch.int64)
    assert inputs.shape[1] == len(data.inputs)
    assert set(sensitive.tolist()) == set(label.tolist()) == {0, 1}
    # float32 rounding of standardised numbers
    torch.testing.assert_close(inputs.mean(0), torch.zeros(inputs.shape[1]), atol=1e-5, rtol=0)
    deviation = inputs.std(0, correction=0)
    varying = deviation > 0
    torch.testing.assert_close(deviation[varying], torch.ones(int(varying.sum())), atol=1e-5, rtol=0)
    again, other = (LOADERS[name](folder=tmp_path, seed=seed) for seed in (0, 1))
    assert torch.equal(inputs, again.train[0])
    assert not torch.equal(inputs, other.train[0])


def test_adult_merges_categories_and_replaces_unknown_ones(tmp_path):
    write_adult(tmp_path)
    data = load_adult(folder=tmp_path)
    groups = [name for name in data.inputs if name.startswith(("workclass", "education=", "marital", "occ", "native"))]
    assert groups == [
        *("workclass=Private", "workclass=State-gov"),
        *("education=HS-grad", "education=no diploma", "education=some college"),
        *("marital-status=married", "marital-status=not married"),
        *("occupation=Prof-specialty", "native-country=United-States"),
    ]
    label, women = (torch.cat([data.train[k], data.validation[k], data.test[k]]) for k in (1, 2))
    assert (int(label.sum()), int(women.sum())) == (10, 25)  # both files, with and without the full stop
    assert not any(name.startswith(("sex", "income")) for name in data.inputs)


def test_compas_drops_the_rows_of_propublicas_filter_and_counts_hours(tmp_path):
    write_compas(tmp_path)
    data = load_compas(folder=tmp_path)
    assert data.inputs[:6] == (
        *("age", "priors_count", "days_b_screening_arrest", "decile_score", "is_recid", "length_of_stay"),
    )
    assert {name.partition("=")[0] for name in data.inputs[6:]} == {"c_charge_degree", "race", "age_cat", "score_text"}
    stays, ages = column(data, "length_of_stay"), column(data, "age")
    order = torch.argsort(ages)  # rows in the order of the file: the stay is 24 hours and a half, 25 and a half, ...
    steps = stays[order][1:8] - stays[order][:7]
    torch.testing.assert_close(steps, steps[0].expand(7), atol=1e-5, rtol=0)


def test_credit_has_the_columns_of_cosmos(tmp_path):
    write_credit(tmp_path)
    data = load_credit(folder=tmp_path)
    assert data.inputs[:3] == ("ID", "LIMIT_BAL", "AGE")
    assert len(data.inputs) == 15 + 11 + 6 * 3
    assert "PAY_0=-1.0" in data.inputs


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adult", {"last": adult_row(1, sex="Other")}, "line 31, column 'sex': expected 'Female' or 'Male', found"),
        ("adult", {"last": adult_row(1, income="much")}, "line 31, column 'income': expected '<=50K' or "),
        ("adult", {"last": adult_row(1, age="?")}, r"line 31, column 'age': expected a finite number, found '\?'"),
        ("compas", {"last": compas_row(1, out="today")}, "line 48, column 'c_jail_out': expected a date with time"),
        ("compas", {"last": compas_row(1).replace(",1,9\n", ",2,9\n")}, "line 48, column 'two_year_recid': expected 0"),
        ("credit", {"sex": 2}, "line 31, column 'SEX': expected 0 or 1, found 2.0"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path, name, options, message):
    WRITERS[name](tmp_path, **options)
    with pytest.raises(DataError, match=message):
        LOADERS[name](folder=tmp_path)


def test_too_few_rows_are_refused(tmp_path):
    (tmp_path / "compas-scores-two-years.csv").write_text(COMPAS_HEADER + compas_row(1))
    with pytest.raises(DataError, match="expected at least 10 rows to split, found 1"):
        load_compas(folder=tmp_path)


@pytest.mark.parametrize("name", LOADERS)
def test_other_files_and_wrong_seeds_are_refused(tmp_path, name):
    (tmp_path / "fairness").mkdir()
    WRITERS[name](tmp_path / "fairness")
    with pytest.raises(DataError, match=r"bytes of content, found .*for files of your own pass their folder"):
        LOADERS[name](data=tmp_path, download=False)
    with pytest.raises(InvalidOption, match="seed"):
        LOADERS[name](seed=-1)


@pytest.mark.parametrize(
    ("name", "rows", "columns", "positive", "women"),
    [("adult", 48_842, 88, 11_687, 16_192), ("compas", 6_172, 20, 2_809, 1_175), ("credit", 30_000, 90, 6_636, 18_112)],
)
def test_the_real_files_have_the_columns_of_cosmos(shared, name, rows, columns, positive, women):
    shared("fairness")
    data = LOADERS[name]()
    assert (data.n_train + data.n_validation + data.n_test, data.train[0].shape[1]) == (rows, columns)
    totals = [int(sum(part[k].sum() for part in (data.train, data.validation, data.test))) for k in (1, 2)]
    assert totals == [positive, women]
    assert all(part[0].isfinite().all() for part in (data.train, data.validation, data.test))
