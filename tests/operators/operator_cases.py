"""The operators that must meet the laws, and what the tests need to look at any of them."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lipspline.operators import (
    MRI,
    Blur,
    FanBeamCT,
    Identity,
    Inpainting,
    LinearOperator,
    Matrix,
    MultiCoilMRI,
    NonCartesianMRI,
    ParallelBeamCT,
    SoftSenseMRI,
    WeightedCT,
    cartesian_mask,
    radial_trajectory,
    simulated_maps,
)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def plane_mask(height: int, width: int) -> Tensor:
    return random(height, width) > 0.3


def batch_of_maps(batch: int, coils: int, shape: tuple[int, int]) -> Tensor:
    return random(batch, coils, *shape, dtype=torch.complex128)


CASES: dict[str, Callable[[], LinearOperator]] = {
    "identity": lambda: Identity((1, 5, 4)),
    "inpainting": lambda: Inpainting(plane_mask(5, 6).unsqueeze(0)),
    "blur, even image, odd kernel": lambda: Blur(random(3, 5), (2, 6, 8)),
    "blur, odd image, even kernel": lambda: Blur(random(4, 2), (1, 7, 5)),
    "matrix, wide": lambda: Matrix(random(4, 7)),
    "matrix, tall": lambda: Matrix(random(7, 4)),
    "matrix, complex": lambda: Matrix(random(5, 5, dtype=torch.complex128)),
    "mri, paper, even": lambda: MRI(cartesian_mask(12, 3, 0.2)),
    "mri, paper, odd": lambda: MRI(cartesian_mask(11, 2, 0.2)),
    "mri, paper, plane, even": lambda: MRI(plane_mask(6, 8)),
    "mri, paper, plane, odd": lambda: MRI(plane_mask(5, 7)),
    "mri, centred, even": lambda: MRI(cartesian_mask(12, 3, 0.2), convention="centred"),
    "mri, centred, plane, odd": lambda: MRI(plane_mask(5, 7), convention="centred"),
    "mri, centred, real images": lambda: MRI(plane_mask(6, 7), convention="centred", images="real"),
    "mri, paper, complex images": lambda: MRI(plane_mask(5, 6), images="complex"),
    "multi-coil, centred, real images": lambda: MultiCoilMRI(
        cartesian_mask(8), batch_of_maps(1, 3, (6, 8))[0], convention="centred", images="real"
    ),
    "multi-coil, paper, even": lambda: MultiCoilMRI(cartesian_mask(8), simulated_maps(3, (6, 8))),
    "multi-coil, paper, odd": lambda: MultiCoilMRI(plane_mask(7, 5), simulated_maps(4, (7, 5))),
    "multi-coil, centred, odd": lambda: MultiCoilMRI(
        cartesian_mask(7, 2), simulated_maps(3, (5, 7)), convention="centred"
    ),
    "multi-coil, own maps for each image": lambda: MultiCoilMRI(
        plane_mask(4, 6), batch_of_maps(2, 3, (4, 6)), convention="centred"
    ),
    "soft sense, centred": lambda: SoftSenseMRI(
        cartesian_mask(6, 2), batch_of_maps(2, 3, (4, 6)), convention="centred"
    ),
    "soft sense, three sets, real images, odd": lambda: SoftSenseMRI(plane_mask(3, 5), batch_of_maps(3, 4, (3, 5))),
    "trajectory, radial": lambda: NonCartesianMRI(radial_trajectory(5, 8), (8, 8)),
    "trajectory, any points, odd": lambda: NonCartesianMRI(2 * random(30, 2).clamp(-1.2, 1.2), (5, 7)),
    "trajectory, coils, real images": lambda: NonCartesianMRI(
        radial_trajectory(4, 6), (6, 6), batch_of_maps(1, 3, (6, 6))[0], images="real"
    ),
    "trajectory, weighted": lambda: NonCartesianMRI(radial_trajectory(4, 6), (7, 6), weights=random(4, 6).square()),
    "ct, even": lambda: ParallelBeamCT(8, 12, 11),
    "ct, odd": lambda: ParallelBeamCT(7, 5, 9, spacing=0.8, pixel=0.7),
    "ct, any angles": lambda: ParallelBeamCT(6, random(9) * 5, 8),
    "ct, an angle twice": lambda: ParallelBeamCT(6, torch.tensor([0.3, 0.3, math.pi + 0.3, 1.2, 2.5]), 10),
    "ct, axis off the middle": lambda: ParallelBeamCT(6, torch.linspace(0, 6, 11), 9, offset=0.7),
    "ct, weighted": lambda: WeightedCT(ParallelBeamCT(6, 7, 9), random(7, 9).clamp_min(0)),
    "fan, flat": lambda: FanBeamCT(8, 12, 11, source_origin=20.0, source_detector=31.0),
    "fan, curved": lambda: FanBeamCT(
        7, 5, 9, 0.8, source_origin=9.0, source_detector=9.0, detector="curved", pixel=0.7, offset=0.3
    ),
    "fan, any angles, some pixels unseen": lambda: FanBeamCT(
        6, random(9) * 5, 4, 1.5, source_origin=8.0, source_detector=12.0, offset=-1.0
    ),
    "fan, an angle twice": lambda: FanBeamCT(
        6, torch.tensor([0.3, 0.3, math.pi / 2 + 0.3, 1.2]), 10, source_origin=8.0, source_detector=12.0
    ),
    "fan, weighted": lambda: WeightedCT(
        FanBeamCT(6, 7, 9, source_origin=9.0, source_detector=9.0), random(7, 9).clamp_min(0)
    ),
    "scaled": lambda: -2.5 * Blur(random(3, 3), (1, 5, 6)),
    "sum": lambda: Blur(random(3, 3), (1, 6, 6)) + 0.5 * Inpainting(plane_mask(6, 6).unsqueeze(0)),
    "product, complex after either": lambda: (
        MRI(cartesian_mask(6, 2), convention="centred") @ Blur(random(3, 3), (1, 5, 6))
    ),
    "product, real after either": lambda: MRI(cartesian_mask(6, 2)) @ Blur(random(3, 3), (1, 5, 6)),
    "product, complex after real": lambda: MRI(plane_mask(5, 9), convention="centred") @ ParallelBeamCT(6, 5, 9),
    "product, three": lambda: 2.0 * Matrix(random(3, 5)) @ (Matrix(random(5, 4)) + Matrix(random(5, 4, seed=1))),
}

PAPER_SIZES: dict[str, Callable[[], LinearOperator]] = {
    "mri": lambda: MRI(cartesian_mask(320, 4, 0.08).expand(320, 320)),
    "mri, odd": lambda: MRI(cartesian_mask(255, 4, 0.08).expand(319, 255)),
    "multi-coil": lambda: MultiCoilMRI(cartesian_mask(320, 8, 0.04), simulated_maps(15, (320, 320))),
    "ct": lambda: ParallelBeamCT.paper(512),
    "ct, odd": lambda: ParallelBeamCT(511, 201, 401),
    "fan": lambda: FanBeamCT(512, 200, 400, source_origin=700.0, source_detector=1000.0),
}


def sample(shape: tuple[int | None, ...], field: str, dtype: torch.dtype, *, seed: int, batch: int = 2) -> Tensor:
    """Random numbers for one side of an operator; an open size is taken as 5."""
    kind = dtype.to_complex() if field == "complex" else dtype
    return random(batch, *(n or 5 for n in shape), seed=seed, dtype=kind)


def image(H: LinearOperator, dtype: torch.dtype = torch.float64, seed: int = 1, batch: int = 2) -> Tensor:
    return sample(H.input_shape, H.domain.field, dtype, seed=seed, batch=batch)


def data(H: LinearOperator, dtype: torch.dtype = torch.float64, seed: int = 2, batch: int = 2) -> Tensor:
    return sample(H.output_shape, H.codomain.field, dtype, seed=seed, batch=batch)


def inner(x: Tensor, y: Tensor) -> float:
    """Re<x, y>, summed in double precision."""
    kind = torch.complex128 if x.is_complex() or y.is_complex() else torch.float64
    return float((x.to(kind) * y.to(kind).conj()).sum().real)


def norm(x: Tensor) -> float:
    return math.sqrt(inner(x, x))


def as_real(x: Tensor) -> Tensor:
    """`(B, n)` or, for complex numbers, `(B, 2n)`: coordinates in which Re<x, y> is the dot product."""
    return torch.cat([x.real.flatten(1), x.imag.flatten(1)], dim=1) if x.is_complex() else x.flatten(1)


def dense(apply: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The matrix of `apply` in real coordinates; with `like (B, ...)` as the shape of a batch, item 0 is looked at."""
    columns = []
    for unit in (1, 1j) if like.is_complex() else (1,):
        for position in range(like[0].numel()):
            basis = torch.zeros_like(like)
            basis[0].view(-1)[position] = unit
            columns.append(as_real(apply(basis))[0])
    return torch.stack(columns, dim=1)
