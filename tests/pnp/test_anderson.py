"""Anderson acceleration: exact on affine maps, safeguarded on all, and the same fixed point with fewer calls."""

import math
from itertools import pairwise
from statistics import median

import pytest
import torch
from certified_denoisers import haar_frame, random_nonexpansive_matrix

from lipspline.formats import builtin
from lipspline.operators import MRI, Blur, MultiCoilMRI, ParallelBeamCT, cartesian_mask, simulated_maps
from lipspline.pnp import fbs
from lipspline.pnp.iterate import Anderson, iterate
from lipspline.priors import zoo


def affine(n: int):
    m = 0.48 * (random_nonexpansive_matrix(n, symmetric=True) + torch.eye(n, dtype=torch.float64))
    b = torch.randn(n, dtype=torch.float64)
    return (lambda x, rows: x @ m.mT + b), torch.linalg.solve(torch.eye(n, dtype=torch.float64) - m, b)


def test_an_affine_map_of_n_dimensions_is_solved_in_about_n_calls():
    """With memory n the minimal residual is zero after n differences: that is GMRES."""
    for n in (1, 2, 3, 5):
        function, exact = affine(n)
        value, (run,) = iterate(function, torch.zeros(1, n).double(), tol=1e-8, max_steps=1000, accelerator=Anderson(n))
        assert torch.allclose(value[0], exact, rtol=1e-6)
        assert run.calls <= n + 4
        plain = iterate(function, torch.zeros(1, n).double(), tol=1e-8, max_steps=1000)[1][0]
        assert plain.calls > 2 * run.calls


def test_the_first_proposal_is_the_secant_step():
    """In one dimension Anderson with memory 1 is the secant method on g = T - Id."""
    points = []

    def cosine(x, rows):
        points.append(x.item())
        return torch.cos(x)

    iterate(cosine, torch.tensor([[0.7]]).double(), tol=1e-12, max_steps=3, accelerator=Anderson(1))
    g = [torch.cos(torch.tensor(p).double()).item() - p for p in points]
    assert points[1] == pytest.approx(points[0] + g[0])
    assert points[2] == pytest.approx(points[1] - g[1] * (points[1] - points[0]) / (g[1] - g[0]), rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"memory": 2, "decrease": 0.5}, {"reach": 2.0}])
def test_residuals_never_increase(options):
    """Neither by accelerated steps, by the safeguard, nor by plain ones, as the map is nonexpansive."""
    function, _ = affine(20)

    def run(calls: int):
        start = torch.zeros(1, 20).double()
        return iterate(
            lambda x, rows: function(x.clamp(-0.5, 0.5), rows),
            start,
            tol=1e-13,
            max_steps=calls,
            accelerator=Anderson(**options),
        )[1][0]

    runs = [run(calls) for calls in range(1, 30)]
    assert runs[-1].accelerated > 5
    assert all(later.change <= earlier.change * (1 + 1e-12) for earlier, later in pairwise(runs))


def test_a_proposal_that_does_not_help_is_rejected_and_the_next_steps_are_plain():
    """A decrease that cannot be reached turns every proposal down; the pauses double, so few calls are wasted."""
    function, exact = affine(30)
    start = torch.zeros(1, 30).double()
    plain = iterate(function, start, tol=1e-4, max_steps=5000)[1][0]
    value, (run,) = iterate(function, start, tol=1e-4, max_steps=5000, accelerator=Anderson(1, decrease=1e-12))
    wasted = run.calls - run.steps
    assert run.accelerated == 0
    assert run.steps >= plain.steps
    assert 0 < wasted <= 2 + torch.tensor(float(run.calls)).log2().item()
    assert (value[0] - exact).norm() <= 1e-2 * exact.norm()


def test_no_proposal_goes_further_than_its_reach():
    """Condition 1 of the theorem: `‖x_{k+1} - T(x_k)‖ <= reach ‖T(x_k) - x_k‖`."""
    accelerator = Anderson(4, reach=3.0)
    function, _ = affine(20)
    point = torch.zeros(1, 20).double()
    image = function(point, None)
    seen = 0
    for _ in range(30):
        candidate, bold = accelerator.propose(point, image)
        mapped = function(candidate, None)
        assert (candidate - image).norm() <= 3.0 * (image - point).norm() * (1 + 1e-12)
        seen += bool(bold)
        trial, change = (mapped - candidate).norm()[None], (image - point).norm()[None]
        accelerator.judge(candidate - point, mapped - image, trial, change, bold)
        point, image = candidate, mapped
    assert seen > 0


def test_a_batch_is_accelerated_image_by_image():
    function, _ = affine(10)
    start = torch.randn(3, 10).double() * torch.tensor([[1.0], [100.0], [0.1]])
    together, runs = iterate(function, start, tol=1e-9, max_steps=500, accelerator=Anderson())
    for i in range(3):
        alone, (run,) = iterate(function, start[i : i + 1], tol=1e-9, max_steps=500, accelerator=Anderson())
        assert torch.allclose(together[i], alone[0], rtol=1e-6)
        assert abs(runs[i].calls - run.calls) <= 2


