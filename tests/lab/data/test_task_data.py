from dataclasses import FrozenInstanceError

import pytest
import torch

from stimulus_moo.errors import InvalidBatch
from stimulus_moo.lab.data import TaskData


def test_splits_need_tensors_of_one_length():
    good, short = (torch.zeros(3), torch.zeros(3, 2)), (torch.zeros(3), torch.zeros(2))
    assert TaskData("toy", good, good, ("a",), True, "here").n_test == 3
    for train, test, name in ((short, good, "train"), (good, short, "test"), (good, (), "test")):
        with pytest.raises(InvalidBatch, match=f"{name} of 'toy' needs tensors of one length"):
            TaskData("toy", train, test, ("a",), True, "here")


def test_a_validation_set_is_optional_and_checked_like_the_others():
    good, short = (torch.zeros(3), torch.zeros(3, 2)), (torch.zeros(3), torch.zeros(2))
    assert TaskData("toy", good, good, ("a",), True, "here").n_validation == 0
    assert TaskData("toy", good, good, ("a",), True, "here", good).n_validation == 3
    with pytest.raises(InvalidBatch, match="validation of 'toy' needs tensors of one length"):
        TaskData("toy", good, good, ("a",), True, "here", short)


def test_it_cannot_be_changed():
    data = TaskData("toy", (torch.zeros(1),), (torch.zeros(1),), ("a",), True, "here")
    with pytest.raises(FrozenInstanceError):
        data.name = "other"
