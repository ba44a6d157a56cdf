"""TorchJD's aggregators, which map a Jacobian to a direction: the weighting inside is taken, or they are refused."""

import sys
from typing import Any

from stimulus_moo.errors import InvalidOption

_HOME = "torchjd.aggregation"


def without_aggregator(weighting: Any) -> Any:
    """Return the weighting inside an aggregator of TorchJD, or what was given if it is none.

    Raises:
        InvalidOption: the aggregator has no weighting that a Gramian is enough for.
    """
    kinds = type(weighting).__mro__
    if not any(kind.__name__ == "Aggregator" and kind.__module__.startswith(_HOME) for kind in kinds):
        return weighting
    inner = getattr(weighting, "gramian_weighting", None)
    if inner is not None:
        return inner
    name = type(weighting).__name__
    known = hasattr(sys.modules.get(_HOME), f"{name}Weighting")
    fix = f"pass {name}Weighting(...)" if known else "it has no weighting of its own, so choose another, say UPGrad()"
    raise InvalidOption(
        f"weighting must map an S x S Gramian to S weights, found TorchJD's aggregator {name}, which maps a Jacobian "
        f"to a direction; {fix}"
    )
