"""Residual blocks, centering and pooling: the constant 1, and that it is reached."""

import pytest
import torch
from torch import nn

import lipspline as ls
from lipspline.nn import (
    Centering,
    ConvexPotential,
    InvertibleDownsampling,
    InvertibleUpsampling,
    L2NormPool2d,
    LinearSpline,
    RidgeStep,
    SampleUnshuffle,
    UnrolledRidge,
    conv1d,
    conv2d,
    conv3d,
)

BLOCKS = {
    "potential": lambda: (ConvexPotential(4, 6), (4,)),
    "potential of relu": lambda: (ConvexPotential(4, 3, nn.ReLU()), (4,)),
    "potential of images": lambda: (ConvexPotential(2, 3), (2, 3, 3)),
    "potential of convolutions": lambda: (ConvexPotential(2, 3, kernel=3), (2, 4, 4)),
    "downsampling": lambda: (InvertibleDownsampling(2), (2, 4, 4)),
    "upsampling of volumes": lambda: (InvertibleUpsampling(2, axes=3), (8, 2, 1, 2)),
    "unrolled descent": lambda: (UnrolledRidge(RidgeStep(2, 3), RidgeStep(2, 3, strength=9.0)), (1, 4, 4)),
    "centering": lambda: (Centering(1), (5,)),
    "centering of images": lambda: (Centering(2, 3), (2, 3, 3)),
    "length of squares": lambda: (L2NormPool2d(2), (2, 4, 4)),
}


def steepest(block: nn.Module, shape: tuple[int, ...]) -> float:
    """The largest singular value of the exact Jacobian, at a few points."""
    values = []
    for seed in range(6):
        x = 2 * torch.randn(1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        jacobian = torch.func.jacrev(block.double())(x).reshape(-1, x.numel())
        values.append(float(torch.linalg.matrix_norm(jacobian.detach(), ord=2)))
    return max(values)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_proved_to_have_constant_one_and_reach_it(name: str):
    torch.manual_seed(0)
    block, shape = BLOCKS[name]()
    upper = ls.certify(block).upper
    assert upper <= 1 + 1e-6
    assert steepest(block, shape) == pytest.approx(upper, abs=1e-5)


def test_a_potential_with_one_neuron_is_a_reflection():
    """x - 2 relu(x): its constant 1 needs the factor 2, and no more."""
    block = ConvexPotential(1, 1, nn.ReLU())
    x = torch.tensor([[-2.0], [3.0]])
    torch.testing.assert_close(block(x * block.weight.sign()) * block.weight.sign(), -x.abs() + 0 * x)


@pytest.mark.parametrize("slope", [(-1.0, 1.0), (0.0, 2.0)])
def test_slopes_outside_the_unit_interval_are_certified_as_they_are(slope):
    """The rule gives up the constant 1, and the exact Jacobian shows that it must."""
    torch.manual_seed(0)
    spline = LinearSpline(2, regions=4, radius=1.0, slope=slope)
    with torch.no_grad():
        spline.coefficients.copy_(torch.linspace(-1, 1, 5).mul(slope[0] if slope[0] < 0 else slope[1]).expand(2, -1))
    block = ConvexPotential(2, 2, spline)
    with torch.no_grad():
        block.weight.copy_(torch.eye(2))
    upper = ls.certify(block).upper
    assert upper == pytest.approx(3.0, rel=1e-4)  # 1 + 2, or 2 * 2 - 1
    assert steepest(block, (2,)) == pytest.approx(upper, rel=1e-4)


def test_the_potential_of_convolutions_is_the_dense_one_of_their_matrix():
    """x - 2 WᵀT⁻¹σ(Wx + b) with the matrix of the zero-padded convolution; T dominates WWᵀ."""
    torch.manual_seed(0)
    block = ConvexPotential(2, 3, nn.ReLU(), kernel=3).double()
    with torch.no_grad():
        block.bias.normal_()
        block.log_q.normal_(std=0.3)
        basis = torch.eye(2 * 16, dtype=torch.float64).reshape(-1, 2, 4, 4)
        w = nn.functional.conv2d(basis, block.weight, padding=1).flatten(1).mT
        t, b = block.diagonal().repeat_interleave(16), block.bias.repeat_interleave(16)
        x = torch.randn(5, 2, 4, 4, dtype=torch.float64)
        expected = x.flatten(1) - 2 * ((x.flatten(1) @ w.mT + b).relu() / t) @ w
        torch.testing.assert_close(block(x).flatten(1), expected)
        assert float(torch.linalg.eigvalsh(torch.diag(t) - w @ w.mT).min()) >= -1e-12


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "layer",
    [conv1d(4, 4, 3, stride=2), conv2d(4, 4, 3, stride=2), conv3d(4, 4, 3, stride=2), L2NormPool2d(2)],
    ids=["conv1d", "conv2d", "conv3d", "pool"],
)
def test_a_batch_without_inputs_goes_through_layers_that_make_images_smaller(layer: nn.Module, train: bool):
    """Such as those of a batch that a condition has chosen; nn.PixelUnshuffle returns it as it was."""
    axes = next((m.weight.ndim - 2 for m in layer.modules() if hasattr(m, "weight")), 2)
    x = torch.zeros(0, 4, *[8] * axes, requires_grad=True)
    y = layer.train(train)(x)
    assert y.shape == (0, 4, *[4] * axes)
    y.sum().backward()
    assert x.grad is not None


