"""The fan-beam projector against its definition, closed forms, parallel beams and ASTRA."""

import math
import time

import numpy as np
import pytest
import torch
from operator_cases import dense, image, random

from lipspline import kernels
from lipspline.kernels import native
from lipspline.operators import FanBeamCT, ParallelBeamCT, WeightedCT
from lipspline.operators.fan import DETECTORS, from_quarter_turns, to_quarter_turns


def source_and_rays(H, theta):
    """Source `(2,)` and directions `(D, 2)` of the rays of one angle, from points on the detector."""
    u, ahead = np.array([math.cos(theta), math.sin(theta)]), np.array([-math.sin(theta), math.cos(theta)])
    source = -H.source_origin * ahead
    places = (np.arange(H.detectors)[:, None] - (H.detectors - 1) / 2) * H.spacing + H.offset
    if H.detector == "flat":
        return source, H.source_detector * ahead + places * u
    arc = places / H.source_detector
    return source, np.cos(arc) * ahead + np.sin(arc) * u


def by_definition(H):
    """The projector as a dense matrix, ray by ray and sample by sample."""
    N, middle = H.size, (H.size - 1) / 2
    matrix = np.zeros((len(H.angles), H.detectors, N, N))
    for a, theta in enumerate(H.angles.tolist()):
        source, directions = source_and_rays(H, theta)
        for d, (dx, dy) in enumerate(directions):
            steep = abs(dy) >= abs(dx)
            length = H.pixel * math.hypot(dx, dy) / max(abs(dx), abs(dy))
            for k in range(N):
                if steep:  # the row of this height
                    height = (middle - k) * H.pixel
                    place = (source[0] + (height - source[1]) * dx / dy) / H.pixel + middle
                else:  # the column of this X
                    across = (k - middle) * H.pixel
                    place = middle - (source[1] + (across - source[0]) * dy / dx) / H.pixel
                below = math.floor(place)
                for entry, weight in ((below, 1 - (place - below)), (below + 1, place - below)):
                    if 0 <= entry < N:
                        matrix[(a, d, k, entry) if steep else (a, d, entry, k)] += length * weight
    return torch.from_numpy(matrix.reshape(len(H.angles) * H.detectors, N * N))


GEOMETRIES = {
    "flat": {"spacing": 1.1, "source_origin": 9.0, "source_detector": 14.0},
    "curved": {"spacing": 1.1, "source_origin": 9.0, "source_detector": 14.0, "detector": "curved"},
    "offset": {"spacing": 0.9, "source_origin": 7.0, "source_detector": 7.0, "pixel": 0.8, "offset": 0.7},
    "curved, offset": {
        "spacing": 0.9,
        "source_origin": 7.0,
        "source_detector": 3.0,
        "pixel": 0.8,
        "offset": -0.35,
        "detector": "curved",
    },
}
ANGLES = {"8": 8, "5": 5, "any": torch.linspace(-7, 9, 13, dtype=torch.float64)}


