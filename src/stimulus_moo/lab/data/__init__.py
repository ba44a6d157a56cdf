"""Data sets: located or downloaded, verified, and loaded as tensors."""

from stimulus_moo.lab.data.attributes import load_attributes
from stimulus_moo.lab.data.celeba import CelebA
from stimulus_moo.lab.data.census import load_census
from stimulus_moo.lab.data.check import DataStatus, check_data, fetch_data, list_data
from stimulus_moo.lab.data.digits import load_digits
from stimulus_moo.lab.data.errors import DataError
from stimulus_moo.lab.data.fairness import load_adult, load_compas, load_credit
from stimulus_moo.lab.data.folders import cache_folder, data_folders, find
from stimulus_moo.lab.data.idx import read_idx
from stimulus_moo.lab.data.ltr import RankingSplits, load_ltr, load_mq2008
from stimulus_moo.lab.data.mulan import load_mulan
from stimulus_moo.lab.data.multifashion import load_fashion_plus_mnist, load_multifashion
from stimulus_moo.lab.data.multimnist import load_multimnist
from stimulus_moo.lab.data.registry import DATASETS
from stimulus_moo.lab.data.riverflow import load_riverflow
from stimulus_moo.lab.data.task_data import TaskData
from stimulus_moo.lab.data.tox21 import load_tox21

__all__ = [
    "DATASETS",
    "CelebA",
    "DataError",
    "DataStatus",
    "RankingSplits",
    "TaskData",
    "cache_folder",
    "check_data",
    "data_folders",
    "fetch_data",
    "find",
    "list_data",
    "load_adult",
    "load_attributes",
    "load_census",
    "load_compas",
    "load_credit",
    "load_digits",
    "load_fashion_plus_mnist",
    "load_ltr",
    "load_mq2008",
    "load_mulan",
    "load_multifashion",
    "load_multimnist",
    "load_riverflow",
    "load_tox21",
    "read_idx",
]
