"""Splines with knots anywhere as a layer for inference: what `sparsify` leaves of a learned spline."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.functional.knots import FreeKnots, intercepts, region_lookup


class FreeKnotSpline(nn.Module):
    r"""One linear spline per channel with its own knots, defined by knots, slopes and its first intercept.

    It is stored by what makes it continuous by construction, so its Lipschitz constant is the largest slope. Channels
    with fewer knots than others repeat their last one, where the slope does not change any more.

    Do not train it, and prefer the uniform grid of `LinearSpline` where speed matters: a region is found here by binary
    search, there by one multiplication.

    Args:
        channels: size C of the channel dimension.
        knots: number of knots that the layer has room for, at least 1.
        shared: one spline for all channels.
        channel_dim: 1, or -1 for inputs of shape (..., C).

    Example:
        >>> relu = FreeKnots(torch.tensor([0.0]), torch.tensor([0.0, 1.0]), torch.tensor(0.0))
        >>> line = FreeKnots(torch.tensor([]), torch.tensor([0.5]), torch.tensor(1.0))
        >>> FreeKnotSpline.from_splines([relu, line])(torch.tensor([[-2.0, -2.0]]))
        tensor([[0., 0.]])
    """

    knots: Tensor
    slopes: Tensor
    intercept: Tensor
    b: Tensor

    def __init__(self, channels: int, *, knots: int, shared: bool = False, channel_dim: int = 1):
        super().__init__()
        self.channels = checks.at_least("channels", channels, 1)
        checks.at_least("knots", knots, 1)
        self.shared = shared
        self.channel_dim = channel_dim
        rows = 1 if shared else channels
        self.register_buffer("knots", torch.zeros(rows, knots))
        self.register_buffer("slopes", torch.ones(rows, knots + 1))
        self.register_buffer("intercept", torch.zeros(rows))
        self.register_buffer("b", torch.zeros(rows, knots + 1), persistent=False)
        self.register_load_state_dict_post_hook(_refresh_after_loading)

    @classmethod
    def from_splines(
        cls, splines: Sequence[FreeKnots], *, channels: int | None = None, channel_dim: int = 1
    ) -> "FreeKnotSpline":
        """A layer of one spline per channel, or of one spline shared by `channels` channels."""
        room = max(1, max(spline.knots.numel() for spline in splines))
        layer = cls(channels or len(splines), knots=room, shared=channels is not None, channel_dim=channel_dim)
        padded = [_padded(spline, room) for spline in splines]
        layer.knots, layer.slopes, layer.intercept = (torch.stack(parts) for parts in zip(*padded, strict=True))
        return layer.refresh()

    def splines(self) -> FreeKnots:
        """The splines `(C, ·)`, or `(1, ·)` if shared."""
        return FreeKnots(self.knots, self.slopes, self.intercept)

    @torch.no_grad()
    def refresh(self) -> "FreeKnotSpline":
        """Derive the intercepts of the regions from what defines the splines."""
        self.b = intercepts(FreeKnots(*(part.double() for part in self.splines()))).to(self.slopes)
        return self

    def _apply(self, fn, recurse=True):
        """Change dtype or device, and derive the intercepts again: cast, they would make the splines jump."""
        return super()._apply(fn, recurse).refresh()

    def forward(self, x: Tensor) -> Tensor:
        checks.floating("FreeKnotSpline", x)
        checks.channels("FreeKnotSpline", x, self.channels, self.channel_dim)
        return region_lookup(x, self.knots, self.b, self.slopes, self.channel_dim)

    def extra_repr(self) -> str:
        return f"{self.channels}, knots={self.knots.shape[-1]}" + (", shared=True" * self.shared)


def _padded(spline: FreeKnots, room: int) -> FreeKnots:
    """The same spline with `room` knots."""
    missing = room - spline.knots.numel()
    last = spline.knots[-1:] if spline.knots.numel() else spline.slopes.new_zeros(1)
    return FreeKnots(
        torch.cat([spline.knots, last.expand(missing)]),
        torch.cat([spline.slopes, spline.slopes[-1:].expand(missing)]),
        spline.intercept,
    )


def _refresh_after_loading(layer: FreeKnotSpline, _: object) -> None:
    layer.refresh()