@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("angles", ANGLES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("implementation", ["eager", "c"])
def test_it_follows_the_definition_of_the_joseph_projector(size, angles, geometry, implementation):
    if implementation == "c" and native.library is None:
        pytest.skip("the C kernels are not built")
    H = FanBeamCT(size, ANGLES[angles], 9, **GEOMETRIES[geometry])
    x = random(size, size)
    with kernels.using(implementation):
        y = H.forward(x.view(1, 1, size, size))[0, 0]
    torch.testing.assert_close(y.flatten(), by_definition(H) @ x.flatten(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("detector", ["flat", "curved"])
@pytest.mark.parametrize("offset", [0.0, 7.3])
def test_a_disk_projects_to_chords(detector, offset):
    H = FanBeamCT(
        256, 30, 421, 1.5, source_origin=400.0, source_detector=560.0, detector=detector, offset=offset, pixel=0.9
    )
    position = (torch.arange(256, dtype=torch.float64) - 127.5) * 0.9
    X, Y = position.view(1, -1), -position.view(-1, 1)
    radius, x0, y0 = 55.0, 20.0, 30.0
    disk = ((X - x0).square() + (Y - y0).square() <= radius**2).double()
    expected = []
    for theta in H.angles.tolist():
        source, rays = source_and_rays(H, theta)
        rays = rays / np.linalg.norm(rays, axis=1, keepdims=True)
        distance = (x0 - source[0]) * rays[:, 1] - (y0 - source[1]) * rays[:, 0]
        expected.append(2 * np.sqrt(np.clip(radius**2 - distance**2, 0, None)))
    expected = torch.from_numpy(np.stack(expected))
    y = H.forward(disk.view(1, 1, 256, 256))[0, 0]
    assert float((y - expected).norm() / expected.norm()) <= 0.01
    inside = expected > radius  # away from the rim, where a pixel more or less is seen
    assert float(((y - expected)[inside] / expected[inside]).mean().abs()) <= 2e-3


def test_a_source_far_away_gives_parallel_beams():
    angles, x = torch.linspace(0, 6, 17, dtype=torch.float64), random(1, 1, 20, 20)
    parallel = ParallelBeamCT(20, angles, 31, 1.0, offset=0.4)
    for detector in ("flat", "curved"):
        far = FanBeamCT(20, angles, 31, 1.0, source_origin=1e9, source_detector=1e9, detector=detector, offset=0.4)
        torch.testing.assert_close(far.forward(x), parallel.forward(x), rtol=0, atol=1e-5)


def test_quarter_turns_and_their_transpose():
    x, lanes = random(2, 5, 5), random(2, 5, 5, 4)
    torch.testing.assert_close((to_quarter_turns(x) * lanes).sum(), (x * from_quarter_turns(lanes)).sum())


def test_evenly_spread_angles_share_their_groups():
    H = FanBeamCT(16, 200, 23, source_origin=30.0, source_detector=50.0)
    assert len(H._start) == 50


def random_geometry(seed):
    """Any scanner: fans and parallel beams, few and many angles, limited arcs, offsets, weights."""
    draw = np.random.default_rng(seed)
    size, detectors = int(draw.integers(3, 15)), int(draw.integers(3, 22))
    pixel = float(np.exp(draw.normal()))
    arc = draw.choice([2 * math.pi, math.pi, 1.5, 0.5])
    angles = torch.from_numpy(draw.uniform(0, arc, int(draw.integers(1, 40))))
    H = (random_parallel if draw.random() < 0.3 else random_fan)(draw, size, angles, detectors, pixel)
    if draw.random() < 0.5:
        return H
    weights = torch.from_numpy(draw.exponential(size=H.output_shape[1:]))
    weights[:, draw.integers(H.detectors)] = 0
    return WeightedCT(H, weights)


def random_fan(draw, size, angles, detectors, pixel):
    corner, detector = size * pixel / math.sqrt(2), draw.choice(DETECTORS)
    near, far = corner * float(draw.uniform(1.05, 8)), 3 * corner
    shape = {"source_origin": near, "source_detector": far, "pixel": pixel, "detector": detector}
    spacing = FanBeamCT(size, angles, detectors, **shape).spacing * float(draw.uniform(0.3, 0.9))
    offset = float(draw.uniform(-1, 1)) * spacing * detectors / 6
    return FanBeamCT(size, angles, detectors, spacing, offset=offset, **shape)


def random_parallel(draw, size, angles, detectors, pixel):
    """With more detectors where some pixels would not be seen."""
    offset = float(draw.uniform(-1, 1)) * size * pixel / 4
    detectors = max(detectors, 3 * size)
    return ParallelBeamCT(size, angles, detectors, 2 * size * pixel / detectors, pixel=pixel, offset=offset)


def check_norm(seed):
    """Both bounds against the dense matrix, and the adjoint in the precision that images have."""
    H = random_geometry(seed)
    matrix = dense(H.forward, image(H, batch=1))
    largest = float(torch.linalg.svdvals(matrix)[0])
    lower, upper = H.norm_bounds()
    assert lower <= largest * (1 + 1e-12), seed
    assert largest <= upper, seed
    assert upper / lower <= 1.01, seed
    x, y = random(1, *H.input_shape, seed=seed).float(), random(1, *H.output_shape, seed=seed + 1).float()
    difference = (H.forward(x).double() * y).sum() - (x.double() * H.adjoint(y)).sum()
    assert float(difference.abs()) <= 1e-6 * largest * float(x.norm() * y.norm()), seed


@pytest.mark.parametrize("seed", range(24))
def test_the_bounds_on_the_norm_are_within_a_hundredth(seed):
    check_norm(seed)


@pytest.mark.slow
def test_the_bounds_on_the_norm_of_a_thousand_random_geometries():
    for seed in range(1000):
        check_norm(seed)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "angles", "detectors"), [(256, 360, 384), (512, 720, 768)])
def test_a_ray_of_a_fan_costs_at_most_half_more_than_a_parallel_one(size, angles, detectors):
    """Projector and adjoint on one thread, side by side; the least of several times of the processor."""
    fan = FanBeamCT(size, angles, detectors, source_origin=2.0 * size, source_detector=3.0 * size)
    parallel, threads = ParallelBeamCT(size, angles, detectors), torch.get_num_threads()
    x, y, best = torch.rand(1, 1, size, size), torch.rand(1, 1, angles, detectors), [math.inf, math.inf]
    torch.set_num_threads(1)
    try:
        for _ in range(15):
            for i, H in enumerate((fan, parallel)):
                begin = time.process_time()
                H.forward(x), H.adjoint(y)
                best[i] = min(best[i], time.process_time() - begin)
    finally:
        torch.set_num_threads(threads)
    print(f"\n{size}x{size}, {angles} angles, {detectors} rays: fan {1e3 * best[0]:.1f} ms, {best[0] / best[1]:.2f} x")
    assert best[0] <= 1.5 * best[1]


def test_half_the_unit_of_length_is_half_the_integral():
    x = random(1, 1, 8, 8)
    one = FanBeamCT(8, 6, 11, 1.0, source_origin=9.0, source_detector=12.0, offset=0.3)
    half = FanBeamCT(8, 6, 11, 0.5, source_origin=4.5, source_detector=6.0, offset=0.15, pixel=0.5)
    torch.testing.assert_close(half.forward(x), 0.5 * one.forward(x))


def test_the_field_of_view_is_seen_from_every_angle_and_no_more():
    H = FanBeamCT(101, 60, 90, 1.0, source_origin=120.0, source_detector=180.0, offset=4.0)
    position = torch.arange(101, dtype=torch.float64) - 50
    distance = (position.view(1, -1).square() + position.view(-1, 1).square()).sqrt()
    seen = torch.stack([H.adjoint(_only(H, a))[0, 0] > 0 for a in range(60)]).all(dim=0)
    assert seen[distance < H.field_of_view - 1.5].all()
    assert not seen[distance > H.field_of_view + 1.5].any()


def _only(H, a):
    y = torch.zeros(1, *H.output_shape, dtype=torch.float64)
    y[0, 0, a] = 1
    return y


def test_nonsense_is_refused():
    distances = {"source_origin": 30.0, "source_detector": 40.0}
    with pytest.raises(ValueError, match=r"The source turns at 10 around .* corners are 11.3137 away"):
        FanBeamCT(16, 4, 23, source_origin=10.0, source_detector=40.0)
    with pytest.raises(ValueError, match="detector must be one of 'flat', 'curved', but is 'round'"):
        FanBeamCT(16, 4, 23, **distances, detector="round")  # pyright: ignore
    with pytest.raises(ValueError, match=r"fan opens .* degrees to one side"):
        FanBeamCT(16, 4, 23, 9.0, **distances, detector="curved")
    with pytest.raises(ValueError, match=r"No ray meets the image: the offset of the detector, 60, is too large"):
        FanBeamCT(16, 4, 5, 1.0, **distances, offset=60.0)
    with pytest.raises(ValueError, match="offset must be a finite number, but is nan"):
        FanBeamCT(16, 4, 23, **distances, offset=float("nan"))
    with pytest.raises(ValueError, match="source_origin must be a positive finite number, but is -1"):
        FanBeamCT(16, 4, 23, source_origin=-1.0, source_detector=40.0)


def test_weights_that_are_none_are_refused():
    H = ParallelBeamCT(8, 4, 12)
    with pytest.raises(ValueError, match=r"real numbers \(4, 12\), but got \(12, 4\)"):
        WeightedCT(H, torch.ones(12, 4))
    with pytest.raises(ValueError, match=r"not negative and not all zero, but lie in \[-1, 0\]"):
        WeightedCT(H, -torch.ones(4, 12).cumsum(1).clamp_max(1) + torch.eye(12)[:4])
    with pytest.raises(ValueError, match="weights has 48 NaN"):
        WeightedCT(H, torch.full((4, 12), float("nan")))


def test_a_weight_is_the_square_of_what_a_ray_is_multiplied_by():
    H, x = ParallelBeamCT(8, 4, 12), random(1, 1, 8, 8)
    weights = random(4, 12).square()
    torch.testing.assert_close(WeightedCT(H, weights).forward(x), H.forward(x) * weights.sqrt())


@pytest.mark.parametrize("kind", ["parallel", "flat"])
def test_it_agrees_with_astra(kind):
    astra = pytest.importorskip("astra", reason="ASTRA cannot be imported", exc_type=ImportError)
    size, detectors, angles = 65, 121, np.linspace(0, 6, 23)
    volume = astra.create_vol_geom(size, size)
    if kind == "parallel":
        H = ParallelBeamCT(size, torch.from_numpy(angles), detectors, 1.0)
        geometry, projector = astra.create_proj_geom("parallel", 1.0, detectors, angles), "linear"
    else:
        H = FanBeamCT(size, torch.from_numpy(angles), detectors, 1.3, source_origin=100.0, source_detector=150.0)
        geometry = astra.create_proj_geom("fanflat", 1.3, detectors, angles, 100.0, 50.0)
        projector = "line_fanflat"
    x = np.zeros((size, size), np.float32)
    x[10:30, 20:50], x[40:50, 5:25] = 1, 0.5
    theirs = astra.create_sino(x, astra.create_projector(projector, geometry, volume))[1]
    ours = H.forward(torch.from_numpy(x)[None, None])[0, 0].numpy()
    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    assert error <= (1e-4 if kind == "parallel" else 0.02)  # ASTRA's fan takes exact lengths in pixels
