"""A convolution for inference: the same function as `nn.Conv2d`, computed faster where no derivative is wanted."""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from lipspline.kernels.torch_operator import is_ordinary
from lipspline.kernels.winograd import convolve, has_winograd, prepare

FEWEST = 16
"""Channels, in and out, from which Winograd's algorithm pays."""


class InferenceConv2d(nn.Conv2d):
    """A convolution of channels-last images that runs Winograd's algorithm if it is 3 x 3 with zeros around the image.

    Where a derivative is wanted, the C kernels do not run or a compiler looks on, it is `nn.Conv2d`; both round
    differently in the last bits. The transformed kernels are kept, and made anew when the weight has changed.
    """

    _prepared: tuple[Tensor, Tensor] | None = None

    def forward(self, input: Tensor) -> Tensor:
        if not self._is_simple(input):
            return super().forward(input)
        if self.has_algorithm and all(map(has_winograd, (input, *self._values()))):
            bias = input.new_zeros(self.out_channels) if self.bias is None else self.bias
            return convolve(input, self._transformed(), bias)
        return super().forward(_with_channels_last(input) if self.in_channels == 1 else input)

    def _is_simple(self, x: Tensor) -> bool:
        """Whether `x` is a batch of images in memory, and nobody wants derivatives or another precision."""
        tensors = (x, *self._values())
        return (
            is_ordinary(*tensors)
            and not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
            and forward_ad._current_level < 0
            and not torch.is_autocast_enabled("cpu")
            and x.ndim == 4
            and x.shape[1] == self.in_channels
        )

    def _values(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

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

    def _transformed(self) -> Tensor:
        """The kernels as the algorithm wants them. Comparing all weights takes microseconds, and no change escapes."""
        if self._prepared is None or not torch.equal(self._prepared[0], self.weight):
            weight = self.weight.detach()
            self._prepared = weight.clone(), prepare(weight)
        return self._prepared[1]


def _with_channels_last(x: Tensor) -> Tensor:
    """Gray images with strides that say channels last. Both orders are one in memory, but torch goes by the strides."""
    images, _, height, width = x.shape
    return x.contiguous().as_strided((images, 1, height, width), (height * width, 1, width, 1))
