"""The rotations as an ordinary optimizer of torch."""

import copy

import pytest
import torch
from torch import nn

import lipspline as ls
from lipspline.functional.matrices import orthonormalize
from lipspline.training.optim import SPREADING, _orthonormal_again, nearly_polar


def network() -> nn.Module:
    torch.manual_seed(0)
    return ls.models.mlp(4, 3, width=6, depth=4, activation="relu")


def loss_of(model: nn.Module) -> torch.Tensor:
    x = torch.linspace(-1, 1, 40).reshape(10, 4)
    return (model(x) - 0.5 * x[:, :3]).square().mean()


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, scheduler=None) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def test_a_state_dict_goes_on_where_it_stopped():
    whole, half = network(), network()
    optimizer = ls.optim.rotating(whole, 1e-2, angle=0.05)
    steps(whole, optimizer, 6)
    first = ls.optim.rotating(half, 1e-2, angle=0.05)
    steps(half, first, 3)
    resumed = copy.deepcopy(half)
    second = ls.optim.rotating(resumed, 1e-2, angle=0.05)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    steps(resumed, second, 3)
    for x, y in zip(weights(whole), weights(resumed), strict=True):
        assert torch.allclose(x, y, atol=1e-5)


def test_together_and_one_by_one_are_the_same():
    together, alone = network(), network()
    steps(together, ls.optim.rotating(together, 1e-2, foreach=True), 4)
    steps(alone, ls.optim.rotating(alone, 1e-2, foreach=False), 4)
    for x, y in zip(weights(together), weights(alone), strict=True):
        assert torch.allclose(x, y, atol=1e-5)


def test_a_scheduler_scales_the_angle_too():
    model = network()
    optimizer = ls.optim.rotating(model, 1e-2, angle=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    steps(model, optimizer, 2, scheduler)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.0025, 0.0125])


LONGEST = 1.0242  # singular values of a direction: see the test of that name


def test_directions_have_singular_values_of_at_most_1_0242():
    """`nearly_polar` maps singular values in [0, 1] by one polynomial of degree 5³."""
    values = torch.linspace(0, 1, 4 * 10**6 + 1, dtype=torch.float64)
    start = values
    for a, b, c in SPREADING:
        values = a * values + b * values**3 + c * values**5
    # Slopes are at most 23.1 on [0, 1], 8.5 on [0, 1.88], 2.5 on [0, 1.57]: 491 in all, over half a step of the grid.
    assert float(values.max()) < LONGEST - 491 * 0.125e-6
    assert float(values[start >= 0.0175].min()) > 0.8
    for scale in (1e-20, 1.0, 1e15):
        matrix = scale * torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        assert float(torch.linalg.matrix_norm(nearly_polar(matrix), 2)) < LONGEST


