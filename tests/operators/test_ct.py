"""The Joseph projector against its definition, closed forms and scikit-image."""

import math
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operator_cases import dense, image, random

from lipspline import kernels
from lipspline.kernels import native
from lipspline.operators import ParallelBeamCT, WeightedCT
from lipspline.operators.ct import from_lanes, group_by_symmetry, to_lanes


def by_definition(H):
    """The projector as a scipy matrix: X cos θ + Y sin θ = s is sampled once a row or, if it is flat, a column."""
    sparse = pytest.importorskip("scipy.sparse")
    N, middle, blocks = H.size, (H.size - 1) / 2, []
    k = np.arange(N)[:, None]
    d = np.arange(H.detectors)
    s = ((d - (H.detectors - 1) / 2) * H.spacing + H.offset) / H.pixel
    for theta in H.angles.tolist():
        cos, sin = math.cos(theta), math.sin(theta)
        steep = abs(cos) >= abs(sin)
        in_row = middle + (s - (middle - k) * sin) / (cos if steep else math.nan)  # row k has Y = middle - k
        in_column = middle - (s - (k - middle) * cos) / (math.nan if steep else sin)  # column k has X = k - middle
        position = in_row if steep else in_column
        below = np.floor(position).astype(int)
        f = position - below
        length = H.pixel / max(abs(cos), abs(sin))
        block = 0
        for entry, weight in ((below, 1 - f), (below + 1, f)):
            seen = (entry >= 0) & (entry < N)
            pixels = k * N + entry if steep else entry * N + k
            places = (np.broadcast_to(d, entry.shape)[seen], pixels[seen])
            block = block + sparse.csr_matrix((length * weight[seen], places), shape=(H.detectors, N * N))
        blocks.append(block)
    return sparse.vstack(blocks).tocsr()


def coordinates(size, pixel=1.0):
    position = (torch.arange(size, dtype=torch.float64) - (size - 1) / 2) * pixel
    return position.view(1, -1), -position.view(-1, 1)


def rays(H):
    """θ `(A, 1)` and s `(D,)` of the rays."""
    s = (torch.arange(H.detectors, dtype=torch.float64) - (H.detectors - 1) / 2) * H.spacing
    return H.angles.view(-1, 1), s


def relative_error(actual, expected):
    return float(torch.linalg.vector_norm(actual - expected) / torch.linalg.vector_norm(expected))


@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("angles", [8, 5, torch.linspace(-7, 9, 13, dtype=torch.float64)], ids=["8", "5", "any"])
@pytest.mark.parametrize("offset", [0.0, 0.37])
@pytest.mark.parametrize("implementation", ["eager", "c"])
def test_it_follows_the_definition_of_the_joseph_projector(size, angles, offset, implementation):
    """[sec:exp_pnp]"""
    if implementation == "c" and native.library is None:
        pytest.skip("the C kernels are not built")
    H = ParallelBeamCT(size, angles, 11, spacing=0.6, pixel=0.7, offset=offset)
    x = random(size, size)
    with kernels.using(implementation):
        y = H.forward(x.view(1, 1, size, size))[0, 0]
    expected = torch.from_numpy(by_definition(H) @ x.numpy().ravel())
    torch.testing.assert_close(y.flatten(), expected, rtol=0, atol=1e-9)


def test_a_gaussian_blob_projects_to_gaussians():
    H = ParallelBeamCT(128, 36, 181, pixel=0.5)
    X, Y = coordinates(128, 0.5)
    x0, y0, width = 5.0, -8.0, 4.0
    blob = torch.exp(-((X - x0).square() + (Y - y0).square()) / (2 * width**2))
    theta, s = rays(H)
    offset = s - x0 * theta.cos() - y0 * theta.sin()
    expected = math.sqrt(2 * math.pi) * width * torch.exp(-offset.square() / (2 * width**2))
    y = H.forward(blob.view(1, 1, 128, 128))[0, 0]
    assert (y - expected).abs().max() <= 2e-3 * expected.max()


def test_a_disk_projects_to_chords():
    H = ParallelBeamCT(256, 30, 367, spacing=1.0)
    X, Y = coordinates(256)
    radius, x0, y0 = 60.0, 20.0, 30.0
    disk = ((X - x0).square() + (Y - y0).square() <= radius**2).double()
    theta, s = rays(H)
    offset = s - x0 * theta.cos() - y0 * theta.sin()
    expected = 2 * (radius**2 - offset.square()).clamp_min(0).sqrt()
    y = H.forward(disk.view(1, 1, 256, 256))[0, 0]
    assert relative_error(y, expected) <= 0.01
    torch.testing.assert_close(y.sum(1), torch.full((30,), float(disk.sum()), dtype=torch.float64), rtol=2e-3, atol=0)


