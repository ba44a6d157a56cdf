"""How the parameters move along d_t, beside every optimizer of ``torch.optim``."""

from stimulus_moo.optim.heavy_ball import HeavyBall

__all__ = ["HeavyBall"]