@pytest.mark.parametrize("shape", [(300, 300), (2, 40, 300), (2, 2, 300, 3)])
def test_directions_in_single_precision_are_those_of_exact_arithmetic(shape: tuple[int, ...]):
    """Also where one singular value is far above all others: then rounding could lift it above 1 at the start."""
    rows, columns = shape[-2:]
    generator = torch.Generator().manual_seed(0)
    spike = torch.outer(torch.randn(rows, generator=generator), torch.randn(columns, generator=generator))
    for matrix in (torch.randn(shape, generator=generator), spike.expand(shape) + 1e-3 * torch.randn(shape)):
        found = nearly_polar(matrix)
        assert found.shape == shape
        assert float(torch.linalg.matrix_norm(found.double(), 2).max()) < LONGEST
        assert torch.allclose(found.double(), nearly_polar(matrix.double()), atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("angle", [0.02, 0.2, 0.9])
@pytest.mark.parametrize("shape", [(64, 64), (3, 20, 60), (2, 5, 1)])
def test_after_a_turn_a_matrix_is_the_q_of_its_decomposition(shape: tuple[int, ...], angle: float, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    matrix = orthonormalize(torch.randn(shape, dtype=dtype, generator=generator))
    moved = matrix - angle * nearly_polar(torch.randn(shape, dtype=dtype, generator=generator))
    found, tolerance = _orthonormal_again(moved), 64 * torch.finfo(dtype).eps
    assert torch.allclose(found, orthonormalize(moved), atol=tolerance * (1 if angle < 0.5 else 20))
    tall = found if shape[-2] >= shape[-1] else found.mT
    assert torch.allclose(
        tall.mT @ tall, torch.eye(tall.shape[-1], dtype=dtype).expand_as(tall.mT @ tall), atol=tolerance
    )


@pytest.mark.parametrize("angle", [1e-6, 1.4e-3])
def test_matrices_whose_columns_nearly_agree_are_decomposed(angle: float):
    """Which no turn does, but a user who writes into them can. There is no Cholesky factor, or a bad one."""
    found = _orthonormal_again(torch.tensor([[1.0, 1.0], [0.0, angle], [0.0, 0.0]]))
    assert torch.allclose(found.mT @ found, torch.eye(2), atol=1e-6)


def test_turns_in_half_precision_are_computed_in_single():
    assert _orthonormal_again(torch.eye(3, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("direction", ["random", "a shift"])
def test_a_step_turns_by_the_angle_and_stays_orthonormal(direction: str):
    """With E = angle * D, M = I - QᵀE = U R and L the strictly lower part of -QᵀE: U = I + L - Lᵀ to first order.

    So |U - I|_F <= √2 |E|_F / (1 - |E|) (Sun, 1995; to first order |L - Lᵀ|_F = √2 |L|_F), with |E|_F <= √n |E|: the
    mean square of the turns is below (√2 * 1.0242 * angle)². A shift, whose entries are nearly all below the diagonal,
    reaches this but for the one that is not. Turns come in conjugate pairs: the largest is at most √(n/2) of the mean.
    """
    n, angle = 8, 0.01
    model = ls.nn.linear(n, n, bias=False)
    optimizer = ls.optim.rotating(model, angle=angle)
    before = model.weight.detach().clone()
    gradient = torch.randn(n, n, generator=torch.Generator().manual_seed(0))
    if direction == "a shift":
        gradient = before @ torch.eye(n).roll(1, 0)
    (model(torch.eye(n)) * gradient.mT).sum().backward()
    raw = next(model.parameters())
    raw_before = raw.detach().double()
    moved = raw_before - angle * nearly_polar(raw.grad.detach().double())
    optimizer.step()
    expected = orthonormalize(moved)
    assert torch.allclose(raw.double(), expected, atol=2e-6)
    turns = torch.linalg.eigvals((before.mT @ model.weight.detach()).double() - torch.eye(n)).abs()
    limit = 2**0.5 * LONGEST * angle / (1 - LONGEST * angle)
    mean = float(turns.square().mean().sqrt())
    assert 0.8 * angle < mean < limit + 1e-6
    assert float(turns.max()) < (n / 2) ** 0.5 * limit
    if direction == "a shift":
        assert mean > 0.85 * 2**0.5 * float(torch.linalg.matrix_norm(moved - raw_before)) / n**0.5
    assert torch.allclose(model.weight.mT @ model.weight, torch.eye(n), atol=1e-5)


def test_a_closure_is_called_before_the_step():
    """The gradient that is used is the closure's, and the loss is returned."""
    by_closure, by_hand = network(), network()
    one, other = ls.optim.rotating(by_closure, 1e-2), ls.optim.rotating(by_hand, 1e-2)

    def closure():
        one.zero_grad()
        loss = loss_of(by_closure)
        loss.backward()
        return loss

    assert one.step(closure).item() == pytest.approx(loss_of(by_hand).item())
    steps(by_hand, other, 1)
    for x, y in zip(weights(by_closure), weights(by_hand), strict=True):
        assert torch.allclose(x, y, atol=1e-6)


def test_gradients_stay_after_a_step():
    model = network()
    steps(model, ls.optim.rotating(model), 1)
    assert all(p.grad is not None for p in model.parameters())


def test_a_matrix_that_is_not_orthonormal_is_refused():
    with pytest.raises(ValueError, match="no orthonormal matrix"):
        ls.optim.Rotating([{"params": [nn.Parameter(2 * torch.eye(3))], "rotates": True}])


@pytest.mark.parametrize("angle", [-1, 0, float("nan")])
def test_a_wrong_angle_is_refused_by_its_name(angle: float):
    with pytest.raises(ValueError, match=r"^angle must be a positive finite number, but is "):
        ls.optim.rotating(nn.Linear(2, 2), angle=angle)