def test_a_square_seen_from_the_side_and_across_its_diagonal():
    angles = torch.tensor([0.0, math.pi / 2, math.pi / 4, 3 * math.pi / 4], dtype=torch.float64)
    H = ParallelBeamCT(64, angles, 65, spacing=1.0)
    x = torch.zeros(1, 1, 64, 64, dtype=torch.float64)
    x[..., 16:48, 16:48] = 2.0
    y = H.forward(x)[0, 0]
    _, s = rays(H)
    side = torch.where(s.abs() < 15.5, 64.0, torch.where(s.abs() == 16, 32.0, 0.0)).double()
    torch.testing.assert_close(y[0], side)
    torch.testing.assert_close(y[1], side)
    diagonal = 2 * 2 * (16 * math.sqrt(2) - s.abs()).clamp_min(0)
    assert (y[2:] - diagonal).abs().max() <= 1.5
    assert relative_error(y[2], diagonal) <= 0.01


def test_it_agrees_with_scikit_image_on_an_image():
    transform = pytest.importorskip("skimage.transform")
    phantom = transform.resize(pytest.importorskip("skimage.data").shepp_logan_phantom(), (129, 129))
    theirs = torch.from_numpy(transform.radon(phantom, np.arange(20) * 9.0, circle=False)).mT
    H = ParallelBeamCT(129, 20, theirs.shape[1], spacing=1.0)
    ours = H.forward(torch.from_numpy(phantom).view(1, 1, 129, 129))[0, 0]
    assert relative_error(ours, theirs) <= 0.005


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=8))
def test_every_angle_is_a_symmetric_image_of_its_group(angles):
    theta = torch.tensor(angles, dtype=torch.float64)
    orbits = group_by_symmetry(theta)
    assert (orbits.angles >= 0).all()
    assert (orbits.angles <= math.pi / 4 + 1e-11).all()
    base = orbits.angles[orbits.group]
    shown = torch.stack([base, math.pi - base, math.pi / 2 - base, math.pi / 2 + base])[
        orbits.lane, torch.arange(len(theta))
    ]
    direction = torch.where(orbits.reversed, -1.0, 1.0)
    torch.testing.assert_close(direction * shown.cos(), theta.cos(), rtol=0, atol=1e-11)
    torch.testing.assert_close(direction * shown.sin(), theta.sin(), rtol=0, atol=1e-11)


def test_evenly_spread_angles_share_their_groups():
    assert len(ParallelBeamCT(16, 200, 23).orbits.angles) == 51
    assert len(ParallelBeamCT(16, 7, 23).orbits.angles) == 4


def test_lanes_and_their_transpose():
    x, lanes = random(2, 5, 5), random(2, 5, 5, 4)
    torch.testing.assert_close((to_lanes(x) * lanes).sum(), (x * from_lanes(lanes)).sum())
    torch.testing.assert_close(from_lanes(to_lanes(x)), 4 * x)


@pytest.mark.parametrize("geometry", [(8, 12, 11, None), (9, 5, 13, 0.8), (16, 40, 12, None), (8, 1, 12, None)])
def test_the_bounds_on_the_norm_are_within_a_thousandth(geometry):
    H = ParallelBeamCT(*geometry)
    largest = float(torch.linalg.svdvals(dense(H.forward, image(H)))[0])
    lower, upper = H.norm_bounds()
    assert lower <= largest <= upper
    assert upper / lower <= 1.001


def test_the_geometry_of_the_paper():
    """[sec:exp_pnp]: 200 angles, 400 detectors along the diagonal, the image on [-128, 128]²"""
    H = ParallelBeamCT.paper()
    assert H.output_shape == (1, 200, 400)
    assert H.spacing / H.pixel == pytest.approx(1.8102, abs=1e-4)
    lower, upper = H.norm_bounds()
    assert upper / lower <= 1.001
    constant = torch.ones(1, 1, 512, 512)
    assert float(H.forward(constant)[0, 0, 0, 200]) == pytest.approx(256.0, rel=1e-5)
    small = ParallelBeamCT.paper(64)
    assert float(small.forward(torch.ones(1, 1, 64, 64))[0, 0, 0, 200]) == pytest.approx(256.0, rel=1e-5)