def test_resampling_orders_channels_as_torch_does_and_can_be_inverted():
    x = torch.randn(2, 3, 4, 6)
    assert torch.equal(InvertibleDownsampling(2)(x), nn.PixelUnshuffle(2)(x))
    assert torch.equal(InvertibleDownsampling(2, axes=1)(x[..., 0, :]), SampleUnshuffle(2)(x[..., 0, :]))
    y = torch.randn(2, 18, 2, 5)
    assert torch.equal(InvertibleUpsampling(3)(y), nn.PixelShuffle(3)(y))
    volume = torch.randn(1, 2, 6, 3, 9)
    down = InvertibleDownsampling(3, axes=3)(volume)
    assert down.shape == (1, 54, 2, 1, 3)
    assert torch.equal(InvertibleUpsampling(3, axes=3)(down), volume)


def test_potentials_train_and_are_exported():
    torch.manual_seed(0)
    model = nn.Sequential(ls.nn.linear(3, 4), ConvexPotential(4, 8), ConvexPotential(4, 8), ls.nn.linear(4, 2))
    optimizer = ls.optim.rotating(model, 1e-2)
    x, y = torch.randn(30, 3), torch.randn(30, 2)
    first = (model(x) - y).square().mean().item()
    for _ in range(20):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    assert (model(x) - y).square().mean().item() < first
    assert ls.certify(model).upper <= 1 + 1e-5
    exported = ls.plain(model)
    assert torch.allclose(exported(x), model.eval()(x), atol=1e-4)


def test_traced_modules_know_the_rule_of_the_block():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = ConvexPotential(3, 5)

        def forward(self, x):
            return self.block(x).relu()

    assert ls.certify(Net(), (3,)).upper <= 1 + 1e-6


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: ConvexPotential(3, 2)(torch.zeros(1, 4)), "3 channels but the input has the shape"),
        (lambda: L2NormPool2d(2)(torch.zeros(1, 1, 3, 4)), "Pad or crop"),
        (lambda: ls.certify(ConvexPotential(2, 2, nn.Tanh())), "no rule inside a ConvexPotential"),
        (lambda: ls.nn.conv_transpose2d(2, 2, 4), "odd kernel"),
        (lambda: ConvexPotential(2, 2, kernel=2), "odd kernel"),
        (lambda: ls.nn.conv2d(3, 4, 3, groups=2), "Every group has as many channels"),
        (lambda: ls.nn.conv2d(4, 4, 3, groups=2, constraint="spectral"), "needs constraint='orthogonal'"),
        (lambda: ls.nn.conv2d(4, 4, 3, constraint="aol", method="qr"), "Leave method out"),
        (lambda: InvertibleDownsampling(2)(torch.zeros(1, 1, 3, 4)), "Pad or crop"),
        (lambda: InvertibleUpsampling(2)(torch.zeros(1, 6, 3, 4)), "Give more channels"),
    ],
)
def test_errors_say_what_to_do(call, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        call()
