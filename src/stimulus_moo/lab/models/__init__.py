"""Models of the experiments.

They are initialized from torch's global generator: call ``torch.manual_seed`` before building one.
"""

from stimulus_moo.lab.models.heads import MultiHead, TupleHeads
from stimulus_moo.lab.models.lenet import LeNet
from stimulus_moo.lab.models.linear import LinearModel
from stimulus_moo.lab.models.mlp import TanhMLP
from stimulus_moo.lab.models.resnet import ResNet18, ResNet18Trunk
from stimulus_moo.lab.models.torchvision_weights import load_torchvision_weights

__all__ = [
    "LeNet",
    "LinearModel",
    "MultiHead",
    "ResNet18",
    "ResNet18Trunk",
    "TanhMLP",
    "TupleHeads",
    "load_torchvision_weights",
]
