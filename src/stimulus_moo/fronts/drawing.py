"""A front drawn with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stimulus_moo import MissingDependency

if TYPE_CHECKING:
    from stimulus_moo.fronts.front import Front


def draw(front: Front, ax: Any = None) -> Any:
    """Draw two or three losses as points, more as parallel coordinates, and return the axes."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("Front.plot needs matplotlib: pip install 'stimulus-moo[lab]'") from None
    count, losses, best = len(front.names), front.losses, front.nondominated
    if ax is None:
        ax = Figure().add_subplot(projection="3d" if count == 3 else None)
    if count <= 3:
        ax.scatter(*losses[~best].T, color="0.7", label="dominated") if (~best).any() else None
        ax.scatter(*losses[best].T, color="C0", label="nondominated")
        if count == 2:
            ax.plot(*losses[best][losses[best][:, 0].argsort()].T, color="C0", linewidth=1)
        setters = (ax.set_xlabel, ax.set_ylabel, getattr(ax, "set_zlabel", None))
        for setter, name in zip(setters, front.names, strict=False):
            setter(name)
        return ax
    span = np.ptp(losses, axis=0)
    shares = (losses - losses.min(0)) / np.where(span > 0.0, span, 1.0)
    for row, is_best in zip(shares, best, strict=True):
        ax.plot(range(count), row, color="C0" if is_best else "0.7")
    ax.set_xticks(range(count), front.names)
    ax.set_ylabel("loss, from least to largest")
    return ax