def test_a_start_where_plain_steps_are_short_is_not_taken_for_the_fixed_point():
    """Steps of the length tol, but the fixed point is 1000 of them away: that takes differences to see."""

    def slow(x, rows):
        return x + 1e-3 * (1 - x)

    start = torch.full((1, 4), 0.5).double()
    value, (run,) = iterate(slow, start, tol=1e-2, max_steps=100, accelerator=Anderson())
    assert run.converged
    assert (value - 1).abs().max() < 1e-6
    assert iterate(slow, start, tol=1e-2, max_steps=100)[1][0].calls == 1


def test_at_the_fixed_point_itself_one_call_is_enough():
    run = iterate(lambda x, rows: x.clamp(0, 1), torch.rand(1, 4), tol=1e-3, max_steps=9, accelerator=Anderson())[1][0]
    assert (run.converged, run.calls) == (True, 1)


def phantom(size: int, seed: int) -> torch.Tensor:
    """A few overlapping rectangles with smooth shading, in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    image = 0.2 * torch.outer(torch.linspace(0, 1, size), torch.linspace(1, 0, size))
    for _ in range(6):
        top, left, height, width = torch.randint(0, size // 2, (4,), generator=generator).tolist()
        image[top : top + height + 4, left : left + width + 4] += 0.3 * torch.rand(1, generator=generator)
    return (image / image.max())[None, None]


def reconstruction_problems(size: int = 24):
    """Twelve problems: three each of MRI, multi-coil MRI, CT and deblurring."""
    window = torch.hann_window(7, periodic=False)[1:-1]
    kernel = torch.outer(window, window) / window.sum() ** 2
    for seed in (0, 2, 4):
        x = phantom(size, seed)
        mask = cartesian_mask(size, 3, 0.125, seed=seed)
        for H, noise in (
            (MRI(mask), 0.01),
            (MultiCoilMRI(mask, simulated_maps(4, (size, size))), 0.005),
            (ParallelBeamCT(size, 12 + 2 * seed, 36), 0.2),
            (Blur(kernel, (1, size, size)), 0.01),
        ):
            y = H.forward(x)
            yield H, y + noise * torch.randn(y.shape, dtype=y.dtype), (0.1, 0.2, 0.3, 0.4, 0.5)[seed]


@pytest.fixture
def distance(monkeypatch):
    """How far, in units of tol, a solution is from the fixed point, which is approached with endless patience."""

    def measure(solution, y, H, denoiser, beta, tol) -> float:
        with monkeypatch.context() as patch:
            patch.setattr("lipspline.pnp.iterate.PATIENCE", math.inf)
            exact = fbs(y, H, denoiser, beta, tol=tol / 20, max_steps=3000, accelerate=True, start=solution.value)
        return float((solution.value - exact.value).norm() / exact.value.norm()) / tol

    return measure


def test_twelve_reconstructions_need_a_quarter_of_the_calls_for_the_same_fixed_point(distance):
    """At tol 1e-5: the fixed point to 10 tol, four times fewer calls in the median, never more than 1.2 times."""
    tol, gains = 1e-5, []
    for H, y, beta in reconstruction_problems():
        denoiser = haar_frame(0.02, levels=2)
        plain = fbs(y, H, denoiser, beta, tol=tol, max_steps=5000)
        fast = fbs(y, H, denoiser, beta, tol=tol, max_steps=5000, accelerate=True)
        assert fast.converged
        assert fast.certificate.guaranteed
        assert distance(fast, y, H, denoiser, beta, tol) <= 10, (H, beta)
        gains.append(plain.denoiser_calls / fast.denoiser_calls)
    assert median(gains) >= 4
    assert min(gains) >= 1 / 1.2


@pytest.mark.parametrize("beta", [0.01, 0.03])
def test_where_the_denoiser_has_little_weight_a_short_step_is_not_taken_for_the_end(distance, beta):
    """The data are met at once, and what they leave open moves by at most 2β of its way in a step."""
    tol, x = 2e-4, phantom(32, 0)
    H = MRI(cartesian_mask(32, 3, 0.125, seed=0))
    denoiser = haar_frame(0.05, levels=2)
    solution = fbs(H.forward(x), H, denoiser, beta, tol=tol, accelerate=True)
    assert solution.converged
    assert distance(solution, H.forward(x), H, denoiser, beta, tol) <= 10


def blobs(size: int, seed: int) -> torch.Tensor:
    """Smooth blobs, edges and texture: another kind of image than `phantom`, in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    image = 0.05 * torch.rand(size, size, generator=generator)
    for _ in range(8):
        cx, cy, width, height = torch.rand(4, generator=generator).tolist()
        distance = ((x - 2 * cx + 1) / (0.1 + width)) ** 2 + ((y - 2 * cy + 1) / (0.1 + height)) ** 2
        image += 0.3 * (torch.exp(-distance) if cx > 0.5 else (distance < 0.5).float())
    return (image / image.max())[None, None]


