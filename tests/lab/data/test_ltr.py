import numpy as np
import pytest

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import DataError, check_data, load_ltr
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
