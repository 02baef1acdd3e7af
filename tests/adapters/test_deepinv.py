"""deepinv: with the library itself where it can be imported, and what needs only its conventions everywhere."""

import math
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipspline import certify, pnp
from lipspline.adapters import from_deepinv, to_deepinv, to_deepinv_denoiser
from lipspline.adapters.deepinv import AnyNoise
from lipspline.models import plain
from lipspline.networks import denoiser
from lipspline.networks.rescale import serving
from lipspline.operators import MRI, Blur, Identity, ParallelBeamCT, cartesian_mask


@pytest.fixture
def deepinv() -> ModuleType:
    """The library, or the reason why there is none: it needs a torchvision that fits the torch installed."""
    try:
        import deepinv
    except Exception as error:
        pytest.skip(f"deepinv cannot be imported: {error}")
    return deepinv


class Physics:
    """The two maps that from_deepinv asks of a physics, and nothing else: a circular shift in float32 only."""

    def __init__(self, back: int = -1):
        self.back = back

    def A(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32
        return 3 * x.roll(1, dims=-1)

    def A_adjoint(self, y: Tensor) -> Tensor:
        assert y.dtype == torch.float32
        return 3 * y.roll(self.back, dims=-1)


def small_denoiser() -> nn.Module:
    """Away from where it starts, since a linear one would not notice how it is rescaled."""
    model = denoiser("lls", channels=4, depth=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return plain(model)


# The denoiser at any noise: needs no deepinv


@pytest.mark.parametrize("sigma", [0.02, 0.3])
def test_the_denoiser_is_the_one_for_every_sigma(sigma: float):
    """[sec:exp_pnp]: rescaled or averaged; sigma is a fraction of white, noise in units of 1/255."""
    D, x = small_denoiser(), torch.rand(2, 1, 9, 8)
    wanted = serving(D, 15, sigma * 255)(x)
    for given in (sigma, torch.tensor(sigma), torch.tensor([sigma, sigma]), [sigma], torch.full((2, 1, 1, 1), sigma)):
        torch.testing.assert_close(AnyNoise(D, 15)(x, given), wanted)


def test_at_the_noise_it_was_trained_for_it_is_the_denoiser():
    """c = 1."""
    D, x = small_denoiser(), torch.rand(2, 1, 9, 8)
    torch.testing.assert_close(AnyNoise(D, 25.5)(x, 0.1), D(x))


def test_each_image_has_its_own_noise():
    """A batch with two levels is two images with one each."""
    D, x = AnyNoise(small_denoiser(), 15), torch.rand(2, 1, 9, 8)
    together = D(x, torch.tensor([0.05, 0.2]))
    torch.testing.assert_close(together, torch.cat([D(x[:1], 0.05), D(x[1:], 0.2)]))


def test_colours_and_complex_images_are_denoised_part_by_part():
    """Which keeps the Lipschitz constant."""
    D, x = AnyNoise(small_denoiser(), 15), torch.rand(2, 3, 9, 8)
    torch.testing.assert_close(D(x, 0.1), torch.cat([D(x[:, i : i + 1], 0.1) for i in range(3)], dim=1))
    z = torch.complex(x, x.flip(0))
    torch.testing.assert_close(D(z, 0.1), torch.complex(D(x, 0.1), D(x.flip(0), 0.1)))


def test_the_rescaled_denoiser_does_not_expand_and_sigma_can_be_learned():
    """The certificate is that of the denoiser; a gradient reaches sigma."""
    D = AnyNoise(small_denoiser(), 15)
    assert D.certificate.upper <= 1
    x, z = torch.rand(2, 1, 1, 9, 8).unbind()
    assert (D(x, 0.3) - D(z, 0.3)).norm() <= (x - z).norm() * (1 + 1e-6)
    sigma = torch.tensor(0.1, requires_grad=True)
    D(x, sigma).sum().backward()
    assert sigma.grad is not None


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_a_noise_level_that_is_none_is_refused(sigma: float):
    """The value is shown."""
    with pytest.raises(ValueError, match="sigma must be positive and finite, but is"):
        AnyNoise(nn.ReLU(), 15)(torch.rand(1, 1, 2, 2), sigma)


def test_what_does_not_fit_is_refused():
    """Three levels for two images; a denoiser that expands."""
    with pytest.raises(ValueError, match="sigma has 3 noise levels for 2 images"):
        AnyNoise(nn.ReLU(), 15)(torch.rand(2, 1, 2, 2), [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="certified to be Lipschitz with constant 2"):
        layer = nn.Linear(1, 1)
        nn.init.constant_(layer.weight, 2.0)
        AnyNoise(layer, 15)


# Their physics: needs only objects with A and A_adjoint


def test_a_physics_is_an_operator_in_its_own_precision():
    """Float64 images go through a float32 physics and come back as float64."""
    H = from_deepinv(Physics(), (1, 4, 5), norm=3.0)
    x = H.domain.sample(1)
    assert H.forward(x).dtype == torch.float64
    torch.testing.assert_close(H.forward(x), 3 * x.roll(1, dims=-1), atol=1e-6, rtol=1e-6)
    assert H.norm_bounds() == (pytest.approx(3.0, rel=1e-6), 3.0)


def test_a_physics_with_a_wrong_adjoint_is_refused():
    """Shifted the wrong way back."""
    with pytest.raises(ValueError, match=r"^The physics Physics is not wrapped: its adjoint is off by"):
        from_deepinv(Physics(back=1), (1, 4, 5))


def test_a_physics_without_a_proven_norm_gets_no_guarantee():
    """[eq:pnp_fbs]: an estimate is not taken for one, even if the physics offers it."""
    physics = Physics()
    physics.compute_norm = lambda *_: pytest.fail("an estimate proves nothing")  # type: ignore[attr-defined]
    H = from_deepinv(physics, (1, 4, 5))
    assert H.norm_bounds()[1] == math.inf
    with pytest.raises(ValueError, match="No upper bound on ‖H‖ is known"):
        pnp.fbs(torch.ones(1, 1, 4, 5), H, nn.ReLU())


def test_something_without_an_adjoint_is_refused():
    """The type is named."""
    with pytest.raises(ValueError, match=r"needs a linear physics with A and A_adjoint, but got a Identity"):
        from_deepinv(nn.Identity(), (1, 4, 5))


@pytest.mark.parametrize(
    "export", [lambda: to_deepinv(Identity((1, 2, 2))), lambda: to_deepinv_denoiser(nn.ReLU(), 15)]
)
def test_a_missing_deepinv_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, export: Any):
    """Errors say what to install."""
    for name in ("deepinv", "deepinv.models", "deepinv.physics"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"lipspline\[deepinv\]"):
        export()


# With the library itself


@pytest.mark.parametrize("H", [ParallelBeamCT(8, 6, 11), Blur(torch.ones(3, 3) / 9, (1, 8, 8))], ids=["ct", "blur"])
def test_our_operators_are_physics(deepinv: ModuleType, H: Any):
    """A, A_adjoint and the pseudoinverse by their solver; their estimate of the norm lies below our bound."""
    physics = to_deepinv(H)
    assert isinstance(physics, deepinv.physics.LinearPhysics)
    x = torch.rand(2, 1, 8, 8)
    y = physics(x)
    torch.testing.assert_close(y, H.forward(x))
    torch.testing.assert_close(physics.A_adjoint(y), H.adjoint(y))
    assert abs(float(physics.adjointness_test(x))) < 1e-2 * float(y.norm())
    estimate = float(physics.compute_norm(x[:1], squared=False, verbose=False, tol=1e-6))
    assert 0.99 * H.norm_bounds()[0] <= estimate <= H.norm_bounds()[1] * (1 + 1e-5)


def test_our_mri_is_a_physics_with_complex_data(deepinv: ModuleType):
    """Real images, complex k-space, the gradient of their data term by our adjoint."""
    H = MRI(cartesian_mask(8, 2, 0.25).expand(8, 8))
    physics = to_deepinv(H)
    x, y = torch.rand(2, 1, 8, 8), H.forward(torch.rand(2, 1, 8, 8))
    gradient = deepinv.optim.L2().grad(x, y, physics)
    torch.testing.assert_close(gradient, H.adjoint(H.forward(x) - y))


def test_our_denoiser_in_their_prior_does_one_step_of_our_iteration(deepinv: ModuleType):
    """[eq:pnp_fbs] with beta = 1 by their proximal-gradient step and by ours."""
    H, D = Blur(torch.ones(3, 3) / 9, (1, 8, 8)), small_denoiser()
    theirs = to_deepinv_denoiser(D, 15)
    assert isinstance(theirs, deepinv.models.Denoiser)
    prior, fidelity, physics = deepinv.optim.PnP(theirs), deepinv.optim.L2(), to_deepinv(H)
    x, y = torch.rand(1, 1, 8, 8), torch.rand(1, 1, 8, 8)
    step = 1 / H.norm_bounds()[1] ** 2
    stepped = prior.prox(x - step * fidelity.grad(x, y, physics), 15 / 255)
    torch.testing.assert_close(stepped, D(x - step * H.adjoint(H.forward(x) - y)))
    assert certify(theirs.denoiser).upper <= 1


@pytest.mark.parametrize("name", ["blur", "inpainting"])
def test_their_physics_in_our_plug_and_play(deepinv: ModuleType, name: str):
    """[eq:pnp_fbs]: with a bound from the dense matrix, a guarantee."""
    physics = {
        "blur": lambda: deepinv.physics.Blur(filter=torch.ones(1, 1, 3, 3) / 9, padding="circular"),
        "inpainting": lambda: deepinv.physics.Inpainting((1, 8, 8), mask=(torch.rand(1, 8, 8) > 0.4).float()),
    }[name]()
    H = from_deepinv(physics, (1, 8, 8), norm="dense")
    assert H.norm_bounds()[1] == pytest.approx(1.0, rel=1e-5)
    solution = pnp.fbs(H.forward(torch.rand(2, 1, 8, 8)), H, small_denoiser(), contraction=0.9, tol=1e-5)
    assert solution.converged
    assert solution.certificate.guaranteed


def test_their_tomography_is_refused_for_its_adjoint(deepinv: ModuleType):
    """Off by some 1e-3, where round-off would be 1e-6."""
    physics = deepinv.physics.Tomography(angles=12, img_width=16, adjoint_via_backprop=False, normalize=False)
    with pytest.raises(ValueError, match="Tomography is not wrapped: its adjoint is off by"):
        from_deepinv(physics, (1, 16, 16))
