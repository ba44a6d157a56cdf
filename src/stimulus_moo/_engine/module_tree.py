"""The modules of a model, listed once: walking a model takes longer than a step of a small one needs."""

from __future__ import annotations

from torch import Tensor, nn


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
        self._children: list[list[nn.Module | None]] = []
        self.update()

    def update(self) -> None:
        """List them anew where something has changed."""
        if not self._is_current():
            self.modules = list(self.model.modules())
            self._children = [list(module._modules.values()) for module in self.modules]
        found: dict[Tensor, None] = {}
        for module in self.modules:
            if module._parameters:
                found.update(dict.fromkeys(p for p in module._parameters.values() if p is not None))
        self.parameters = list(found)

    def _is_current(self) -> bool:
        for module, children in zip(self.modules, self._children, strict=True):
            if (module._modules or children) and (
                len(module._modules) != len(children)
                or any(child is not known for child, known in zip(module._modules.values(), children, strict=True))
            ):
                return False
        return bool(self.modules)
