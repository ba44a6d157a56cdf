import numpy as np
import pytest
from scipy.stats import spearmanr

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import DataError, check_data, load_ltr, load_mq2008
from stimulus_moo.ranking import InvalidRankingData, load_letor

from ..ltr_files import lines, write_letor


def test_features_become_labels_and_leave_the_inputs(tmp_path):
    folder = write_letor(tmp_path / "own")
    splits = load_ltr(columns=(4, 1), grades=3, files=folder)
    whole = load_letor(folder / "train.txt").X.toarray()
    assert splits.labels == ("grade", "feature 4", "feature 1")
    np.testing.assert_array_equal(splits.train.X.toarray(), whole[:, [0, 2, 3]])
    assert np.unique(splits.train.Y[:, 1:]).tolist() == [0, 1, 2]
    edges = [whole[splits.train.Y[:, 1] == grade, 4].min() for grade in (1, 2)]
    test = load_letor(folder / "test.txt").X.toarray()[:, 4]
    np.testing.assert_array_equal(splits.test.Y[:, 1], np.digitize(test, edges))  # by the training rows' edges
    assert str(folder) in splits.source


def test_data_that_is_nowhere_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match=r"rank\.train: expected in .*stimulus-moo data fetch ltr"):
        load_ltr(columns=(1,), data=tmp_path, download=False)


def test_another_file_in_place_of_a_registered_one_is_refused(tmp_path):
    folder = tmp_path / "ltr"
    folder.mkdir()
    for name in ("rank.train", "rank.test"):
        text, lengths = lines(3, seed=0, with_qid=False)
        (folder / name).write_text(text)
        (folder / f"{name}.query").write_text("\n".join(map(str, lengths)))
    with pytest.raises(DataError, match=r"rank\.train: expected 2,479,271 bytes of content, found .*data fetch ltr"):
        load_ltr(columns=(1,), data=tmp_path)
    assert check_data("ltr", tmp_path).state == "damaged"


def test_wrong_columns_are_refused(tmp_path):
    folder = write_letor(tmp_path)
    with pytest.raises(InvalidOption, match=r"columns\[0\] must be an integer of at least 0, found 'a'"):
        load_ltr(columns="a", files=folder)
    with pytest.raises(InvalidRankingData, match="column 9 does not exist: X has 5 columns"):
        load_ltr(columns=(9,), files=folder)


def test_the_lambdarank_example_itself(shared):
    shared("ltr")
    splits = load_ltr(columns=(90, 215, 16, 26))
    assert (splits.train.X.shape, splits.train.Y.shape) == ((3005, 296), (3005, 5))
    assert [len(np.unique(part.qid)) for part in (splits.train, splits.test)] == [201, 50]


def write_mq2008(folder):
    folder.mkdir(exist_ok=True)
    for part in range(1, 6):
        text, _ = lines(6, seed=part, features=46)
        (folder / f"S{part}.txt").write_text(text.replace("qid:1", f"qid:{part}1"))
    return folder


@pytest.mark.parametrize(
    ("fold", "train", "validation", "test"), [(1, "123", "4", "5"), (2, "234", "5", "1"), (4, "451", "2", "3")]
)
def test_the_folds_of_mq2008_are_the_official_ones(tmp_path, fold, train, validation, test):
    splits = load_mq2008(fold=fold, folder=write_mq2008(tmp_path))
    for part, digits in ((splits.train, train), (splits.validation, validation), (splits.test, test)):
        assert {str(qid)[0] for qid in part.qid} == set(digits)
        assert part.X.shape == (len(part.qid), 44)


def test_features_44_and_45_of_mq2008_become_labels(tmp_path):
    folder = write_mq2008(tmp_path)
    splits = load_mq2008(folder=folder, grades=3)
    assert splits.labels == ("grade", "PageRank", "inlinks")
    whole = load_letor(folder / "S5.txt").X.toarray()
    np.testing.assert_array_equal(splits.test.X.toarray(), np.delete(whole, [43, 44], axis=1))
    rank = np.argsort(whole[:, 43])
    assert (np.diff(splits.test.Y[rank, 1]) >= 0).all()
    other = load_mq2008(folder=folder, columns=(40,))
    assert other.labels == ("grade", "feature 40")


def test_wrong_folds_and_files_of_mq2008_are_refused(tmp_path):
    with pytest.raises(InvalidOption, match="fold must be 1 to 5, found 6"):
        load_mq2008(fold=6, folder=tmp_path)
    with pytest.raises(DataError, match=r"S1\.txt\.gz: expected a file of mq2008, found nothing; to get it"):
        load_mq2008(folder=tmp_path)
    write_mq2008(tmp_path / "mq2008")
    with pytest.raises(DataError, match=r"S1\.txt: expected 1,802,248 bytes of content"):
        load_mq2008(data=tmp_path)
    (tmp_path / "mq2008" / "S2.txt").write_text("no such line\n")
    with pytest.raises(InvalidRankingData, match=r"S2\.txt: expected a LETOR file"):
        load_mq2008(folder=tmp_path / "mq2008")


def test_mq2008_itself(shared):
    shared("mq2008")
    splits = load_mq2008()
    parts = (splits.train, splits.validation, splits.test)
    assert [part.X.shape for part in parts] == [(9630, 44), (2707, 44), (2874, 44)]
    assert [len(np.unique(part.qid)) for part in parts] == [471, 157, 156]
    assert np.unique(splits.train.Y[:, 0]).tolist() == [0, 1, 2]
    assert not splits.train.X[:, 42].data.any()  # feature 43 of the file


def test_the_values_of_mq2008_say_which_features_are_pagerank_and_inlinks(shared):
    part = load_letor(shared("mq2008") / "S1.txt.gz")
    queries = [part.X[part.qid == qid].toarray() for qid in np.unique(part.qid)[:70]]

    def agreement(a: int, b: int) -> float:
        """Mean rank correlation within queries of two features, counted from 1."""
        pairs = [(rows[:, a - 1], rows[:, b - 1]) for rows in queries if len(rows) >= 10]
        return np.mean([spearmanr(x, y)[0] for x, y in pairs if np.ptp(x) > 0 and np.ptp(y) > 0])

    def multiples(feature: int) -> float:
        """Share of the queries with three different values in (0, 1) in which they are multiples of one fraction."""
        columns = [np.unique(rows[:, feature - 1]) for rows in queries]
        columns = [values[(values > 0) & (values < 1)] for values in columns]
        # values have six digits, so their multiples are off by up to a millionth of the factor
        fits = [
            any(np.all(abs(values * k - np.round(values * k)) < 2e-6 * k) for k in range(1, 301))
            for values in columns
            if len(values) >= 3
        ]
        return np.mean(fits)

    assert multiples(44) == 0
    assert min(multiples(feature) for feature in (41, 42, 45, 46)) > 0.8
    assert agreement(44, 45) > 0.7 > 0.5 > agreement(44, 46)
    assert agreement(45, 17) > 0.5 > 0.2 > agreement(46, 17)
    assert min(agreement(41, 19), agreement(42, 19)) > 0.7
    assert max(agreement(44, 19), agreement(45, 19), agreement(41, 17), agreement(42, 17)) < 0
