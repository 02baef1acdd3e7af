"""Plain networks and ONNX: the same outputs, and a certificate that holds."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from lipspline import certify, plain, sparsify
from lipspline.kernels import native, overwrite_piecewise_affine
from lipspline.models import load, save, to_onnx
from lipspline.networks import denoiser, mlp
from lipspline.networks.rescale import rescale_
from lipspline.nn import Averaged, LinearSpline
from lipspline.nn import inference as layers
from lipspline.nn.convolutions import conv1d, conv2d
from lipspline.nn.matrices import linear
from networks.small_networks import small_denoiser, trained

ACTIVATIONS = ["relu", "av", "prelu", "gs", "hh", "lls"]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("constraint", ["orthogonal", "spectral"])
def test_plain_networks_have_the_same_outputs_and_are_certified_at_most_one(activation, padding_mode, constraint):
    """[eq:architecture]: equal to 1e-6, ordinary layers only, and <= 1 instead of 1.0000004."""
    model = small_denoiser(activation, padding_mode=padding_mode, constraint=constraint)
    x = torch.rand(2, 1, 11, 8)
    ordinary = plain(model)
    torch.testing.assert_close(ordinary(x), model(x), atol=2e-6, rtol=2e-6)
    assert certify(ordinary).upper <= 1
    assert not any(parametrize.is_parametrized(module) for module in ordinary.modules())
    assert not any(isinstance(module, LinearSpline) for module in ordinary.modules())


@pytest.mark.parametrize(
    "make",
    [
        lambda: linear(7, 7, lipschitz=3.0),
        lambda: linear(7, 4, constraint="spectral", lipschitz=0.1),
        lambda: conv1d(3, 6, 3, lipschitz=2.0),
        lambda: conv2d(4, 4, 3, stride=2),
    ],
)
def test_plain_layers_reach_their_target_from_below(make: Callable[[], nn.Module]):
    """[lip_linear_layers]: at most the target, and at least the target but for rounding."""
    layer = make()
    target = next(
        module.parametrizations.weight[0].lipschitz for module in layer.modules() if parametrize.is_parametrized(module)
    )
    assert target * (1 - 0.03) <= certify(plain(layer)).upper <= target


def test_plain_leaves_the_model_alone():
    """A copy; the original can be trained on."""
    model = small_denoiser().train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain(model)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    model(torch.rand(1, 1, 8, 8)).sum().backward()


def test_plain_keeps_layers_without_a_constraint_as_they_are():
    """A free layer may be as steep as it likes; the certificate says so."""
    model = nn.Sequential(nn.Linear(3, 3), Averaged(nn.Sequential(linear(3, 3), LinearSpline(3)), 0.5))
    with torch.no_grad():
        model[0].weight.mul_(10)
    ordinary = plain(model)
    assert torch.equal(ordinary[0].weight, model[0].weight)
    assert certify(ordinary).layers[1].upper <= 1
    x = torch.randn(4, 3)
    torch.testing.assert_close(ordinary(x), model.eval()(x), atol=2e-6, rtol=2e-6)


def test_plain_takes_constraints_of_torch_itself():
    """Their target is not known, so they are folded as they are."""
    layer = parametrizations.weight_norm(nn.Linear(3, 3))
    x = torch.randn(4, 3)
    torch.testing.assert_close(plain(layer)(x), layer(x), atol=1e-6, rtol=1e-6)


class Forgetful(nn.Module):
    """A constraint that misses its target by more than rounding."""

    lipschitz = 1.0

    def forward(self, weight: Tensor) -> Tensor:
        return 1.01 * weight / torch.linalg.matrix_norm(weight, ord=2)


def test_plain_does_not_hide_a_constraint_that_fails():
    """An error of more than rounding is not scaled away."""
    model = nn.Sequential(nn.Linear(3, 3))
    parametrize.register_parametrization(model[0], "weight", Forgetful())
    with pytest.raises(
        ValueError,
        match=r"^Layer '0' should have Lipschitz constant 1, but its bound is 1\.0[01]\d*: more than rounding explains",
    ):
        plain(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", ["lls", "hh"])
def test_plain_networks_of_half_precision_have_the_same_outputs_and_are_certified_at_most_one(activation, dtype):
    """Rounded weights exceed their target by more than those of float32 do."""
    torch.manual_seed(0)
    dense, image = mlp(4, 3, width=64, depth=2, activation=activation), denoiser(activation, channels=4, depth=2)
    for model, x in ((dense, torch.randn(5, 4)), (image, torch.rand(1, 1, 8, 8))):
        half = model.to(dtype).eval()
        folded = plain(half)
        assert certify(folded).upper <= 1
        torch.testing.assert_close(folded(x.to(dtype)), half(x.to(dtype)), rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_half_precision_hides_no_constraint_that_fails():
    class Wrong(nn.Module):
        lipschitz = 1.0

        def forward(self, w: Tensor) -> Tensor:
            return 1.05 * torch.eye(len(w)).to(w)

    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Wrong(), unsafe=True)
    with pytest.raises(ValueError, match="more than rounding explains"):
        plain(layer.bfloat16())


def test_plain_networks_can_be_exported_by_torch():
    """torch.export with a free batch and free image sizes."""
    ordinary = plain(small_denoiser())
    auto = torch.export.Dim.AUTO
    program = torch.export.export(ordinary, (torch.rand(2, 1, 8, 9),), dynamic_shapes=({0: auto, 2: auto, 3: auto},))
    x = torch.rand(3, 1, 13, 10)
    torch.testing.assert_close(program.module()(x), ordinary(x))


# ONNX


@pytest.mark.parametrize("activation", ["lls", pytest.param("hh", marks=pytest.mark.slow)])
def test_onnxruntime_computes_the_same(tmp_path: Path, activation: str):
    """With another batch and another image size than the example's."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = small_denoiser(activation)
    to_onnx(model, tmp_path / "net.onnx", (1, 12, 12))
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    x = torch.rand(3, 1, 10, 17)
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(y, model(x).detach(), atol=2e-6, rtol=2e-6)


