"""Networks of torchlip, orthogonium and torch's own parametrizations certify as they are."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import lipspline as ls


def check(model: nn.Module, x: torch.Tensor) -> float:
    """The bound is above the exact Jacobian, at a few points."""
    model = model.eval()
    upper = ls.certify(model, x).upper
    for seed in range(3):
        point = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
        jacobian = torch.autograd.functional.jacobian(model, point).reshape(-1, x.numel())
        assert float(torch.linalg.matrix_norm(jacobian.double(), ord=2)) <= upper * (1 + 1e-5)
    return upper


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return 0.5 * (x + self.inner(x))


def test_parametrizations_of_torch():
    torch.manual_seed(0)
    layers = nn.Sequential(
        parametrizations.orthogonal(nn.Linear(6, 6)),
        nn.ReLU(),
        parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="cayley"),
    )
    assert check(Wrapped(layers), torch.randn(1, 6)) == pytest.approx(1, abs=1e-5)
    assert check(Wrapped(parametrizations.weight_norm(nn.Linear(6, 6))), torch.randn(1, 6)) > 0.5


def test_a_promise_that_is_exceeded_shows():
    """Spectral normalisation by a few power iterations promises 1, and has more: the certificate says so."""
    torch.manual_seed(0)
    layer = parametrizations.spectral_norm(nn.Linear(40, 40))
    layer.weight  # noqa: B018 (a step of the power iteration)
    exact = float(torch.linalg.matrix_norm(layer.eval().weight.detach().double(), ord=2))
    assert exact > 1.0001
    assert ls.certify(layer).upper == pytest.approx(exact, rel=1e-6)
    assert ls.certify(Wrapped(layer), torch.randn(1, 40)).upper >= 0.5 * (exact - 1)


def test_torchlip():
    torchlip = pytest.importorskip("deel.torchlip", reason="needs the package deel-torchlip")
    torch.manual_seed(0)
    model = torchlip.Sequential(
        torchlip.SpectralConv2d(1, 4, (3, 3), padding=1),
        torchlip.GroupSort2(),
        nn.Flatten(),
        torchlip.SpectralLinear(256, 8),
        torchlip.FullSort(),
        torchlip.FrobeniusLinear(8, 2),
    )
    x = torch.randn(1, 1, 8, 8)
    model(x)
    assert 0 < check(model, x) < 1.01
    assert check(torchlip.LayerCentering(), x) == pytest.approx(1)
    with pytest.raises(ValueError, match="jumps"):
        ls.certify(torchlip.HouseHolder(4), torch.randn(1, 4, 3))


def test_orthogonium():
    pytest.importorskip("orthogonium", reason="needs the package orthogonium")
    from orthogonium.layers import AdaptiveOrthoConv2d, MaxMin, OrthoLinear  # type: ignore[import-not-found]

    torch.manual_seed(0)
    model = nn.Sequential(AdaptiveOrthoConv2d(2, 4, 3, padding=1), MaxMin(), nn.Flatten(), OrthoLinear(144, 5))
    x = torch.randn(1, 2, 6, 6)
    model(x)
    with pytest.raises(ValueError, match="another one at each call"):  # its power iteration goes on in eval mode
        ls.certify(model, x)
    for layer in model:
        for name in list(getattr(layer, "parametrizations", {})):
            parametrize.remove_parametrizations(layer, name)
    assert check(model, x) == pytest.approx(1, abs=0.02)
