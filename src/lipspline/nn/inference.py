"""Layers of finished networks, for inference: splines with their constraint folded in, and a faster convolution.

They have no twin in `lipspline.functional`: their formulas are those of `spline`, `knots` and torch's convolution.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from lipspline._infra import checks
from lipspline.functional.knots import FreeKnots, intercepts, region_lookup
from lipspline.functional.spline import region_tables
from lipspline.kernels import overwrite_piecewise_affine, piecewise_affine
from lipspline.kernels.dispatch import wants_only_values
from lipspline.kernels.winograd import convolve, prepare, runs_winograd
from lipspline.nn.convolutions import Conv2d
from lipspline.nn.spline import LinearSpline


class FoldedSpline(nn.Module):
    r"""The same function as a `LinearSpline`, defined by its slopes, its mean knot value and its scale α.

    A spline is stored by what makes it continuous by construction, so its Lipschitz constant is the largest slope and
    no stored file can hide a jump. The intercepts of the regions are derived, and derived again after loading.

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

    def forward(self, x: Tensor, *, overwrite: bool = False) -> Tensor:
        """Evaluate the splines; with `overwrite`, in the memory of `x` where autograd is off and the kernels can.

        Only who calls the spline knows that nobody else reads `x`: see `InferenceSequential`.
        """
        checks.floating("FoldedSpline", x)
        checks.channels("FoldedSpline", x, self.channels, self.channel_dim)
        points_per_unit = self.scale * (self.regions / (2 * self.radius))
        evaluate = overwrite_piecewise_affine if overwrite and not torch.is_grad_enabled() else piecewise_affine
        return evaluate(x, self.b, self.slopes, points_per_unit, self.regions / 2, self.channel_dim)

    def extra_repr(self) -> str:
        return f"{self.channels}, regions={self.regions}, radius={self.radius:g}" + (", shared=True" * self.shared)


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


def _refresh_after_loading(layer: FoldedSpline | FreeKnotSpline, _: object) -> None:
    layer.refresh()


class InferenceConv2d(Conv2d):
    """A convolution of channels-last images that keeps the kernels as Winograd's algorithm wants them.

    They are made anew when the weight has changed. Where a derivative is wanted it is a `Conv2d` like others.
    """

    _prepared: tuple[Tensor, Tensor] | None = None

    def forward(self, input: Tensor) -> Tensor:
        if self.padding_mode == "circular":
            self._check_that_it_wraps_once(input)
        if not self._is_simple(input):
            return super().forward(input)
        if self.has_algorithm and runs_winograd(input, *self._values()):
            bias = input.new_zeros(self.out_channels) if self.bias is None else self.bias
            return convolve(input, self._transformed(), bias)
        return super().forward(_with_channels_last(input) if self.in_channels == 1 else input)

    def _is_simple(self, x: Tensor) -> bool:
        """Whether `x` is a batch of images in memory, and nobody wants derivatives or another precision."""
        tensors = (x, *self._values())
        return (
            wants_only_values(*tensors)
            and not torch.is_autocast_enabled("cpu")
            and x.ndim == 4
            and x.shape[1] == self.in_channels
            and self.weight.shape == (self.out_channels, self.in_channels // self.groups, *self.kernel_size)
            and (self.bias is None or self.bias.shape == (self.out_channels,))
        )

    def _check_that_it_wraps_once(self, x: Tensor) -> None:
        pads = self._reversed_padding_repeated_twice
        for size, pad in zip(x.shape[:-3:-1], (max(pads[:2]), max(pads[2:])), strict=True):
            if pad > size:
                raise ValueError(
                    f"A circular convolution with kernel {self.kernel_size} needs at least {pad} pixels along each "
                    f"axis, but the input has shape {tuple(x.shape)}. Use a larger image, or zero padding."
                )

    def _values(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def _transformed(self) -> Tensor:
        """The kernels as the algorithm wants them. Comparing all weights takes microseconds, and no change escapes."""
        if not self.is_prepared:
            weight = self.weight.detach()
            self._prepared = weight.clone(), prepare(weight)
        assert self._prepared is not None
        return self._prepared[1]

    @property
    def is_prepared(self) -> bool:
        """Whether the kernels that were kept would be used: weights of another precision are another weight."""
        kept = self._prepared
        return kept is not None and kept[0].dtype == self.weight.dtype and torch.equal(kept[0], self.weight)


class InferenceSequential(nn.Sequential):
    """`nn.Sequential`, except that splines write over what the convolution or dense layer before them has returned.

    Nobody else can have seen that memory: no hook looks at the two layers. A spline that is called by anyone else (by
    the user, in a slice of the row, in a container with a forward of its own) leaves its input alone.
    """

    def forward(self, input: Tensor) -> Tensor:
        before = None
        for layer in self._modules.values():
            if type(layer) is FoldedSpline and before is not None and _unseen_between(before, layer):
                input = layer(input, overwrite=True)
            else:
                input = layer(input)
            before = layer
        return input


def _unseen_between(before: nn.Module, spline: FoldedSpline) -> bool:
    """Whether `before` returns a new tensor that only `spline` gets to see."""
    if type(before) not in (InferenceConv2d, nn.Linear) or "forward" in vars(before):
        return False
    return not (before._forward_hooks or spline._forward_pre_hooks or spline._forward_hooks or _has_any_global_hook())


def _with_channels_last(x: Tensor) -> Tensor:
    """Gray images with strides that say channels last. Both orders are one in memory, but torch goes by the strides."""
    images, _, height, width = x.shape
    return x.contiguous().as_strided((images, 1, height, width), (height * width, 1, width, 1))
