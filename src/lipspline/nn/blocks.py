"""Blocks with a constant of 1 by construction: residual ones that descend a convex potential, centering, pooling,
and resampling that can be inverted."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lipspline._infra import checks
from lipspline.functional.convolutions import absolute_gram
from lipspline.nn.spline import LinearSpline


class ConvexPotential(nn.Module):
    r"""The residual block :math:`x - 2 W^T T^{-1} \sigma(W x + b)`, 1-Lipschitz if all slopes of σ are in [0, 1].

    W is a matrix that acts on the channels, or a convolution of images. With
    :math:`T_{ii} = \sum_j |W W^T|_{ij} q_j / q_i`, which dominates :math:`W W^T`, its Jacobian is
    :math:`I - 2 A^T D A` with :math:`A = T^{-1/2} W`, :math:`\|A\| \le 1` and a diagonal D in [0, 1]: symmetric, with
    eigenvalues in [-1, 1]. It is a step down the convex potential :math:`\sum_i \psi_i((W x + b)_i) / T_{ii}`,
    :math:`\psi_i' = \sigma_i` (Meunier et al., 2022; the diagonal T is that of Araujo et al., 2023). `certify` bounds
    the block with the numbers that it runs with, whatever the slopes are.

    Args:
        channels: of the input, along dimension 1.
        hidden: rows of W.
        activation: for `hidden` channels: nn.ReLU or a `LinearSpline`; a spline with slopes in [0, 1] that starts as
            ReLU if not given.
        kernel: taps along both axes of images, an odd number, with zeros around them; without it W is a matrix, and
            the input has any number of axes.

    Example:
        >>> from lipspline import certify
        >>> bool(certify(ConvexPotential(4, 8)).upper <= 1 + 1e-6)
        True
    """

    def __init__(self, channels: int, hidden: int, activation: nn.Module | None = None, *, kernel: int | None = None):
        super().__init__()
        self.channels = checks.at_least("channels", channels, 1)
        if kernel is not None and checks.at_least("kernel", kernel, 1) % 2 == 0:
            raise ValueError(f"ConvexPotential needs an odd kernel, so that the size stays the same, but got {kernel}.")
        taps = () if kernel is None else (kernel, kernel)
        self.weight = nn.Parameter(torch.empty(checks.at_least("hidden", hidden, 1), channels, *taps))
        nn.init.xavier_normal_(self.weight)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.log_q = nn.Parameter(torch.zeros(hidden))
        self.activation = activation or LinearSpline(hidden, slope=(0.0, 1.0), init="relu", radius=1.0)

    def diagonal(self) -> Tensor:
        """The diagonal of T."""
        q = self.log_q.exp()
        sums = (absolute_gram(self.weight.transpose(0, 1)) * q).sum(1) / q
        return sums.clamp(min=torch.finfo(sums.dtype).tiny)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != self.channels:
            raise ValueError(
                f"ConvexPotential has {self.channels} channels but the input has the shape {tuple(x.shape)}. Dimension "
                f"1 must be the channel dimension."
            )
        if self.weight.ndim == 4:
            padding = self.weight.shape[-1] // 2
            descent = self.activation(F.conv2d(x, self.weight, self.bias, padding=padding))
            return x - F.conv_transpose2d(descent * (2 / self.diagonal())[:, None, None], self.weight, padding=padding)
        inner = F.linear(x.movedim(1, -1), self.weight, self.bias).movedim(-1, 1)
        descent = self.activation(inner).movedim(1, -1) * (2 / self.diagonal())
        return x - F.linear(descent, self.weight.mT).movedim(-1, 1)


class Centering(nn.Module):
    """Subtract the mean over the given dimensions: a projection, so 1-Lipschitz.

    Example:
        >>> Centering(1)(torch.tensor([[1.0, 3.0]]))
        tensor([[-1.,  1.]])
    """

    def __init__(self, *dims: int):
        super().__init__()
        self.dims = dims or (1,)

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=self.dims, keepdim=True)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.dims))


class L2NormPool2d(nn.Module):
    """The Euclidean length of the pixels of each size x size square, channel by channel: 1-Lipschitz.

    Example:
        >>> L2NormPool2d(2)(torch.tensor([[[[3.0, 0.0], [0.0, 4.0]]]]))
        tensor([[[[5.]]]])
    """

    def __init__(self, size: int):
        super().__init__()
        self.size = checks.at_least("size", size, 1)

    def forward(self, x: Tensor) -> Tensor:
        for n in x.shape[-2:]:
            checks.divides(
                "The size of an L2NormPool2d", self.size, "the size of the image", n, "Pad or crop the image."
            )
        squares = x.unflatten(-1, (-1, self.size)).unflatten(-3, (-1, self.size))
        return torch.linalg.vector_norm(squares, dim=(-3, -1))

    def extra_repr(self) -> str:
        return f"{self.size}"


class InvertibleDownsampling(nn.Module):
    """Make channels of neighbouring samples, pixels or voxels, in the order of `nn.PixelUnshuffle`: an isometry.

    (B, C, *size) becomes (B, C * factor^axes, *size / factor).

    Args:
        factor: how many neighbours along each axis.
        axes: of the image, 2 unless said otherwise.

    Example:
        >>> InvertibleDownsampling(2, axes=3)(torch.zeros(1, 1, 4, 4, 4)).shape
        torch.Size([1, 8, 2, 2, 2])
    """

    def __init__(self, factor: int, axes: int = 2):
        super().__init__()
        self.factor, self.axes = checks.at_least("factor", factor, 1), checks.at_least("axes", axes, 1)

    def forward(self, x: Tensor) -> Tensor:
        for n in x.shape[-self.axes :]:
            checks.divides("The factor", self.factor, "the size of the image", n, "Pad or crop the image.")
        first = x.ndim - self.axes
        for axis in range(first, first + 2 * self.axes, 2):  # n becomes n / factor and factor
            x = x.unflatten(axis, (-1, self.factor))
        inner = [first + 1 + 2 * i for i in range(self.axes)]
        return x.movedim(inner, [first + i for i in range(self.axes)]).flatten(first - 1, first - 1 + self.axes)

    def extra_repr(self) -> str:
        return f"{self.factor}, axes={self.axes}"


class InvertibleUpsampling(nn.Module):
    """Make neighbouring samples, pixels or voxels of channels: the inverse of `InvertibleDownsampling`.

    Example:
        >>> x = torch.randn(1, 2, 4, 6)
        >>> torch.equal(InvertibleUpsampling(2)(InvertibleDownsampling(2)(x)), x)
        True
    """

    def __init__(self, factor: int, axes: int = 2):
        super().__init__()
        self.factor, self.axes = checks.at_least("factor", factor, 1), checks.at_least("axes", axes, 1)

    def forward(self, x: Tensor) -> Tensor:
        channels = x.shape[-self.axes - 1]
        copies = self.factor**self.axes
        checks.divides("factor to the power of axes", copies, "the number of channels", channels, "Give more channels.")
        first = x.ndim - self.axes
        x = x.unflatten(first - 1, (-1, *[self.factor] * self.axes))
        x = x.movedim([first + i for i in range(self.axes)], [first + 1 + 2 * i for i in range(self.axes)])
        for axis in range(first, first + self.axes):  # n and factor become n * factor
            x = x.flatten(axis, axis + 1)
        return x

    def extra_repr(self) -> str:
        return f"{self.factor}, axes={self.axes}"
