"""Container for data sets in memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stimulus_moo.errors import InvalidBatch


@dataclass(frozen=True)
class TaskData:
    """A data set with several tasks, held in memory.

    A batch is ``tuple(tensor[index] for tensor in data.train)``: first the inputs, then the labels or
    targets.

    Attributes:
        name: the data set's name.
        train: tensors with one leading dimension in common, the number of training samples.
        test: the same tensors for the test samples.
        tasks: one name per task, in the order of the labels.
        synthetic: whether the samples are generated.
        source: origin of the data, for run records and captions.
        validation: the same tensors for the validation samples; empty if the data set has none.
        encoding: how the inputs were made, for data sets with a choice.
        inputs: names of the input columns, if they have names.

    Raises:
        InvalidBatch: the tensors of a split do not have the same length, or the training or test set holds none.

    >>> import torch
    >>> inputs, target = torch.zeros(4, 2), torch.ones(4)
    >>> data = TaskData("toy", (inputs, target), (inputs[:1], target[:1]), ("one",), True, "written by hand")
    >>> data.n_train, data.n_test
    (4, 1)
    """

    name: str
    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    tasks: tuple[str, ...]
    synthetic: bool
    source: str
    validation: tuple[Tensor, ...] = ()
    encoding: str = ""
    inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for split, tensors in (("train", self.train), ("test", self.test), ("validation", self.validation)):
            if split == "validation" and not tensors:
                continue
            if len({len(tensor) for tensor in tensors}) != 1:
                lengths = [len(tensor) for tensor in tensors]
                raise InvalidBatch(f"{split} of {self.name!r} needs tensors of one length, found lengths {lengths}")

    @property
    def n_train(self) -> int:
        """Number of training samples."""
        return len(self.train[0])

    @property
    def n_validation(self) -> int:
        """Number of validation samples."""
        return len(self.validation[0]) if self.validation else 0

    @property
    def n_test(self) -> int:
        """Number of test samples."""
        return len(self.test[0])