def drawn_problems(seeds: range, size: int = 40):
    """Four problems a seed, of which everything is drawn at random: image, operator, noise, β and denoiser."""
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)

        def uniform(low: float, high: float, generator: torch.Generator = generator) -> float:
            return low + (high - low) * float(torch.rand(1, generator=generator))

        x, width = blobs(size, seed), uniform(0.5, 1.5)
        mask = cartesian_mask(size, uniform(2, 4), 0.15, seed=seed)
        taps = torch.exp(-torch.arange(-3.0, 4).square() / (2 * width**2))
        for H, noise in (
            (MRI(mask), uniform(0, 0.02)),
            (MultiCoilMRI(mask, simulated_maps(int(uniform(3, 9)), (size, size))), uniform(0, 0.01)),
            (ParallelBeamCT(size, int(uniform(10, 30)), 60), uniform(0, 0.4)),
            (Blur(torch.outer(taps, taps) / taps.sum() ** 2, (1, size, size)), uniform(0, 0.02)),
        ):
            y = H.forward(x)
            y = y + noise * torch.randn(y.shape, dtype=y.dtype, generator=generator)
            yield H, y, uniform(0.05, 0.5), haar_frame(10 ** uniform(-2.5, -1.3), int(uniform(1, 4)))


def shipped_problems(size: int = 64):
    """Twenty problems with the denoisers that ship, on a head, a phantom and a photograph."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("skimage")
    window = torch.hann_window(9, periodic=False)[1:-1]
    kernel = torch.outer(window, window) / window.sum() ** 2
    head, camera = (
        image[None, None, 60 : 60 + 2 * size, 60 : 60 + 2 * size] for image in (builtin.head(), builtin.camera())
    )
    small, photograph = (torch.nn.functional.avg_pool2d(image, 2) for image in (head, camera))
    strengths = ((5, 0.1), (5, 0.3), (10, 0.1), (10, 0.4), (15, 0.3))
    generator = torch.Generator().manual_seed(0)
    for seed, (level, beta) in enumerate(strengths):
        mask = cartesian_mask(size, (3, 4, 4, 6, 8)[seed], 0.08, seed=seed)
        for H, x, noise in (
            (MRI(mask), small, 0.01),
            (MultiCoilMRI(mask, simulated_maps(8, (size, size))), small, 0.004),
            (ParallelBeamCT(size, 40 + 8 * seed, 72), builtin.shepp_logan(size)[None, None], 0.25),
            (Blur(kernel, (1, size, size)), photograph, 0.01),
        ):
            y = H.forward(x)
            y = y + noise * torch.randn(y.shape, dtype=y.dtype, generator=generator)
            yield H, y, beta, zoo("lls", noise=level)


@pytest.mark.slow
@pytest.mark.parametrize(
    "problems", [lambda: drawn_problems(range(500, 505)), shipped_problems], ids=["drawn", "shipped"]
)
def test_problems_the_stop_rule_was_not_made_on_are_accelerated_too(problems, distance):
    """As above, with other images and denoisers: what holds in the median and for most, and what always does."""
    tol, gains, distances = 1e-5, [], []
    for H, y, beta, denoiser in problems():
        plain = fbs(y, H, denoiser, beta, tol=tol, max_steps=5000)
        fast = fbs(y, H, denoiser, beta, tol=tol, max_steps=5000, accelerate=True)
        assert fast.converged
        assert fast.certificate.guaranteed
        gains.append(plain.denoiser_calls / fast.denoiser_calls)
        distances.append(distance(fast, y, H, denoiser, beta, tol))
    near = sum(far <= 10 for far in distances)
    print(
        f"\n{len(gains)} problems: {median(gains):.2f} times fewer calls in the median, least {min(gains):.2f}; "
        f"{near} within 10 tol of the fixed point, the furthest {max(distances):.1f}"
    )
    assert median(gains) >= 4
    assert min(gains) >= 1 / 1.2
    assert near >= 0.9 * len(distances)


def test_all_fixed_points_have_the_same_data_where_they_differ():
    """[eq:EstForward] with y₁ = y₂: for β <= 1/2 another start may give another image, but the same H x."""
    H = MRI(cartesian_mask(16, 2, 0.25))
    y = H.forward(phantom(16, 0))
    flat = haar_frame(0.0, levels=1)
    one = fbs(y, H, flat, 0.4, tol=1e-6)
    other = fbs(y, H, flat, 0.4, tol=1e-6, start=torch.rand(1, 1, 16, 16), accelerate=True)
    assert (one.value - other.value).norm() > 0.1 * one.value.norm()
    assert (H.forward(one.value) - H.forward(other.value)).norm() <= 1e-4 * y.norm()
