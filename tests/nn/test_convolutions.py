"""Layers made by `linear`, `conv1d` and `conv2d`: plain torch layers with the promised constant, in every setting."""

import copy
import math

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils import parametrize

import lipspline
from lipspline.functional.convolutions import conv_norm_circular, conv_norm_upper
from lipspline.functional.matrices import METHODS, spectral_norm_upper
from lipspline.kernels.winograd import has_winograd
from lipspline.nn import SampleUnshuffle, conv1d, conv2d, conv3d, conv_transpose2d, linear

LAYERS = {
    "linear": lambda: linear(6, 4),
    "linear polar": lambda: linear(5, 5, method="polar"),
    "linear cayley": lambda: linear(4, 6, method="cayley"),
    "linear bjorck": lambda: linear(5, 4, method="bjorck"),
    "linear spectral": lambda: linear(5, 6, constraint="spectral"),
    "conv1d": lambda: conv1d(3, 5, 4, padding_mode="circular"),
    "conv1d spectral": lambda: conv1d(3, 5, 3, constraint="spectral"),
    "conv2d": lambda: conv2d(4, 6, 3),
    "conv2d by Winograd": lambda: conv2d(16, 16, 3),
    "conv2d one channel": lambda: conv2d(1, 6, 3),
    "conv2d to one channel": lambda: conv2d(6, 1, 3, padding_mode="circular"),
    "conv2d one channel to one": lambda: conv2d(1, 1, 3),
    "conv2d 1x1": lambda: conv2d(4, 4, 1),
    "conv2d bjorck": lambda: conv2d(4, 3, 2, method="bjorck"),
    "conv2d cayley": lambda: conv2d(3, 4, 3, method="cayley"),
    "conv2d spectral": lambda: conv2d(4, 3, 3, constraint="spectral"),
    "conv3d": lambda: conv3d(3, 4, 3),
    "conv3d spectral": lambda: conv3d(2, 3, 2, constraint="spectral"),
    "conv2d transposed": lambda: conv_transpose2d(4, 6, 3),
    "conv2d groups": lambda: conv2d(4, 6, 3, groups=2),
    "conv2d depthwise": lambda: conv2d(3, 3, 3, groups=3),
    "conv1d groups": lambda: conv1d(6, 4, 3, groups=2, padding_mode="circular"),
    "conv2d transposed groups": lambda: conv_transpose2d(4, 6, 3, groups=2),
    "conv3d strided": lambda: conv3d(1, 8, 2, stride=2),
    "conv2d strided": lambda: conv2d(2, 6, 3, stride=2),
    "conv1d strided": lambda: conv1d(2, 6, 3, stride=2),
}
layers = pytest.mark.parametrize("name", LAYERS)


def convolution(layer: nn.Module) -> nn.Module:
    """The layer itself, or the one behind the unshuffling."""
    return layer[1] if isinstance(layer, nn.Sequential) else layer


def inputs(name: str, batch: int = 3) -> Tensor:
    layer = LAYERS[name]()
    plain = convolution(layer)
    channels = getattr(plain, "in_channels", plain.weight.shape[1])
    if name.endswith("strided"):
        channels //= 2 ** (plain.weight.ndim - 2)
    return torch.randn(batch, channels, *[8] * (convolution(layer).weight.ndim - 2))


def upper(layer: nn.Module) -> float:
    weight = convolution(layer).weight
    if weight.ndim == 2:
        return spectral_norm_upper(weight)
    return conv_norm_upper(weight, groups=convolution(layer).groups)


@layers
def test_layers_are_plain_torch_layers_with_one_parametrized_weight(name):
    layer = convolution(LAYERS[name]())
    assert isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d))
    assert list(layer.parametrizations) == ["weight"]
    assert [key.rpartition(".")[2] for key in dict(layer.named_parameters())][:1] == ["bias"]
    assert torch.equal(layer.bias, torch.zeros_like(layer.bias))


