"""No GPU is needed to see that tensors of two devices are never mixed: a second device that computes on the CPU.

Tensors there are wrapped; an operation on tensors of both devices raises, as do `.numpy()` and factories that forget
the device of their input. Kernels run by their formulas, as on a device that they were not written for. The library's
kernels, layers with two derivatives, operators (moved there, and made of tensors there), priors, optimizer, losses,
certificates, `pnp.fbs` and `pnp.minimize` run there. The search for lower bounds does not: transforms of torch.func do
not wrap these tensors. tests/planted.toml has mistakes in the library that these tests must find ("devices: ...").
"""

import re

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import lipspline as ls
from kernels.kernel_cases import samples
from lipspline.certification import inspection
from lipspline.kernels import TABLE, native
from lipspline.kernels.total_variation import prox_total_variation
from operators import operator_cases

registration = pytest.importorskip("torch.utils.backend_registration", reason="needs a torch with devices in Python")
if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("needs a torch with devices in Python", allow_module_level=True)
MOVES = ("aten.copy_", "aten._to_copy")
INDEXES = ("aten.index", "aten.index_put", "aten.index_put_")  # a tensor there may be indexed from the CPU
AT_ONCE = {"aten._conj": torch.conj_physical, "aten._neg_view": torch.neg}  # this device does not put them off
JOINS = ("aten.cat", "aten.stack")  # do not take even single numbers of the CPU


