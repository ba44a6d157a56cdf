from pathlib import Path

import pytest

from stimulus_moo.errors import InvalidOption, MissingDependency
from stimulus_moo.lab.data import DATASETS, DataError, cache_folder, data_folders, find
from stimulus_moo.lab.data.dependencies import optional
from stimulus_moo.lab.data.folders import member
from stimulus_moo.lab.data.registry import DataFile, dataset

from .conftest import write_mnist_layout


def test_an_explicit_folder_comes_before_the_variable_and_the_cache_last(tmp_path, monkeypatch, own_cache):
    explicit, named = tmp_path / "explicit", tmp_path / "named"
    explicit.mkdir()
    named.mkdir()
    assert data_folders() == [own_cache]
    monkeypatch.setenv("STIMULUS_MOO_DATA", str(named))
    assert data_folders() == [named, own_cache]
    assert data_folders(explicit) == [explicit, own_cache]


def test_a_folder_that_does_not_exist_is_refused_with_who_named_it(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="--data names"):
        data_folders(tmp_path / "none")
    monkeypatch.setenv("STIMULUS_MOO_DATA", str(tmp_path / "none"))
    with pytest.raises(DataError, match="STIMULUS_MOO_DATA names"):
        data_folders()


def test_without_the_variable_the_cache_is_the_platform_one(monkeypatch):
    monkeypatch.delenv("STIMULUS_MOO_CACHE")
    assert cache_folder().parts[-1] in ("stimulus-moo", "Cache")


def test_find_prefers_the_explicit_folder_and_falls_back_to_the_cache(tmp_path, own_cache):
    write_mnist_layout(own_cache / "mnist")
    assert find("mnist", tmp_path) == own_cache / "mnist"
    write_mnist_layout(tmp_path / "mnist", packed=False)
    assert find("mnist", tmp_path) == tmp_path / "mnist"


def test_a_named_folder_with_only_some_files_is_refused(tmp_path):
    folder = write_mnist_layout(tmp_path / "mnist")
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz: expected beside the others.*data fetch mnist"):
        find("mnist", tmp_path)


def test_unknown_and_built_in_names_are_refused():
    with pytest.raises(InvalidOption, match="unknown data set 'mnits'; known are mnist, riverflow"):
        find("mnits")
    with pytest.raises(InvalidOption, match="built in"):
        find("digits")


def test_a_gzipped_name_also_finds_the_unpacked_file(tmp_path):
    (tmp_path / "a").touch()
    assert member(tmp_path, DataFile("a.gz")) == tmp_path / "a"
    assert member(tmp_path, DataFile("b.gz")) is None


def test_a_plain_name_also_finds_the_gzipped_file(tmp_path):
    (tmp_path / "a.csv.gz").touch()
    assert member(tmp_path, DataFile("a.csv")) == tmp_path / "a.csv.gz"


def test_the_registry_is_complete():
    for entry in DATASETS.values():
        assert entry.origin
        assert entry.licence
        assert entry.by_hand
        for file in entry.files:
            assert Path(file.name).name == file.name
            if file.urls:
                assert all(url.startswith("https://") for url in file.urls)
                assert len(file.download_sha256) == len(file.sha256) == 64
                assert file.download_size > 0
    assert dataset("celeba").files[0].urls == ()


def test_a_missing_package_says_how_to_install_it():
    with pytest.raises(MissingDependency, match=r"'no_such_package': pip install 'stimulus-moo\[lab\]'"):
        optional("no_such_package.part")
