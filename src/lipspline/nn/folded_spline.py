"""A learned spline whose constraint is folded in: slopes, one level and a scale per channel, for inference."""

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.functional.spline import region_tables
from lipspline.kernels import overwrite_piecewise_affine, piecewise_affine
from lipspline.nn.linear_spline import LinearSpline


class FoldedSpline(nn.Module):
    r"""The same function as a `LinearSpline`, defined by its slopes, its mean knot value and its scale α.

    A spline is stored by what makes it continuous by construction, so its Lipschitz constant is the largest slope and
    no stored file can hide a jump. The intercepts of the regions are derived, and derived again after loading.

    With `overwrite` set it writes its result over its input where autograd is off, as `nn.ReLU(inplace=True)` does:
    for layers whose input nobody else reads.

    Do not train it: use `LinearSpline`.
    """

    b: Tensor
    slopes: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, channels: int, *, regions: int, radius: float, shared: bool = False, channel_dim: int = 1):
        super().__init__()
        self.channels = checks.at_least("channels", channels, 1)
        self.regions = checks.at_least("regions", regions, 2)
        self.radius = checks.positive("radius", radius)
        self.shared = shared
        self.channel_dim = channel_dim
        self.overwrite = False
        rows = 1 if shared else channels
        self.register_buffer("slopes", torch.ones(rows, regions))
        self.register_buffer("mean", torch.zeros(rows))
        self.register_buffer("scale", torch.ones(rows))
        self.register_buffer("b", torch.zeros(rows, regions), persistent=False)
        self.register_load_state_dict_post_hook(_refresh_after_loading)

    @classmethod
    @torch.no_grad()
    def from_spline(cls, spline: LinearSpline) -> "FoldedSpline":
        """Fold the constraint and the logarithm of the scale into buffers."""
        folded = cls(
            spline.channels,
            regions=spline.regions,
            radius=spline.radius,
            shared=spline.shared,
            channel_dim=spline.channel_dim,
        )
        slopes, mean = spline.constrained()
        folded.slopes, folded.mean, folded.scale = slopes.clone(), mean.clone(), spline.log_scale.exp().to(slopes)
        return folded.refresh()

    @torch.no_grad()
    def refresh(self) -> "FoldedSpline":
        """Derive the intercepts from slopes, mean and scale."""
        exact = (self.slopes.double(), self.mean.double(), self.radius, self.scale.double())
        self.b = region_tables(*exact)[0].to(self.slopes)
        return self

    def _apply(self, fn, recurse=True):
        """Change dtype or device, and derive the intercepts again: cast, they would make the spline jump."""
        return super()._apply(fn, recurse).refresh()

    def forward(self, x: Tensor) -> Tensor:
        checks.floating("FoldedSpline", x)
        checks.channels("FoldedSpline", x, self.channels, self.channel_dim)
        points_per_unit = self.scale * (self.regions / (2 * self.radius))
        evaluate = overwrite_piecewise_affine if self.overwrite and not torch.is_grad_enabled() else piecewise_affine
        return evaluate(x, self.b, self.slopes, points_per_unit, self.regions / 2, self.channel_dim)

    def extra_repr(self) -> str:
        return f"{self.channels}, regions={self.regions}, radius={self.radius:g}" + (", shared=True" * self.shared)


def _refresh_after_loading(spline: FoldedSpline, _: object) -> None:
    spline.refresh()