def test_half_the_pixel_is_half_the_integral():
    x = random(1, 1, 8, 8)
    one, half = ParallelBeamCT(8, 6, 11), ParallelBeamCT(8, 6, 11, pixel=0.5)
    torch.testing.assert_close(half.forward(x), 0.5 * one.forward(x))
    torch.testing.assert_close(half.norm_bounds()[1], 0.5 * one.norm_bounds()[1])


def test_a_projector_that_cannot_see_the_image_is_refused():
    with pytest.raises(ValueError, match="5 detectors 1 apart span 5, but the image is 16 wide"):
        ParallelBeamCT(16, 30, 5, spacing=1.0)
    with pytest.raises(ValueError, match=r"of the 16x16 pixels are met by no ray of 1 angles and 4 detectors"):
        ParallelBeamCT(16, 1, 4)
    everywhere = ParallelBeamCT(16, 30, 16, spacing=1.0)  # corners are not seen from everywhere, as in many scanners
    assert everywhere.support is None


def test_corners_that_no_ray_of_a_limited_angle_meets_are_outside_the_support():
    """One angle of 45° is the worst that detectors as wide as the image can do."""
    H = ParallelBeamCT(64, torch.tensor([math.pi / 4], dtype=torch.float64), 64, spacing=1.0)
    assert H.support is not None
    unseen = (~H.support[0]).nonzero()
    assert 0 < len(unseen) < 0.1 * 64**2
    assert all(abs(row - column) > 32 * math.sqrt(2) - 1 for row, column in unseen.tolist())  # two opposite corners
    outside = torch.where(H.support, 0.0, torch.ones(1, 1, 64, 64))
    assert not H.forward(outside).any()
    assert torch.equal(WeightedCT(H, torch.ones(1, 64)).support, H.support)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="angles must be at least 1, but is 0"):
        ParallelBeamCT(16, 0, 23)
    with pytest.raises(ValueError, match="Angles in radians are given as a tensor"):
        ParallelBeamCT(16, 3.5, 23)  # pyright: ignore
    with pytest.raises(ValueError, match=r"a tensor \(A,\) of angles in radians, but got shape \(2, 3\)"):
        ParallelBeamCT(16, torch.ones(2, 3), 23)
    with pytest.raises(ValueError, match="angles has 1 NaN"):
        ParallelBeamCT(16, torch.tensor([0.0, float("nan")]), 23)
    with pytest.raises(ValueError, match="spacing must be a positive finite number, but is -1"):
        ParallelBeamCT(16, 4, 23, spacing=-1.0)
    with pytest.raises(ValueError, match="size must be at least 2"):
        ParallelBeamCT(1, 4, 23)


MEMORY = """
import torch
from lipspline.operators import ParallelBeamCT, WeightedCT
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
torch.ones(8, 8) @ torch.ones(8, 8)
before = peak()
H = ParallelBeamCT(512, 200, 400)
x = torch.rand(1, 1, 512, 512)
H.adjoint(H.forward(x))
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_projector_of_the_paper_needs_little_memory():
    used = float(subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout)
    print(f"\n512x512, 200 angles, 400 detectors: {used:.0f} MB above the import of torch")
    assert used <= 400


@pytest.mark.slow
def test_the_pair_is_faster_than_scikit_image_and_than_sparse_matrices():
    """Projector and adjoint at 512 x 512, 200 angles, 400 detectors, side by side."""
    transform = pytest.importorskip("skimage.transform")
    H = ParallelBeamCT(512, 200, 400)
    x, y = torch.rand(1, 1, 512, 512), torch.rand(1, 1, 200, 400)
    A, x_flat, y_flat = by_definition(H).astype(np.float32), x.numpy().ravel(), y.numpy().ravel()
    At = A.T.tocsr()
    torch.testing.assert_close(torch.from_numpy(A @ x_flat), H.forward(x).flatten(), rtol=1e-4, atol=1e-3)
    degrees = np.rad2deg(H.angles.numpy())
    sinogram = transform.radon(x[0, 0].numpy(), degrees, circle=False)
    ours = _median(lambda: (H.forward(x), H.adjoint(y)), 20)
    csr = _median(lambda: (A @ x_flat, At @ y_flat), 5)
    skimage = _median(
        lambda: (
            transform.radon(x[0, 0].numpy(), degrees, circle=False),
            transform.iradon(sinogram, degrees, output_size=512, filter_name=None, circle=False),
        ),
        1,
    )
    print(
        f"\nprojector and adjoint: {1e3 * ours:.1f} ms; scikit-image {skimage / ours:.0f} times slower, "
        f"scipy CSR {csr / ours:.1f} times slower"
    )
    assert skimage / ours >= 8
    assert csr / ours >= 1.5


def _median(call, repeats):
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]
