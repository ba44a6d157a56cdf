import gzip

import numpy as np
import pytest

from stimulus_moo.errors import InvalidOption
from stimulus_moo.lab.data import DATASETS, DataError, check_data, fetch_data, list_data

from .conftest import write_mnist_layout


def states(folder) -> dict[str, str]:
    return {status.name: status.state for status in list_data(folder)}


def test_an_empty_folder_has_nothing_but_the_built_in_sets(tmp_path):
    found = states(tmp_path)
    assert list(found) == list(DATASETS)
    assert {name for name, state in found.items() if state == "built in"} == {"digits", "attributes"}
    assert {state for name, state in found.items() if name not in ("digits", "attributes")} == {"missing"}


def test_wrong_content_is_damaged_at_a_quick_look(tmp_path):
    write_mnist_layout(tmp_path / "mnist")
    status = list_data(tmp_path)[0]
    assert (status.name, status.state, status.folder) == ("mnist", "damaged", tmp_path / "mnist")
    assert len(status.problems) == 4
    assert "expected 47,040,016 bytes of content, found 23,536" in status.problems[0]
    assert "data fetch mnist" in status.how_to_get


def test_content_of_the_right_size_but_wrong_bytes_is_found_by_check_only(tmp_path):
    folder = tmp_path / "ltr"
    folder.mkdir()
    for file in DATASETS["ltr"].files:
        (folder / file.name).write_bytes(bytes(file.size))
    assert states(tmp_path)["ltr"] == "present"
    status = check_data("ltr", tmp_path)
    assert status.state == "damaged"
    assert "expected content with sha256" in status.problems[0]


def test_a_missing_file_among_others_is_damage(tmp_path):
    folder = write_mnist_layout(tmp_path / "mnist")
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    assert any("t10k-images" in line and "found nothing" in line for line in check_data("mnist", tmp_path).problems)


def test_a_truncated_gzip_file_is_damage(tmp_path):
    folder = write_mnist_layout(tmp_path / "mnist")
    path = folder / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(np.random.default_rng(0).bytes(10_008))[:-9])
    assert any("truncated or damaged" in line for line in check_data("mnist", tmp_path).problems)


def test_what_cannot_be_downloaded_says_how_to_get_it():
    with pytest.raises(DataError, match=r"celeba cannot be downloaded: to get it, get img_align_celeba\.zip"):
        fetch_data("celeba")


def test_unknown_names_are_refused():
    for act in (check_data, fetch_data):
        with pytest.raises(InvalidOption, match="unknown data set 'minst'"):
            act("minst")


@pytest.mark.parametrize(
    "name", ["mnist", "riverflow", "ltr", "fashion-mnist", "adult", "compas", "credit", "tox21", "mq2008"]
)
def test_the_shared_files_are_the_registered_ones(shared, name):
    folder = shared(DATASETS[name].folder)
    status = check_data(name)
    assert (status.state, status.problems, status.folder) == ("present", (), folder)
    assert states(None)[name] == "present"