@layers
def test_layers_have_constant_one_before_and_after_training_steps(name):
    """[lip_linear_layers]"""
    layer, x = LAYERS[name](), inputs(name)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    target = torch.randn_like(layer(x))
    first = float((layer(x) - target).square().mean().detach())
    for _ in range(20):
        optimizer.zero_grad()
        (layer(x) - target).square().mean().backward()
        optimizer.step()
    assert float((layer(x) - target).square().mean().detach()) < first
    assert upper(layer.eval()) == pytest.approx(1, abs=2e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n_in", "n_out"), [(6, 6), (7, 4), (4, 7), (1, 5), (5, 1)])
@pytest.mark.parametrize("init", ["orthogonal", "kaiming", "identity"])
def test_orthonormal_layers_have_all_singular_values_at_the_constant(method, n_in, n_out, init):
    """[lip_linear_layers]"""
    layer = linear(n_in, n_out, method=method, init=init, lipschitz=0.7)
    expected = torch.full((min(n_in, n_out),), 0.7)
    torch.testing.assert_close(torch.linalg.svdvals(layer.weight), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize(("c_in", "c_out"), [(4, 4), (3, 5), (5, 3), (1, 4), (4, 1)])
@pytest.mark.parametrize("build", [conv1d, conv2d])
def test_circular_orthogonal_convolutions_are_isometries_or_their_adjoints(build, kernel, c_in, c_out):
    """[lip_linear_layers]"""
    layer = build(c_in, c_out, kernel, padding_mode="circular", lipschitz=2.0).double()
    size = (6, 5) if build is conv2d else (7,)
    shape = (c_in, *size)
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    w = layer(basis).flatten(1).mT
    assert w.shape == (c_out * math.prod(size), c_in * math.prod(size))
    gram = w.mT @ w if c_out >= c_in else w @ w.mT
    torch.testing.assert_close(gram, 4 * torch.eye(len(gram), dtype=torch.float64), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("c_in", "c_out", "groups"), [(4, 4, 2), (2, 6, 2), (6, 3, 3), (3, 3, 3)])
@pytest.mark.parametrize("build", [conv1d, conv2d, conv3d])
def test_grouped_orthogonal_convolutions_are_isometries_group_by_group(build, c_in, c_out, groups):
    """The dense matrix: orthonormal columns or rows, and zero between groups."""
    layer = build(c_in, c_out, 3, groups=groups, padding_mode="circular", lipschitz=2.0).double()
    size = {conv1d: (5,), conv2d: (4, 3), conv3d: (3, 3, 3)}[build]
    pixels = math.prod(size)
    basis = torch.eye(c_in * pixels, dtype=torch.float64).reshape(-1, c_in, *size)
    w = layer(basis).flatten(1).mT
    gram = w.mT @ w if c_out >= c_in else w @ w.mT
    torch.testing.assert_close(gram, 4 * torch.eye(len(gram), dtype=torch.float64), atol=1e-5, rtol=0)
    blocks = w.reshape(groups, len(w) // groups, groups, -1).abs().amax(dim=(1, 3))
    assert torch.equal(blocks > 1e-9, torch.eye(groups, dtype=torch.bool))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_strided_convolution_of_volumes_is_an_isometry(groups):
    layer = conv3d(2, 16, 3, stride=2, groups=groups, padding_mode="circular")
    x = torch.randn(2, 2, 6, 4, 8)
    y = layer(x)
    assert y.shape == (2, 16, 3, 2, 4)
    torch.testing.assert_close(y.norm(), x.norm(), rtol=1e-5, atol=0)


def test_a_grouped_kernel_can_be_assigned():
    layer, other = (conv2d(8, 8, 3, groups=2) for _ in range(2))
    with torch.no_grad():
        layer.weight = other.weight
    torch.testing.assert_close(layer.weight, other.weight, atol=1e-4, rtol=0)


AOL = {
    "dense": lambda: (linear(6, 4, constraint="aol"), (6,)),
    "tall": lambda: (linear(3, 5, constraint="aol", init="kaiming"), (3,)),
    "signals": lambda: (conv1d(2, 3, 3, constraint="aol", padding_mode="circular"), (2, 9)),
    "images": lambda: (conv2d(2, 3, 3, constraint="aol", init="kaiming", padding_mode="circular"), (2, 7, 7)),
    "fewer": lambda: (conv2d(4, 2, 3, constraint="aol", init="kaiming", padding_mode="circular"), (4, 7, 7)),
    "volumes": lambda: (conv3d(1, 2, 2, constraint="aol", init="kaiming", padding_mode="circular"), (1, 4, 4, 4)),
    "transposed": lambda: (conv_transpose2d(3, 2, 3, constraint="aol", init="kaiming"), (3, 6, 6)),
}


@pytest.mark.parametrize("name", AOL)
def test_almost_orthogonal_layers_have_at_most_the_constant_also_after_training(name):
    """The dense matrix has it too, and its columns are divided by what the definition says."""
    torch.manual_seed(0)
    layer, shape = AOL[name]()
    x, optimizer = torch.randn(4, *shape), torch.optim.Adam(layer.parameters(), lr=0.05)
    target = torch.randn_like(layer(x))
    for _ in range(20):
        optimizer.zero_grad()
        (layer(x) - target).square().mean().backward()
        optimizer.step()
    layer.eval()
    bound = upper(layer)
    assert 0.3 < bound <= 1 + 1e-6
    with torch.no_grad():
        basis = torch.eye(math.prod(shape)).reshape(-1, *shape)
        dense = (layer(basis) - layer(torch.zeros(1, *shape))).flatten(1).double()
    assert float(torch.linalg.matrix_norm(dense, ord=2)) == pytest.approx(bound, rel=0.1)
    assert float(torch.linalg.matrix_norm(dense, ord=2)) <= bound * (1 + 1e-5)


def test_the_divisors_of_aol_are_the_sums_of_the_absolute_gram_matrix():
    """Against the dense matrix of a circular convolution, entry by entry."""
    layer = conv2d(2, 3, 3, constraint="aol", init="kaiming", padding_mode="circular", bias=False).double()
    raw = layer.parametrizations.weight.original.detach()
    plain = nn.Conv2d(2, 3, 3, padding="same", padding_mode="circular", bias=False).double()
    with torch.no_grad():
        plain.weight.copy_(raw)
        dense = plain(torch.eye(2 * 49, dtype=torch.float64).reshape(-1, 2, 7, 7)).flatten(1).mT
    sums = (dense.mT @ dense).abs().sum(1).reshape(2, 49)
    torch.testing.assert_close(sums, sums[:, :1].expand_as(sums))
    torch.testing.assert_close(layer.weight, raw / sums[:, 0].sqrt()[None, :, None, None])


@pytest.mark.parametrize("name", AOL)
def test_what_aol_gives_can_be_assigned_to_it(name):
    torch.manual_seed(1)
    (layer, _), (other, _) = AOL[name](), AOL[name]()
    with torch.no_grad():
        layer.weight = other.weight
    torch.testing.assert_close(layer.weight, other.weight, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("constraint", ["orthogonal", "spectral"])
def test_outputs_have_the_size_of_inputs(kernel, padding_mode, constraint):
    options = {"padding_mode": padding_mode, "constraint": constraint}
    assert conv2d(2, 3, kernel, **options)(torch.randn(2, 2, 9, 7)).shape == (2, 3, 9, 7)
    assert conv1d(2, 3, kernel, **options)(torch.randn(2, 2, 9)).shape == (2, 3, 9)


@pytest.mark.parametrize("stride", [2, 3])
def test_a_stride_divides_the_size_and_keeps_the_isometry(stride):
    layer = conv2d(2, 2 * stride**2, 3, stride=stride, padding_mode="circular")
    x = torch.randn(2, 2, 6 * stride, 4 * stride)
    y = layer(x)
    assert y.shape == (2, 2 * stride**2, 6, 4)
    torch.testing.assert_close(y.norm(), x.norm(), rtol=1e-5, atol=0)
    signal = torch.randn(2, 3, 5 * stride)
    z = conv1d(3, 3 * stride, 3, stride=stride, padding_mode="circular")(signal)
    assert z.shape == (2, 3 * stride, 5)
    torch.testing.assert_close(z.norm(), signal.norm(), rtol=1e-5, atol=0)


def test_sample_unshuffle_orders_channels_like_pixel_unshuffle():
    x = torch.randn(2, 3, 8)
    wide = x.unsqueeze(2).expand(2, 3, 2, 8)
    expected = nn.PixelUnshuffle(2)(wide)[:, :, 0].unflatten(1, (3, 2, 2))[:, :, 0].flatten(1, 2)
    assert torch.equal(SampleUnshuffle(2)(x), expected)
    assert repr(SampleUnshuffle(2)) == "SampleUnshuffle(2)"


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("constraint", ["orthogonal", "spectral"])
def test_the_identity_start_is_the_identity(kernel, constraint):
    x = torch.randn(1, 4, 9, 9)
    layer = conv2d(4, 4, kernel, init="identity", constraint=constraint).eval()
    torch.testing.assert_close(layer(x), x, atol=1e-5, rtol=1e-5)
    signal = torch.randn(1, 3, 9)
    layer = conv1d(3, 3, kernel, init="identity", constraint=constraint).eval()
    torch.testing.assert_close(layer(signal), signal, atol=1e-5, rtol=1e-5)


def test_the_identity_start_of_dense_and_of_even_spectral_layers():
    x = torch.randn(5, 4)
    torch.testing.assert_close(linear(4, 4, init="identity")(x), x)
    image = torch.randn(1, 2, 6, 6)
    layer = conv2d(2, 2, 4, init="identity", constraint="spectral").eval()
    torch.testing.assert_close(layer(image), image, atol=1e-5, rtol=1e-5)


def test_the_identity_start_can_be_trained_away_from():
    layer, x = conv2d(4, 4, 3, init="identity"), torch.randn(2, 4, 8, 8)
    layer(x).flatten(1)[:, ::3].square().sum().backward()
    raw = layer.parametrizations.weight
    assert raw.original0.grad.abs().max() > 1e-3
    assert raw.original1.grad.abs().max() > 1e-3


def test_random_starts_depend_on_the_seed_alone():
    def weights(seed):
        torch.manual_seed(seed)
        names = LAYERS.keys() - {"conv2d one channel to one"}  # whose weight is 1 or -1
        return [convolution(LAYERS[name]()).eval().weight.detach() for name in sorted(names)]

    assert all(torch.equal(a, b) for a, b in zip(weights(3), weights(3), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(weights(3), weights(4), strict=True))


def test_zero_padding_is_a_compression_of_the_plane():
    """Its norm on any image is at most that of the kernel, and the interior is the same as with circular padding."""
    zeros = conv2d(3, 3, 3, bias=False)
    circular = conv2d(3, 3, 3, bias=False, padding_mode="circular")
    circular.load_state_dict(zeros.state_dict())
    x = torch.randn(1, 3, 8, 8)
    assert zeros(x).norm() < x.norm()
    torch.testing.assert_close(zeros(x)[..., 1:-1, 1:-1], circular(x)[..., 1:-1, 1:-1])


@layers
def test_state_dicts_round_trip_into_a_new_layer(name, tmp_path):
    layer, other, x = LAYERS[name]().eval(), LAYERS[name]().eval(), inputs(name)
    torch.save(layer.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)


@layers
@pytest.mark.parametrize("training", [True, False])
def test_many_seeds_run_as_one_batched_model(name, training):
    models = [nn.Sequential(LAYERS[name]()).train(training) for _ in range(3)]
    x = inputs(name)
    base = copy.deepcopy(models[0])
    parameters, buffers = stack_module_state(models)
    parameters = {key: value.detach().requires_grad_() for key, value in parameters.items()}
    outputs = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers)
    outputs.square().mean(dim=tuple(range(1, outputs.ndim))).sum().backward()
    for i, model in enumerate(models):
        y = model(x)
        torch.testing.assert_close(outputs[i], y, atol=1e-5, rtol=1e-5)
        y.square().mean().backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(parameters[key].grad[i], parameter.grad, atol=1e-5, rtol=1e-4)
        for key, buffer in model.named_buffers():
            torch.testing.assert_close(buffers[key][i], buffer, atol=1e-5, rtol=1e-4)


@layers
def test_vmap_of_grad_equals_a_loop(name):
    models = [nn.Sequential(LAYERS[name]()).double().eval() for _ in range(2)]
    x = inputs(name).double()
    base = copy.deepcopy(models[0])
    parameters, buffers = stack_module_state(models)

    def loss(p, b):
        return functional_call(base, (p, b), (x,)).square().mean()

    gradients = vmap(grad(loss))({key: value.detach() for key, value in parameters.items()}, buffers)
    for i, model in enumerate(models):
        model(x).square().mean().backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[key][i], parameter.grad)


@pytest.mark.parametrize(
    ("name", "training"),
    [
        *[(name, False) for name in ("linear", "linear polar", "conv2d", "conv2d spectral")],
        *[(name, True) for name in ("linear cayley", "conv2d spectral")],
    ],
)
def test_layers_compile_without_graph_break(name, training):
    torch._dynamo.reset()
    layer, x = LAYERS[name]().train(training), inputs(name)
    twin = copy.deepcopy(layer)
    y = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    y.square().sum().backward()
    torch.testing.assert_close(y, twin(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["linear", "linear bjorck", "conv1d strided", "conv2d", "conv2d spectral"])
@pytest.mark.parametrize("frozen", [True, False])
def test_layers_export(name, frozen):
    layer, x = LAYERS[name]().eval().requires_grad_(not frozen), inputs(name)
    program = torch.export.export(layer, (x,))
    torch.testing.assert_close(program.module()(x), layer(x), atol=1e-5, rtol=1e-5)


@layers
def test_removing_the_parametrization_leaves_an_ordinary_layer_with_the_same_weight(name):
    layer, x = LAYERS[name]().eval(), inputs(name)
    expected = layer(x)
    parametrize.remove_parametrizations(convolution(layer), "weight")
    assert isinstance(convolution(layer).weight, nn.Parameter)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_layers_run_in_other_precisions(dtype):
    for build in LAYERS.values():
        layer = convolution(build().to(dtype).eval())
        assert layer.weight.dtype == dtype
        assert upper(layer) == pytest.approx(1, abs=2e-2 if dtype == torch.bfloat16 else 1e-8)


@pytest.mark.parametrize("method", METHODS)
def test_double_backward_through_a_layer(method):
    layer = linear(4, 3, method=method).double()
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    raw = layer.parametrizations.weight.original
    slopes = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)[0]
    (gradient,) = torch.autograd.grad(slopes.norm(), raw)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: linear(0, 3), "n_in must be at least 1, but is 0"),
        (lambda: linear(3, 2.0), "n_out must be an integer, but is 2.0"),
        (
            lambda: linear(3, 2, constraint="orthogonal"),
            "constraint must be one of 'orthonormal', 'spectral', 'aol', but is 'o",
        ),
        (lambda: linear(3, 2, init="zeros"), "init must be one of 'orthogonal', 'kaiming', 'identity', but is 'zeros'"),
        (lambda: linear(3, 2, method="svd"), "method must be one of 'qr', 'cayley', 'polar', 'bjorck', but is 'svd'"),
        (lambda: linear(3, 2, lipschitz=0), "lipschitz must be a positive finite number, but is 0"),
        (lambda: linear(3, 2, constraint="spectral", method="qr"), "method='qr' says how to orthonormalize.*Leave"),
        (lambda: conv2d(3, 2, 0), "kernel must be at least 1, but is 0"),
        (lambda: conv2d(3, 2, 3, stride=0), "stride must be at least 1, but is 0"),
        (lambda: conv2d(0, 2, 3), "c_in must be at least 1, but is 0"),
        (lambda: conv2d(2, -1, 3), "c_out must be at least 1, but is -1"),
        (
            lambda: conv2d(2, 2, 3, padding_mode="reflect"),
            "padding_mode must be one of 'zeros', 'circular', but is 'refl",
        ),
        (lambda: conv2d(2, 2, 3, constraint="orthonormal"), "constraint must be one of 'orthogonal', 'spectral'"),
        (lambda: conv2d(2, 2, 3, lipschitz=-1.0), "lipschitz must be a positive finite number, but is -1.0"),
        (lambda: conv2d(2, 2, 3, method="svd"), "method must be one of"),
        (lambda: conv2d(2, 2, 3, constraint="spectral", method="qr"), "method='qr' says how to orthonormalize"),
        (lambda: conv1d(2, 2, 3, init="zeros"), "init must be one of"),
        (lambda: conv1d(2, 2, (3, 3)), r"kernel must be an integer, but is \(3, 3\)"),
        (lambda: SampleUnshuffle(0), "factor must be at least 1, but is 0"),
        (lambda: SampleUnshuffle(2)(torch.zeros(1, 1, 5)), "The stride 2 must divide the length of the signal, but 5"),
    ],
)
def test_impossible_arguments_are_refused_in_one_sentence(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.skipif(not has_winograd(), reason="Winograd's algorithm does not run here")
@pytest.mark.parametrize(
    "options", [{}, {"c_in": 8}, {"padding_mode": "circular"}, {"groups": 2}, {"kernel": 5}, {"constraint": "spectral"}]
)
def test_trained_convolutions_run_winograds_algorithm_where_it_pays(options):
    layer = conv2d(**{"c_in": 16, "c_out": 16, "kernel": 3, **options})
    y = layer(torch.randn(2, options.get("c_in", 16), 9, 7))
    assert ("_Convolution" in type(y.grad_fn).__name__) == (options in ({}, {"constraint": "spectral"}))


@pytest.mark.parametrize("shape", [(16, 9, 7), (3, 16), (2, 15, 9, 7), (2, 16, 9)])
def test_convolutions_take_and_refuse_what_torch_does(shape):
    layer = conv2d(16, 16, 3)
    ordinary = nn.Conv2d(16, 16, 3, padding=1)
    ordinary.weight, ordinary.bias = nn.Parameter(layer.weight.detach()), nn.Parameter(layer.bias.detach())
    x = torch.randn(shape)
    try:
        wanted = ordinary(x)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            layer(x)
    else:
        torch.testing.assert_close(layer(x), wanted, rtol=0, atol=1e-5)


def test_convolutions_run_under_autocast():
    layer, x = conv2d(16, 16, 3), torch.randn(1, 16, 9, 9)
    with torch.autocast("cpu"):
        assert layer(x).dtype == torch.bfloat16


@pytest.mark.parametrize("make", [conv1d, conv2d, conv3d, conv_transpose2d])
@pytest.mark.parametrize("constraint", ["orthogonal", "spectral", "aol"])
def test_parameters_can_be_written_by_safetensors(make, constraint: str):
    """It takes contiguous tensors only."""
    state = make(4, 6, 3, constraint=constraint).state_dict()
    restored = safetensors.torch.load(safetensors.torch.save(state))
    assert all(torch.equal(restored[name], value) for name, value in state.items())


@pytest.mark.parametrize(
    ("c_in", "c_out", "kernel", "stride"), [(2, 6, 1, 1), (6, 2, 2, 1), (1, 4, 2, 2), (6, 2, 2, 2)]
)
def test_almost_orthogonal_convolutions_are_certified_by_what_makes_them_so(c_in, c_out, kernel: int, stride: int):
    """Samples of their response miss up to two percent, which `plain` would not hide."""
    for seed in range(40):
        torch.manual_seed(seed)
        layer = conv2d(c_in, c_out, kernel, stride=stride, constraint="aol", init="kaiming").eval()
        assert lipspline.certify(layer).upper < 1 + 1e-6
        assert lipspline.certify(lipspline.plain(layer)).upper <= 1


@pytest.mark.parametrize("shape", [(5, 3, 3, 3), (3, 5, 2, 2), (4, 4, 5), (2, 2, 2, 2, 2), (40, 32, 3, 3)])
def test_the_bound_of_absolute_entries_is_above_the_norm(shape: tuple[int, ...]):
    """And equal to it for kernels without signs, whose largest response is at frequency zero."""
    for seed in range(5):
        kernel = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        sizes = [16 if shape[0] < 40 else 6] * (len(shape) - 2)
        exact = conv_norm_circular(kernel, sizes)
        assert conv_norm_upper(kernel) >= exact
        positive = conv_norm_circular(kernel.abs(), sizes)
        assert positive <= conv_norm_upper(kernel.abs()) <= positive * (1 + 1e-6)
