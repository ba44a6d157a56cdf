"""The modules of a model, listed once: walking a model takes longer than a step of a small one needs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

MODULE_NAMES = frozenset(vars(nn.Module()))  # attributes of every module


class ModuleTree:
    """The modules and parameters of a model, each once, in the order of ``model.modules()``.

    ``update`` notices replaced or added ones; it is called at the beginning of every step.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> tree = ModuleTree(model)
    >>> model[1] = nn.Tanh()
    >>> tree.update()
    >>> [type(module).__name__ for module in tree.modules], len(tree.parameters)
    (['Sequential', 'Linear', 'Tanh'], 2)
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules: list[nn.Module] = []
        self.parameters: list[Tensor] = []
        self._dicts: list[dict[str, Any]] = []  # of the modules and parameters in each module
        self._contents: list[int] = []  # their values by identity
        self._kept: list[object] = []  # the values, so that no identity is used again
        self.update()

    def update(self) -> None:
        """List them anew where something has changed."""
        if self._dicts and [id(value) for one in self._dicts for value in one.values()] == self._contents:
            return
        self.modules = list(self.model.modules())
        found = dict.fromkeys(p for module in self.modules for p in module._parameters.values() if p is not None)
        self.parameters = list(found)
        self._dicts = [one for module in self.modules for one in (module._modules, module._parameters)]
        self._kept = [value for one in self._dicts for value in one.values()]
        self._contents = [*map(id, self._kept)]