class There(Tensor):
    """A tensor on the other device: its values are in `inner`, on the CPU."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor):
        size = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        there = Tensor._make_wrapper_subclass(cls, inner.shape, device=torch.device("other:0"), **size)
        there.inner = inner
        return there

    def tolist(self):
        return self.inner.tolist()

    def new_tensor(self, data, *, dtype=None):  # torch asks the device for memory, which this one has not
        return torch.tensor(data, dtype=dtype or self.dtype, device=self.device)

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), options=None):
        return run(operation, args, options or {})


def run(operation, args, options):
    """Run an operation on one device, or raise."""
    tensors = [value for value in tree_leaves((args, options)) if isinstance(value, Tensor)]
    there = any(isinstance(tensor, There) for tensor in tensors)
    name = str(operation).rsplit(".", 1)[0]
    if there and _is_mixed(name, args, tensors):
        raise RuntimeError(f"{operation} got tensors of two devices")
    if there and operation.namespace == "lipspline":  # what a device runs for which there are no kernels
        with TwoDevices():
            return operation._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **options)
    device = options.get("device")
    if device is not None:
        there = torch.device(device).type == "other"
        options = {**options, "device": torch.device("cpu")}
    values = tree_map(lambda value: value.inner if isinstance(value, There) else value, (args, options))
    result = AT_ONCE.get(name, operation)(*values[0], **values[1])
    if _writes(name):
        return args[0]
    return tree_map(lambda value: There(value) if isinstance(value, Tensor) else value, result) if there else result


def _is_mixed(name: str, args, tensors: list[Tensor]) -> bool:
    """Whether an operation on a tensor there and these would fail on a GPU; single numbers may come from the CPU."""
    here = [tensor for tensor in tensors if not isinstance(tensor, There)]
    if name in MOVES or not here:
        return False
    if name in JOINS:
        return True
    first = args[0]
    if name in INDEXES:  # what is indexed, and what is written, must be there
        values = args[2] if len(args) > 2 else first
        return not isinstance(first, There) or not (isinstance(values, There) or values.ndim == 0)
    written = isinstance(first, Tensor) and not isinstance(first, There) and _writes(name)
    return written or any(tensor.ndim > 0 for tensor in here)


def _writes(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


class TwoDevices(TorchDispatchMode):
    def __torch_dispatch__(self, operation, types, args=(), options=None):
        return run(operation, args, options or {})


@pytest.fixture(scope="module")
def _backend():
    registration._setup_privateuseone_for_python_backend("other")
    module = torch.other  # type: ignore[attr-defined]
    module.get_rng_state = lambda *device: torch.zeros(0)
    module.set_rng_state = lambda *state: None


@pytest.fixture
def other(_backend, monkeypatch):
    """The other device, inside a mode that watches; wrapped tensors pass for dense ones in certificates."""
    check, tensor = inspection._check_tensor, torch.tensor

    def made(data, *, device=None, **options):  # torch.tensor asks a device for memory, which this one has not
        return tensor(data, **options) if device is None else tensor(data, **options).to(device)

    monkeypatch.setattr(torch, "tensor", made)
    monkeypatch.setattr(
        inspection, "_check_tensor", lambda name, t: check(name, t.inner if isinstance(t, There) else t)
    )
    with TwoDevices():
        yield torch.device("other:0")


def image(device) -> Tensor:
    return torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0)).to(device)


def denoise(device) -> Tensor:
    return ls.models.zoo("lls", noise=15).to(device)(image(device))


def reconstruct(device, *, accelerate: bool = False) -> Tensor:
    scan = ls.operators.MRI(ls.operators.cartesian_mask(16, acceleration=2, seed=0)).to(device)
    denoiser = ls.models.zoo("lls", noise=15).to(device)
    return ls.pnp.fbs(scan.forward(image(device)), scan, denoiser, max_steps=6, accelerate=accelerate).value


def reconstruct_accelerated(device) -> Tensor:
    return reconstruct(device, accelerate=True)


def unrolled(device) -> Tensor:
    return ls.priors.resolve("ridge-unrolled").at(15).to(device)(image(device))  # type: ignore[operator]


def merge_slopes(device) -> Tensor:
    rows = image(device)[0, 0]
    return prox_total_variation(rows, rows[:, 0], precision=1 + rows)


def train(device, activation: str = "lls") -> Tensor:
    torch.manual_seed(0)
    model = ls.models.mlp(4, 4, width=8, depth=2, activation=activation).to(device)  # type: ignore[arg-type]
    optimizer = ls.optim.rotating(model)
    loss = model(torch.rand(3, 4).to(device)).square().sum() + ls.tv2(model)
    loss.backward()
    optimizer.step()
    return next(model.parameters()).detach()


def certify_layers(device) -> Tensor:
    torch.manual_seed(0)
    model = ls.models.denoiser("lls", channels=4, depth=2).to(device)
    return model(image(device)) * ls.certify(model).upper


def certify_graph(device) -> Tensor:
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.filter = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.filter(x).relu()

    torch.manual_seed(0)
    return image(device) * ls.certify(Residual().to(device).eval(), image(device)).upper


def robust(device) -> Tensor:
    logits, labels = torch.eye(3).to(device), torch.arange(3).to(device)
    ls.robust.certified_accuracy(logits, labels, 0.1)
    binary = ls.robust.hkr_loss(logits[:, 0], labels) + ls.robust.certified_accuracy(logits[:, 0], labels, 0.1)
    losses = (ls.robust.hkr_loss, ls.robust.multi_margin_loss, ls.robust.ramp_loss, ls.robust.temperature_cross_entropy)
    return sum((loss(logits, labels) for loss in losses), binary + ls.robust.certified_radius(logits).sum())


def seeded(layer: nn.Module) -> nn.Module:
    """A layer whose parameters are no special ones; drawn on the CPU, so that every device has the same."""
    torch.manual_seed(0)
    for parameter in layer.parameters():
        parameter.data += 0.01 * torch.randn(parameter.shape)
    return layer


def layers(device) -> Tensor:
    """Each with its first and second derivatives."""
    torch.manual_seed(0)
    conv, every = ls.nn.conv2d, []
    every += [conv(4, 4, 3, constraint=kind) for kind in ("orthogonal", "spectral", "aol")]
    every += [conv(4, 4, 3, method=method) for method in ("cayley", "polar", "bjorck")]
    every += [conv(4, 8, 3, stride=2, groups=2), ls.nn.conv_transpose2d(8, 4, 3, stride=2)]
    every += [ls.nn.ConvexPotential(4, 6, kernel=3), ls.nn.LinearSpline(4, init="maxmin"), ls.nn.LipschitzPReLU(4)]
    every += [ls.nn.GroupSort(4), ls.nn.Householder(4), ls.nn.Centering(2, 3), ls.nn.Averaged(conv(4, 4, 3), 0.5)]
    x = image(device).expand(1, 4, 16, 16).contiguous().requires_grad_()
    y = seeded(nn.Sequential(*every)).to(device)(x)
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert x.grad is not None
    return y.detach() + x.grad


def splines(device) -> Tensor:
    """Gradients of the coefficients and scales that are differentiated again."""
    spline = seeded(ls.nn.LinearSpline(4, init="maxmin")).to(device)
    x = image(device).reshape(-1, 4)
    slopes = torch.autograd.grad(spline(x).square().sum(), list(spline.parameters()), create_graph=True)
    torch.stack([slope.square().sum() for slope in slopes]).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in spline.parameters()])  # type: ignore[union-attr]


def finish(device) -> Tensor:
    """What is done to a trained network: its plain form, and a look at its splines."""
    torch.manual_seed(0)
    model = seeded(ls.models.mlp(4, 2, width=8, depth=2)).to(device)
    return ls.plain(model)(image(device).reshape(-1, 4)) * ls.effective_regions(model).overall


SHIPPED = [
    *(denoise, unrolled, reconstruct, reconstruct_accelerated, merge_slopes, train, layers, splines, finish),
    *(certify_layers, certify_graph, robust),
]


@pytest.mark.parametrize("work", SHIPPED, ids=lambda work: work.__name__)
def test_what_ships_stays_on_the_device_of_its_input(work, other):
    result = work(other)
    assert result.device == other
    assert torch.allclose(result.cpu(), work("cpu"), atol=1e-5)


ENERGIES = ["ridge", "ridge-weak", "ridge-adaptive", "tv", "wavelet"]


@pytest.mark.parametrize("images", ["real", "complex"])
@pytest.mark.parametrize("name", ENERGIES)
def test_an_energy_is_minimised_there(name: str, images, other):
    """Two images, of which one stops before the other; with the certificate."""
    mask, maps = ls.operators.cartesian_mask(16, acceleration=2, seed=0), ls.operators.simulated_maps(2, (16, 16))
    maps[:, :3] = 0  # so that the operator has a support
    solutions = []
    for device in (other, torch.device("cpu")):
        scan = ls.operators.MultiCoilMRI(mask.to(device), maps.to(device), convention="centred", images=images)
        energy = ls.priors.resolve(name).at(15).to(device)  # type: ignore[union-attr]
        data = scan.forward(torch.cat([image(device), 0 * image(device)]))
        box = None if images == "complex" else (0.0, 2.0)
        solutions.append(ls.pnp.minimize(data, scan, energy, 0.1, box=box, max_steps=9))  # type: ignore[arg-type]
    assert solutions[0].value.device == other
    assert torch.allclose(solutions[0].value.cpu(), solutions[1].value, atol=1e-5)
    assert solutions[0].certificate.tier == solutions[1].certificate.tier


@pytest.mark.parametrize("name", [name for name in TABLE if name != "total_variation"])
def test_the_formula_of_a_kernel_runs_there(name: str, other):
    """That of the total variation is for lists of Python, on the CPU: see `merge_slopes`."""
    arguments = samples(torch.float64)[name]
    moved = [value.to(other) if isinstance(value, Tensor) else value for value in arguments]
    results = zip(tree_leaves(TABLE[name].eager(*moved)), tree_leaves(TABLE[name].eager(*arguments)), strict=True)
    for got, wanted in results:
        assert got.device == other
        assert torch.allclose(got.cpu(), wanted, equal_nan=True)


@pytest.mark.parametrize("how", ["moved", "made"])
@pytest.mark.parametrize("name", operator_cases.CASES)
def test_an_operator_that_is_moved_there_or_made_of_tensors_there_stays_there(name: str, how: str, other, monkeypatch):
    wanted = operator_cases.CASES[name]()
    x, y = operator_cases.image(wanted, torch.float32), operator_cases.data(wanted, torch.float32)
    if how == "made":
        for maker in ("random", "cartesian_mask", "simulated_maps", "radial_trajectory"):
            monkeypatch.setattr(operator_cases, maker, _there(getattr(operator_cases, maker), other))
    H = operator_cases.CASES[name]()
    H = (
        H if how == "made" and not re.search("ct, |fan|trajectory|complex after real", name) else H.to(other)
    )  # by angles
    for got, at_home in ((H.forward(x.to(other)), wanted.forward(x)), (H.adjoint(y.to(other)), wanted.adjoint(y))):
        assert got.device == other
        assert torch.allclose(got.cpu(), at_home, atol=1e-4)
    assert torch.allclose(torch.tensor(H.norm_bounds()), torch.tensor(wanted.norm_bounds()), atol=1e-6)
    assert (H.smallest_singular_value() is None) == (wanted.smallest_singular_value() is None)


def _there(make, device):
    return lambda *arguments, **options: make(*arguments, **options).to(device)


@pytest.mark.parametrize("activation", ["relu", "av", "prelu", "gs", "maxmin", "hh"])
def test_every_activation_trains_there(activation: str, other):
    assert train(other, activation).device == other


MISTAKES = {
    "a constant on the CPU": lambda x: x + torch.ones(16),
    "a matrix on the CPU": lambda x: x @ torch.eye(16),
    "a kernel on the CPU": lambda x: torch.conv2d(x, torch.ones(1, 1, 3, 3)),
    "a mask on the CPU": lambda x: torch.where(torch.ones(16) > 0, x, x),
    "a concatenation": lambda x: torch.cat([x, torch.zeros(1, 1, 16, 16)]),
    "numpy": lambda x: x.numpy(),
    "a buffer that was not registered": lambda x: nn.functional.linear(x, nn.Linear(16, 16).weight),
    "random numbers on the CPU": lambda x: x * torch.randn(1, 1, 16, 16),
    "a place to write on the CPU": lambda x: torch.add(x, 1, out=torch.empty(1, 1, 16, 16)),
    "an average kept on the CPU": lambda x: torch.zeros(1, 1, 16, 16).lerp_(x, 0.1),
    "a sum kept on the CPU": lambda x: torch.zeros(()).add_(x.sum()),
    "a table on the CPU": lambda x: torch.eye(16)[x.argmax(-1)],
    "values on the CPU": lambda x: x.index_put((torch.zeros(1).long(),), torch.zeros(1, 1, 16, 16)),
    "a stack with a number on the CPU": lambda x: torch.stack([x.sum(), torch.zeros(())]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name: str, other):
    with pytest.raises((RuntimeError, TypeError)):
        MISTAKES[name](image(other))


def test_a_mistake_planted_in_the_library_is_found(other, monkeypatch):
    """A layer whose tables are made on the CPU."""
    from lipspline.nn import spline

    tables = spline.scaled_spline
    monkeypatch.setattr(spline, "scaled_spline", lambda x, c, *rest: tables(x, torch.zeros(c.shape), *rest))
    with pytest.raises(RuntimeError, match="two devices"):
        train(other)


def test_kernels_in_c_do_not_read_there(other, monkeypatch):
    """They are given the values on the CPU, which the device keeps, or nothing."""
    real = native.call

    def called(name, doubles, sizes, *tensors):
        assert not any(isinstance(tensor, There) for tensor in tensors)
        return real(name, doubles, sizes, *tensors)

    monkeypatch.setattr(native, "call", called)
    model = ls.models.denoiser("lls", channels=4, depth=2).to(other)
    assert model(image(other)).device == other
