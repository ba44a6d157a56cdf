"""How the parameters move along d_t, beside every optimizer of ``torch.optim``."""

from stimulus_moo.optim.heavy_ball import HeavyBall
from stimulus_moo.optim.safeguard import Safeguard
from stimulus_moo.optim.smoothness_lr import SmoothnessLR

__all__ = ["HeavyBall", "Safeguard", "SmoothnessLR"]
