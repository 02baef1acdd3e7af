"""Operations of ONNX on images: convolutions, pooling, borders, and other sizes."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lipspline.networks.onnx_operations import ints, onnx_operation


def _pads(
    x: Tensor,
    pads: list[int] | None,
    auto_pad: str,
    kernel: Sequence[int],
    strides: list[int] | None = None,
    dilations: list[int] | None = None,
) -> list[int]:
    """Pixels before and after each axis, the last axis first, as torch counts them."""
    axes = len(kernel)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sizes, steps, gaps = x.shape[2:], strides or [1] * axes, dilations or [1] * axes
        reach = [(k - 1) * gap + 1 for k, gap in zip(kernel, gaps, strict=True)]
        missing = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(sizes, steps, reach, strict=True)]
        low, high = [m // 2 for m in missing], [m - m // 2 for m in missing]
        pads = [*low, *high] if auto_pad == "SAME_UPPER" else [*high, *low]
    elif auto_pad not in ("NOTSET", "VALID"):
        raise ValueError(f"auto_pad={auto_pad} has no rule. Export with explicit pads.")
    pads = [0] * (2 * axes) if pads is None or auto_pad == "VALID" else pads
    return [p for axis in reversed(range(axes)) for p in (pads[axis], pads[axis + axes])]


@onnx_operation("Conv")
def _conv(x, w, b=None, *, group=1, strides=None, dilations=None, pads=None, auto_pad="NOTSET", kernel_shape=None):
    axes = w.ndim - 2
    around = _pads(x, pads, auto_pad, w.shape[2:], strides, dilations)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    same = around[::2] == around[1::2]
    if not same:
        x = F.pad(x, around)
    padding = around[::2][::-1] if same else 0
    return convolve(x, w, b, strides or 1, padding, dilations or 1, group)


@onnx_operation("ConvTranspose")
def _conv_transpose(
    x, w, b=None, *, group=1, strides=None, dilations=None, pads=None, auto_pad="NOTSET", kernel_shape=None,
    output_padding=None, output_shape=None,
):  # fmt: skip
    axes = w.ndim - 2
    if auto_pad.startswith("SAME") or output_shape is not None:
        raise ValueError("sizes of the output have no rule. Export with explicit pads.")
    around = _pads(x, pads, auto_pad, w.shape[2:])
    if around[::2] != around[1::2]:
        raise ValueError("A ConvTranspose with unequal pads has no rule.")
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
    return convolve(x, w, b, strides or 1, around[::2][::-1], output_padding or 0, group, dilations or 1)


@onnx_operation("MaxPool")
def _max_pool(
    x, *, kernel_shape, strides=None, pads=None, dilations=None, ceil_mode=0, auto_pad="NOTSET", storage_order=0
):
    axes = len(kernel_shape)
    around = _pads(x, pads, auto_pad, kernel_shape, strides, dilations)
    if around[::2] != around[1::2]:
        x, around = F.pad(x, around, value=-math.inf), [0] * len(around)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[axes - 1]
    return pool(x, kernel_shape, strides or 1, around[::2][::-1], dilations or 1, bool(ceil_mode))


@onnx_operation("AveragePool")
def _average_pool(x, *, kernel_shape, strides=None, pads=None, ceil_mode=0, count_include_pad=0, auto_pad="NOTSET"):
    axes = len(kernel_shape)
    around = _pads(x, pads, auto_pad, kernel_shape, strides)
    if around[::2] != around[1::2]:
        raise ValueError("An AveragePool with unequal pads has no rule.")
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[axes - 1]
    return pool(x, kernel_shape, strides or 1, around[::2][::-1], bool(ceil_mode), bool(count_include_pad))


@onnx_operation("BatchNormalization")
def _batch_norm(x, scale, bias, mean, var, *, epsilon=1e-5, momentum=0.9, training_mode=0):
    if training_mode:
        raise ValueError("Batch normalisation in training mode has no Lipschitz bound.")
    return F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)


@onnx_operation("Pad")
def _pad(x, pads=None, value=None, axes=None, mode="constant"):
    counts = ints(pads)
    if axes is not None:
        places = [place % x.ndim for place in ints(axes)]
        given = dict(zip(places, zip(counts[: len(places)], counts[len(places) :], strict=True), strict=True))
        counts = [given.get(place, (0, 0))[end] for end in (0, 1) for place in range(x.ndim)]
    half = len(counts) // 2
    around = [p for axis in reversed(range(half)) for p in (counts[axis], counts[axis + half])]
    least = 2 if mode == "constant" else max(2 * (x.ndim - 2), 2)  # torch fills all axes of an image, or none
    while len(around) > least and not any(around[-2:]):
        around = around[:-2]
    torch_mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
    return F.pad(x, around, torch_mode, **({"value": float(value or 0.0)} if mode == "constant" else {}))


@onnx_operation("DepthToSpace")
def _depth_to_space(x, *, blocksize, mode="DCR"):
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    b, c, h, w = x.shape
    x = x.reshape(b, blocksize, blocksize, c // blocksize**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return x.reshape(b, c // blocksize**2, h * blocksize, w * blocksize)


@onnx_operation("SpaceToDepth")
def _space_to_depth(x, *, blocksize):
    b, c, h, w = x.shape
    x = x.reshape(b, c, h // blocksize, blocksize, w // blocksize, blocksize).permute(0, 3, 5, 1, 2, 4)
    return x.reshape(b, c * blocksize**2, h // blocksize, w // blocksize)


NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@onnx_operation("Resize")
def _resize(
    x, roi=None, scales=None, sizes=None, *, mode="nearest", coordinate_transformation_mode="half_pixel",
    nearest_mode="round_prefer_floor", cubic_coeff_a=-0.75, exclude_outside=0, axes=None, antialias=0,
    keep_aspect_ratio_policy="stretch", extrapolation_value=0.0,
):  # fmt: skip
    """Each pixel is a mean of others: a matrix for each axis."""
    if antialias or keep_aspect_ratio_policy != "stretch":
        option = "antialias=1" if antialias else f"keep_aspect_ratio_policy={keep_aspect_ratio_policy}"
        raise ValueError(f"{option} has no rule.")
    if mode not in ("nearest", "linear", "cubic"):
        raise ValueError(f"mode={mode} has no rule.")
    if nearest_mode not in NEAREST:
        raise ValueError(f"nearest_mode={nearest_mode} has no rule.")
    places = [place % x.ndim for place in axes] if axes is not None else list(range(x.ndim))
    if sizes is not None and np.size(sizes):
        lengths = ints(sizes)
        stretched = [length / x.shape[place] for length, place in zip(lengths, places, strict=True)]
    else:
        stretched = _real_numbers(scales)
        lengths = [math.floor(x.shape[place] * scale) for scale, place in zip(stretched, places, strict=True)]
    for place, length, scale in zip(places, lengths, stretched, strict=True):
        size = x.shape[place]
        if length == size and scale == 1:
            continue
        if place == 0:
            raise ValueError("another number of inputs in the batch has no rule.")
        at = _coordinates(size, length, np.float32(scale), coordinate_transformation_mode)
        if mode == "nearest":
            matrix = _nearest(at, size, nearest_mode)
        elif mode == "linear":
            matrix = _interpolation(np.clip(at, 0, size - 1), size, _hat, inside=False)
        else:
            matrix = _interpolation(at, size, lambda t: _keys(t, cubic_coeff_a), inside=bool(exclude_outside))
        x = (x.movedim(place, -1) @ torch.from_numpy(matrix.T.copy()).to(x)).movedim(-1, place)
    return x


@onnx_operation("Upsample")
def _upsample(x, scales, *, mode="nearest"):
    return _resize(x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _real_numbers(values: Any) -> list[float]:
    if values is None or isinstance(values, Tensor):
        raise ValueError("scales that depend on the values of the input have no rule.")
    return [float(value) for value in np.asarray(values).reshape(-1)]


def _coordinates(size: int, length: int, scale: np.float32, transformation: str) -> np.ndarray:
    """Where in the original each new pixel lies, in single precision, as it is computed elsewhere."""
    i = np.arange(length, dtype=np.float32)
    half = (i + np.float32(0.5)) / scale - np.float32(0.5)
    if transformation == "half_pixel" or (transformation == "pytorch_half_pixel" and length > 1):
        return half
    if transformation == "half_pixel_symmetric":
        return half + np.float32(size / 2 * (1 - length / (size * scale)))
    if transformation == "asymmetric":
        return i / scale
    if transformation == "pytorch_half_pixel" or (transformation == "align_corners" and length == 1):
        return np.zeros(1, np.float32)
    if transformation == "align_corners":
        return i * np.float32(size - 1) / np.float32(length - 1)
    raise ValueError(f"coordinate_transformation_mode={transformation} has no rule.")


def _nearest(at: np.ndarray, size: int, rounding: str) -> np.ndarray:
    return np.eye(size)[np.clip(NEAREST[rounding](at), 0, size - 1).astype(int)]


def _interpolation(
    at: np.ndarray, size: int, weight: Callable[[np.ndarray], np.ndarray], *, inside: bool
) -> np.ndarray:
    """The matrix of a mean over four neighbours; those outside are the pixels at the border, or do not count."""
    matrix = np.zeros((len(at), size))
    for offset in (-1, 0, 1, 2):
        neighbour = np.floor(at).astype(int) + offset
        share = weight(np.abs(at.astype(np.float64) - neighbour))
        if inside:
            share = np.where((neighbour >= 0) & (neighbour < size), share, 0.0)
        np.add.at(matrix, (np.arange(len(at)), np.clip(neighbour, 0, size - 1)), share)
    return matrix / matrix.sum(1, keepdims=True)


def _hat(t: np.ndarray) -> np.ndarray:
    """Weights of linear interpolation by the distance."""
    return np.clip(1 - t, 0, None)


def _keys(t: np.ndarray, a: float) -> np.ndarray:
    """Weights of cubic interpolation by the distance (Keys, 1981)."""
    near = (a + 2) * t**3 - (a + 3) * t**2 + 1
    far = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))