def test_onnxruntime_computes_the_same_as_a_denoiser_that_was_read_and_rescaled(tmp_path: Path):
    """What the package ships, at any noise level, leaves for other programs too."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    save(small_denoiser(), tmp_path / "net.safetensors")
    model = rescale_(load(tmp_path / "net.safetensors"), 0.6)
    to_onnx(model, tmp_path / "net.onnx", (1, 12, 12))
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    x = torch.rand(1, 1, 30, 17)
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(y, model(x), atol=2e-6, rtol=2e-6)


def test_onnxruntime_computes_the_same_for_dense_networks(tmp_path: Path):
    """Rank two, with a free batch."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = trained(mlp(3, 2, width=6, depth=3, activation_options={"radius": 1.0}))
    to_onnx(model, tmp_path / "net.onnx", (3,))
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    x = torch.randn(9, 3)
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(y, model(x).detach(), atol=2e-6, rtol=2e-6)


@pytest.fixture
def overwritten(monkeypatch) -> list[bool]:
    """Whether each spline called with the permission to overwrite its input did so, in the order of the calls."""
    calls: list[bool] = []

    def watched(x: Tensor, *arguments) -> Tensor:
        y = overwrite_piecewise_affine(x, *arguments)
        calls.append(y.data_ptr() == x.data_ptr())
        return y

    monkeypatch.setattr(layers, "overwrite_piecewise_affine", watched)
    return calls


def test_plain_networks_run_channels_last_and_reuse_memory_but_never_the_callers(overwritten: list[bool]):
    torch.manual_seed(0)
    model = denoiser(channels=8, depth=3)
    network = plain(model)
    image = torch.rand(2, 1, 12, 12)
    before = image.clone()
    with torch.no_grad():
        result = network(image)
    assert overwritten == [native.library is not None] * 2
    assert torch.equal(image, before)
    assert all(layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in list(network)[::2])
    torch.testing.assert_close(result, model(image), rtol=0, atol=1e-6)
    assert torch.equal(network(image), result)  # with autograd on, and so without overwriting
    assert len(overwritten) == 2


class Residual(nn.Sequential):
    """A row with a forward of its own: its spline's input is read once more."""

    def forward(self, input: Tensor) -> Tensor:
        hidden = self[0](input)
        return hidden + self[1](hidden)


class Twice(nn.Sequential):
    """A row that runs another way than it lists."""

    def __iter__(self):
        return iter([self[0], self[1], self[1]])

    def forward(self, input: Tensor) -> Tensor:
        for layer in self:
            input = input + layer(input)
        return input


def steep(*shape: int) -> Tensor:
    return 3 * torch.randn(*shape)


@pytest.mark.parametrize("kind", [Residual, Twice])
@pytest.mark.parametrize("nested", [False, True])
def test_plain_rows_with_a_forward_of_their_own_have_the_same_outputs(
    kind: type, nested: bool, overwritten: list[bool]
):
    """Splines with slopes -1 show at once if their input was overwritten."""
    model: nn.Module = kind(linear(6, 6), LinearSpline(6, init=lambda t: -t))
    model = nn.Sequential(nn.Linear(6, 6), model) if nested else model
    x = steep(5, 6)
    with torch.no_grad():
        torch.testing.assert_close(plain(model)(x), model.eval()(x), atol=1e-5, rtol=1e-5)
    assert overwritten == []


