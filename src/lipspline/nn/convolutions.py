"""Convolutions with a given Lipschitz constant: plain torch layers whose kernel is parametrized [lip_linear_layers]."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipspline._infra import checks
from lipspline.functional.convolutions import (
    bcop_factors,
    bcop_kernel,
    circular_convolution,
    circular_convolution_adjoint,
    conv_norms_upper,
)
from lipspline.functional.matrices import Method, orthonormalize
from lipspline.kernels.winograd import convolution, learns_winograd
from lipspline.nn.blocks import InvertibleDownsampling
from lipspline.nn.matrices import INITS, AlmostOrthogonal, Constraint, Init, Orthonormal, Spectral, check_method

PADDING_MODES = ("zeros", "circular")
FEWEST = 16
"""Channels, in and out, from which Winograd's algorithm pays."""
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d
Kind = Literal["orthogonal", "spectral", "aol"]


class Conv2d(nn.Conv2d):
    """`nn.Conv2d`, except that 3 x 3 kernels with zeros around the image run Winograd's algorithm, gradients too.

    Where the C kernels do not run, a compiler looks on or transforms of torch want more than a gradient, it is torch's
    convolution; both round differently in the last bits. Results are channels last.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.is_winograd(input, weight, bias) and learns_winograd(input, weight, bias):
            return convolution(input, weight, bias)
        return super()._conv_forward(input, weight, bias)

    @property
    def has_algorithm(self) -> bool:
        """Whether Winograd's algorithm computes this convolution, on processors that can run it."""
        return (
            self.kernel_size == (3, 3)
            and self.padding in ("same", (1, 1))
            and self.padding_mode == "zeros"
            and self.stride == self.dilation == (1, 1)
            and self.groups == 1
            and min(self.in_channels, self.out_channels) >= FEWEST
        )

    def is_winograd(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether the algorithm computes this layer of a batch of images, all of the shapes that the layer has."""
        return (
            self.has_algorithm
            and x.ndim == 4
            and x.shape[1] == self.in_channels
            and weight.shape == (self.out_channels, self.in_channels, 3, 3)
            and (bias is None or bias.shape == (self.out_channels,))
            and not torch.is_autocast_enabled("cpu")
        )


class OrthogonalConvolution(Constraint):
    r"""Keep a kernel (c_out, c_in, k[, k]) at `lipschitz` times an orthogonal convolution (BCOP) [lip_linear_layers].

    The raw parameters are `original0`, the matrix (c_out, c_in), and `original1`, the bases of the projections,
    (k-1, axes, n, n // 2) with n = max(c_out, c_in), where there are any; see
    `lipspline.functional.convolutions.bcop_kernel`. A weight that is assigned must be a product of such factors; see
    `bcop_factors` there. With groups each has factors of its own, along a dimension in front.

    Args:
        method: see `lipspline.functional.matrices.orthonormalize`.
        lipschitz: target constant.
        groups: of the convolution.
    """

    def __init__(self, method: Method = "qr", lipschitz: float = 1.0, groups: int = 1):
        super().__init__(lipschitz)
        self.groups = groups
        self.matrix = Orthonormal(method)
        self.bases = Orthonormal(method)
        self._shape_of_bases = torch.Size()

    def weight(self, *raw: Tensor) -> Tensor:
        matrix, *bases = raw
        # Bases that are missing have no entries, or torch's record of how many tensors there are was changed.
        if not bases and self._shape_of_bases.numel():
            raise ValueError(f"The bases {tuple(self._shape_of_bases)} of an orthogonal convolution were not given.")
        v = self.bases.weight(*bases) if bases else matrix.new_zeros(self._shape_of_bases)
        kernel = bcop_kernel(self._scaled(self.matrix.weight(matrix)), v)
        return kernel if self.groups == 1 else kernel.flatten(0, 1)

    def raw(self, weight: Tensor) -> tuple[Tensor, ...]:
        if self.groups == 1:
            return self.raw_factors(*bcop_factors(weight / self.lipschitz))
        factors = [bcop_factors(kernel) for kernel in (weight / self.lipschitz).chunk(self.groups)]
        return self.raw_factors(*(torch.stack(parts) for parts in zip(*factors, strict=True)))

    def raw_factors(self, matrix: Tensor, bases: Tensor) -> tuple[Tensor, ...]:
        """Raw parameters of the factors of a kernel; bases without entries (one tap, one channel) are none."""
        self._shape_of_bases = bases.shape
        raw = (self.matrix.raw(matrix), self.bases.raw(bases)) if bases.numel() else (self.matrix.raw(matrix),)
        return tuple(part.contiguous() for part in raw)  # safetensors writes no others


class SpectralConvolution(Spectral):
    r"""Divide a kernel (c_out, c_in, k[, k]) by the norm of its convolution, times `lipschitz` [lip_linear_layers].

    That is not the norm of the kernel as a matrix. While training it is estimated on periodic images of 8k pixels an
    axis; the bound of eval mode holds for every size.

    Args:
        c_in: input channels.
        kernel: number of taps along each axis.
        axes: 1 or 2.
        lipschitz: target constant.
    """

    def __init__(self, c_in: int, kernel: int, axes: int = 2, lipschitz: float = 1.0):
        super().__init__(torch.randn(c_in, *[8 * kernel] * axes), lipschitz)
        self.axes = axes

    def operator(self, weight: Tensor, v: Tensor) -> Tensor:
        return circular_convolution(v, weight)

    def adjoint(self, weight: Tensor, u: Tensor) -> Tensor:
        return circular_convolution_adjoint(u, weight)

    def upper(self, weight: Tensor) -> Tensor:
        return conv_norms_upper(weight, self.axes)

    def extra_repr(self) -> str:
        return f"axes={self.axes}, {super().extra_repr()}"


def conv2d(
    c_in: int,
    c_out: int,
    kernel: int,
    *,
    bias: bool = True,
    constraint: Kind = "orthogonal",
    stride: int = 1,
    groups: int = 1,
    padding_mode: Literal["zeros", "circular"] = "zeros",
    method: Method | None = None,
    init: Init = "orthogonal",
    lipschitz: float = 1.0,
) -> nn.Conv2d | nn.Sequential:
    """An image convolution with Lipschitz constant `lipschitz`: an `nn.Conv2d`, parametrized [lip_linear_layers].

    The output has the size of the input divided by the stride, also for even kernels.

    Args:
        c_in: input channels.
        c_out: output channels.
        kernel: taps along each axis.
        bias: whether to add a learned bias, which starts at 0.
        constraint: `"orthogonal"`, the convolution of periodic images is an isometry (or the adjoint of one, if it
            loses channels); `"spectral"`, only its norm is `lipschitz`; or `"aol"`, its norm is at most that, without
            an iteration (`lipspline.nn.matrices.AlmostOrthogonal`).
        stride: above 1 the pixels of each stride x stride square first become channels (`InvertibleDownsampling`), so
            that the layer is an `nn.Sequential` and its kernel covers kernel * stride pixels.
        groups: parts of the channels that do not see each other, each an orthogonal convolution of its own.
        padding_mode: `"zeros"` or `"circular"`; with zeros some energy is lost over the border.
        method: how to orthonormalize, see `lipspline.functional.matrices.orthonormalize`.
        init: a random orthogonal convolution; Kaiming's normal law (of the raw factors, if orthogonal, which is the
            same); or the identity at the middle tap (an even orthogonal kernel shifts half of the channels by a pixel).
        lipschitz: target constant.

    Example:
        >>> layer = conv2d(4, 8, 3, padding_mode="circular")
        >>> x = torch.randn(1, 4, 16, 16)
        >>> torch.allclose((layer(x) - layer(torch.zeros_like(x))).norm(), x.norm(), rtol=1e-4)
        True
    """
    _check_convolution(c_in, c_out, kernel, stride, groups, constraint, padding_mode, method, init)
    options = {"padding": "same", "padding_mode": padding_mode, "bias": bias, "groups": groups}
    layer = Conv2d(c_in * stride**2, c_out, kernel, **options)
    _constrain(layer, constraint, method, init, lipschitz)
    return layer if stride == 1 else nn.Sequential(InvertibleDownsampling(stride), layer)


def conv1d(
    c_in: int,
    c_out: int,
    kernel: int,
    *,
    bias: bool = True,
    constraint: Kind = "orthogonal",
    stride: int = 1,
    groups: int = 1,
    padding_mode: Literal["zeros", "circular"] = "zeros",
    method: Method | None = None,
    init: Init = "orthogonal",
    lipschitz: float = 1.0,
) -> nn.Conv1d | nn.Sequential:
    """A signal convolution with Lipschitz constant `lipschitz`: an `nn.Conv1d`, parametrized [lip_linear_layers].

    The arguments are those of `conv2d`; a stride makes channels of neighbouring samples (`SampleUnshuffle`).

    Example:
        >>> conv1d(2, 6, 5, stride=2)(torch.randn(1, 2, 32)).shape
        torch.Size([1, 6, 16])
    """
    _check_convolution(c_in, c_out, kernel, stride, groups, constraint, padding_mode, method, init)
    options = {"padding": "same", "padding_mode": padding_mode, "bias": bias, "groups": groups}
    layer = nn.Conv1d(c_in * stride, c_out, kernel, **options)
    _constrain(layer, constraint, method, init, lipschitz)
    return layer if stride == 1 else nn.Sequential(SampleUnshuffle(stride), layer)


def conv3d(
    c_in: int,
    c_out: int,
    kernel: int,
    *,
    bias: bool = True,
    constraint: Kind = "orthogonal",
    stride: int = 1,
    groups: int = 1,
    padding_mode: Literal["zeros", "circular"] = "zeros",
    method: Method | None = None,
    init: Init = "orthogonal",
    lipschitz: float = 1.0,
) -> nn.Conv3d | nn.Sequential:
    """A convolution of volumes with Lipschitz constant `lipschitz`: an `nn.Conv3d`, parametrized [lip_linear_layers].

    The arguments are those of `conv2d`; a stride makes channels of neighbouring voxels (`InvertibleDownsampling`).

    Example:
        >>> conv3d(2, 4, 3, stride=2)(torch.randn(1, 2, 6, 6, 6)).shape
        torch.Size([1, 4, 3, 3, 3])
    """
    _check_convolution(c_in, c_out, kernel, stride, groups, constraint, padding_mode, method, init)
    options = {"padding": "same", "padding_mode": padding_mode, "bias": bias, "groups": groups}
    layer = nn.Conv3d(c_in * stride**3, c_out, kernel, **options)
    _constrain(layer, constraint, method, init, lipschitz)
    return layer if stride == 1 else nn.Sequential(InvertibleDownsampling(stride, axes=3), layer)


def conv_transpose2d(
    c_in: int,
    c_out: int,
    kernel: int,
    *,
    bias: bool = True,
    constraint: Kind = "orthogonal",
    stride: int = 1,
    groups: int = 1,
    method: Method | None = None,
    init: Init = "orthogonal",
    lipschitz: float = 1.0,
) -> nn.ConvTranspose2d | nn.Sequential:
    """The adjoint of an image convolution, with Lipschitz constant `lipschitz`; a stride makes the image larger.

    Args:
        c_in: input channels.
        c_out: output channels.
        kernel: taps along each axis, an odd number, so that the size stays the same.
        bias: whether to add a learned bias, which starts at 0.
        constraint: see `conv2d`.
        stride: above 1 the layer makes stride² times the channels, which `nn.PixelShuffle` then makes pixels of: the
            inverse of the stride of `conv2d`.
        groups: see `conv2d`.
        method: see `conv2d`.
        init: see `conv2d`.
        lipschitz: target constant.

    Example:
        >>> conv_transpose2d(8, 2, 3, stride=2)(torch.randn(1, 8, 5, 5)).shape
        torch.Size([1, 2, 10, 10])
    """
    _check_convolution(c_in, c_out, kernel, stride, groups, constraint, "zeros", method, init)
    if kernel % 2 == 0:
        raise ValueError(f"conv_transpose2d needs an odd kernel, so that the size stays the same, but got {kernel}.")
    layer = nn.ConvTranspose2d(c_in, c_out * stride**2, kernel, padding=kernel // 2, bias=bias, groups=groups)
    _constrain(layer, constraint, method, init, lipschitz)
    return layer if stride == 1 else nn.Sequential(layer, nn.PixelShuffle(stride))


class SampleUnshuffle(nn.Module):
    """Make channels of neighbouring samples: (B, C, T) to (B, C * factor, T / factor), as `nn.PixelUnshuffle` does.

    Example:
        >>> SampleUnshuffle(2)(torch.arange(4.0).reshape(1, 1, 4))
        tensor([[[0., 2.],
                 [1., 3.]]])
    """

    def __init__(self, factor: int):
        super().__init__()
        self.factor = checks.at_least("factor", factor, 1)

    def forward(self, x: Tensor) -> Tensor:
        checks.divides("The stride", self.factor, "the length of the signal", x.shape[-1], "Pad or crop the signal.")
        return x.unflatten(-1, (-1, self.factor)).movedim(-1, -2).flatten(-3, -2)

    def extra_repr(self) -> str:
        return f"{self.factor}"


def _check_convolution(
    c_in: int,
    c_out: int,
    kernel: int,
    stride: int,
    groups: int,
    constraint: str,
    padding_mode: str,
    method: str | None,
    init: str,
) -> None:
    counts = {"c_in": c_in, "c_out": c_out, "kernel": kernel, "stride": stride, "groups": groups}
    for name, value in counts.items():
        checks.at_least(name, value, 1)
    for name in ("c_in", "c_out"):
        checks.divides("groups", groups, name, counts[name], "Every group has as many channels.")
    if groups > 1 and constraint != "orthogonal":
        raise ValueError(f"groups={groups} needs constraint='orthogonal', but it is {constraint!r}.")
    checks.one_of("constraint", constraint, get_args(Kind))
    checks.one_of("padding_mode", padding_mode, PADDING_MODES)
    checks.one_of("init", init, INITS)
    check_method(constraint, method)


@torch.no_grad()
def _constrain(layer: Convolution, constraint: str, method: Method | None, init: Init, lipschitz: float) -> None:
    """Initialize and parametrize a convolution."""
    if layer.bias is not None:
        layer.bias.zero_()
    if constraint == "spectral":
        layer.weight.copy_(_spectral_start(layer, init))
        parametrization = SpectralConvolution(*layer.weight.shape[1:3], axes=layer.weight.ndim - 2, lipschitz=lipschitz)
        parametrize.register_parametrization(layer, "weight", parametrization)
    elif constraint == "aol":
        layer.weight.copy_(_spectral_start(layer, init))
        parametrize.register_parametrization(layer, "weight", AlmostOrthogonal(lipschitz))
    else:
        _constrain_orthogonal(layer, OrthogonalConvolution(method or "qr", lipschitz, layer.groups), init)


def _constrain_orthogonal(layer: Convolution, parametrization: OrthogonalConvolution, init: Init) -> None:
    matrix, bases = _orthogonal_start(layer, init)
    # Registration asks for the factors of the present weight. A single tap has them; those of the start are known.
    single = bcop_kernel(matrix, torch.eye(*bases.shape[-2:]).expand_as(bases))
    layer.weight.copy_(parametrization.lipschitz * single.reshape(layer.weight.shape))
    parametrize.register_parametrization(layer, "weight", parametrization)
    for i, start in enumerate(parametrization.raw_factors(matrix, bases)):
        layer.parametrizations.weight.get_parameter(f"original{i}").copy_(start)  # type: ignore[union-attr]


def _orthogonal_start(layer: Convolution, init: Init) -> tuple[Tensor, Tensor]:
    """An orthonormal matrix and bases for `bcop_kernel`: random, or the identity and equal projections; by groups."""
    c_out, c_in, kernel = layer.weight.shape[0] // layer.groups, *layer.weight.shape[1:3]
    n, axes = max(c_out, c_in), layer.weight.ndim - 2
    batch = () if layer.groups == 1 else (layer.groups,)
    bases = orthonormalize(torch.randn(*batch, kernel - 1, axes, n, n // 2))
    if init == "identity":
        return torch.eye(c_out, c_in).repeat(*batch, 1, 1), bases[..., :1, :1, :, :].expand_as(bases)
    return orthonormalize(torch.randn(*batch, c_out, c_in)), bases


def _spectral_start(layer: Convolution, init: Init) -> Tensor:
    if init == "orthogonal":
        return bcop_kernel(*_orthogonal_start(layer, init))
    if init == "kaiming":
        return nn.init.kaiming_normal_(torch.empty_like(layer.weight), nonlinearity="linear")
    weight = torch.zeros_like(layer.weight)
    middle = [(k - 1) // 2 for k in weight.shape[2:]]
    weight[(..., *middle)] = torch.eye(*weight.shape[:2])
    return weight