def test_a_spline_used_twice_or_by_the_caller_leaves_the_callers_tensors_alone(overwritten: list[bool]):
    shared = LinearSpline(6, init=lambda t: -t)
    network = plain(nn.Sequential(linear(6, 6), shared, shared, linear(6, 6), shared))
    assert isinstance(network, nn.Sequential)
    x = steep(5, 6)
    hidden = network[0](x)
    before = hidden.clone()
    with torch.no_grad():
        for part in (network[1], network[1:], network[2:], nn.Sequential(network[1])):
            part(hidden)
            assert torch.equal(hidden, before)
        overwritten.clear()
        torch.testing.assert_close(network(x), -network[3](before), atol=1e-5, rtol=1e-5)
    assert overwritten == [native.library is not None] * 2


@pytest.mark.parametrize("place", [0, 1])
def test_what_hooks_keep_is_not_overwritten(place: int, overwritten: list[bool]):
    """A hook on either layer, before or after it, may keep what passes between them."""
    kept: list[Tensor] = []
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        network = plain(nn.Sequential(linear(6, 6), LinearSpline(6, init=lambda t: -t)))
        assert isinstance(network, nn.Sequential)
        if register == "register_forward_hook":
            getattr(network[place], register)(lambda _, inputs, out, p=place: kept.append(inputs[0] if p else out))
        elif place == 1:
            getattr(network[place], register)(lambda _, inputs: kept.append(inputs[0]))
        x = steep(5, 6)
        with torch.no_grad():
            wanted = network[0](x)
            kept.clear()
            network(x)
        assert all(torch.equal(tensor, wanted) for tensor in kept)


def test_what_global_hooks_keep_is_not_overwritten(overwritten: list[bool]):
    network = plain(nn.Sequential(linear(6, 6), LinearSpline(6, init=lambda t: -t)))
    kept: list[Tensor] = []
    handle = nn.modules.module.register_module_forward_hook(lambda _, inputs, out: kept.append(out))
    try:
        with torch.no_grad():
            network(steep(5, 6))
    finally:
        handle.remove()
    assert overwritten == []


def test_plain_networks_can_be_sparsified_on_inputs():
    """The hooks that watch the splines see what comes in, not what goes out."""
    network = plain(nn.Sequential(linear(6, 6), LinearSpline(6, radius=9.0, init=torch.abs), linear(6, 2)))
    x = steep(40, 6)
    sparse, _ = sparsify(network, inputs=x)
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), network(x), atol=1e-5, rtol=1e-5)


def test_a_plain_spline_alone_leaves_its_input_alone():
    spline, x = plain(LinearSpline(4, init="abs")), -torch.rand(3, 4)
    before = x.clone()
    with torch.no_grad():
        torch.testing.assert_close(spline(x), -before)
    assert torch.equal(x, before)


def test_an_onnx_file_that_exists_is_replaced_only_with_force(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """As everything that lipspline writes for users; in silence, and not before the arguments are checked."""
    pytest.importorskip("onnxscript")
    file = tmp_path / "net.onnx"
    file.write_bytes(b"mine")
    model = mlp(3, 2, width=4, depth=2)
    with pytest.raises(FileExistsError, match=r"net\.onnx exists already\. Choose another name, or .* force=True\.$"):
        to_onnx(model, file, (3,))
    assert file.read_bytes() == b"mine"
    to_onnx(model, file, (3,), force=True)
    assert file.read_bytes() != b"mine"
    assert capfd.readouterr() == ("", "")
    with pytest.raises(FileExistsError, match=r"exists already\. Choose another name\.$"):
        to_onnx(model, tmp_path, (3,), force=True)
    for shape in (3, (0,), ("3",)):
        with pytest.raises(ValueError, match=r"^input_shape must be the shape of one input without batch"):
            to_onnx(model, tmp_path / "other.onnx", shape)  # type: ignore[arg-type]
    assert [entry.name for entry in tmp_path.iterdir()] == ["net.onnx"]


def test_networks_in_double_precision_go_to_onnx(tmp_path: Path):
    """The file computes in float64."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = mlp(3, 2, width=4, depth=2).double()
    to_onnx(model, tmp_path / "net.onnx", (3,))
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    x = torch.randn(5, 3, dtype=torch.float64)
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(y, model(x).detach(), atol=1e-6)
