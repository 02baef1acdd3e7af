"""What runs is what is bounded: precisions, parametrizations, hooks, and attributes changed after construction."""

import collections
import copy
import itertools
import math

import pytest
import torch
from layer_norms import ill_conditioned, norm, upper
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from lipspline.certification import certify, estimate_lower, layer_bound
from lipspline.models import denoiser, mlp
from lipspline.nn import (
    Averaged,
    Concatenated,
    GroupSort,
    Householder,
    LinearSpline,
    LipschitzPReLU,
    Scaled,
    Sum,
    conv1d,
    conv2d,
    linear,
)
from lipspline.nn.fold import fold
from lipspline.nn.inference import InferenceConv2d


def exact_norm(weight: Tensor) -> float:
    return float(torch.linalg.matrix_norm(weight.detach().double(), ord=2))


# Numbers


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "layer", [nn.Linear(3, 3), nn.Conv1d(2, 2, 3), nn.Conv2d(2, 2, 3), nn.ConvTranspose2d(2, 2, 3)]
)
def test_complex_weights_are_refused(layer: nn.Module, dtype: torch.dtype):
    """Their imaginary parts were dropped: a weight of 5j had the bound 3e-279."""
    layer = copy.deepcopy(layer).to(dtype)
    with torch.no_grad():
        layer.weight.copy_(5j * torch.ones_like(layer.weight))
    with pytest.raises(ValueError, match=rf"^Layer '1' \(\w+\): Parameter 'weight' is complex \({dtype}\)"):
        certify(nn.Sequential(nn.ReLU(), layer))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_the_bound_is_that_of_the_rounded_weights(dtype: torch.dtype):
    """Every floating-point type fits into float64 exactly."""
    layer = nn.Linear(6, 5, bias=False)
    layer.weight = nn.Parameter(layer.weight.detach().to(dtype), requires_grad=False)
    exact = exact_norm(layer.weight)
    assert exact * (1 - 1e-13) <= upper(layer) <= exact * (1 + 1e-8)
    assert (exact == pytest.approx(exact_norm(nn.Linear(6, 5).to(dtype).weight), rel=1e-9)) is False


@pytest.mark.parametrize(
    ("weight", "complaint"),
    [
        (torch.ones(2, 2, dtype=torch.int64), "holds torch.int64, but only floating-point weights"),
        (torch.ones(2, 2, dtype=torch.bool), "holds torch.bool, but only floating-point weights"),
        (torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8), r"is quantised \(torch.qint8\)"),
        (torch.eye(2).to_sparse(), r"is not dense \(torch.sparse_coo\)"),
        (torch.ones(2, 2, device="meta"), "is on the meta device, without values"),
    ],
)
def test_weights_that_are_no_dense_real_numbers_are_refused(weight: Tensor, complaint: str):
    """Each with its reason."""
    layer = nn.Linear(2, 2, bias=False)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    with pytest.raises(ValueError, match=f"Parameter 'weight' {complaint}"):
        certify(layer)


@pytest.mark.parametrize("given", [None, (2,), torch.zeros(1, 2)])
def test_weights_without_values_are_refused_before_anything_runs(given):
    """On the meta device layers have shapes only, and a splitting of weights or a run ends somewhere in torch."""
    models = [model.to("meta") for model in (nn.Linear(2, 2), mlp(2, 1, width=4, depth=2, activation="lls"))]
    for model in models:
        with pytest.raises(ValueError, match=r"on the meta device, without values.* Load its weights first") as raised:
            certify(model, given)
        assert raised.type is ValueError
    with pytest.raises(ValueError, match="on the meta device, without values"):
        estimate_lower(models[0])
    with pytest.raises(ValueError, match=r"The example is on the meta device, without values\. Give its shape"):
        certify(nn.Linear(2, 2), torch.zeros(1, 2, device="meta"))


def test_a_batch_without_inputs_is_refused_where_ratios_are_looked_for():
    with pytest.raises(ValueError, match=r"a batch of at least one input, .* has the shape \(0, 2\)"):
        estimate_lower(nn.Linear(2, 2), inputs=torch.zeros(0, 2))


def test_tensors_with_ways_of_their_own_are_refused():
    """A subclass of Tensor may multiply as it likes."""

    class Louder(Tensor):
        pass

    layer = nn.Linear(2, 2)
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Louder))
    with pytest.raises(ValueError, match="Parameter 'weight' is a Louder, which may multiply in its own way"):
        certify(layer)
    with pytest.raises(ValueError, match="UninitializedParameter"):
        certify(nn.Sequential(declared_lazy()))


def declared_lazy() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.bias = nn.UninitializedParameter()
    return layer


def test_integers_that_count_are_no_weights():
    """The batches a normalisation has seen."""
    layer = nn.BatchNorm1d(3)
    layer.num_batches_tracked.fill_(2**60)
    assert upper(layer) == pytest.approx(1 / math.sqrt(1 + 1e-5))


def test_a_weight_kept_as_a_plain_attribute_is_the_one_that_runs():
    """forward reads the attribute, not the parameter behind it."""
    layer = nn.Linear(2, 2, bias=False)
    vars(layer)["weight"] = torch.diag(torch.tensor([7.0, 1.0]))
    assert float(layer(torch.tensor([1.0, 0.0])).norm().detach()) == 7.0
    assert upper(layer) == pytest.approx(7.0)


# Parametrizations


def test_the_weights_that_run_are_certified_and_not_their_value_in_float64():
    """torch's orthogonal with raw weights of 1e5: 1.0000005 in float64, but this is not what multiplies."""
    layer = ill_conditioned()
    assert exact_norm(layer.weight) > 1.01
    assert exact_norm(layer.weight) <= upper(layer) <= exact_norm(layer.weight) * (1 + 1e-8)
    assert exact_norm(layer.eval().weight) <= upper(layer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda: linear(7, 5),
        lambda: linear(7, 5, constraint="spectral"),
        lambda: linear(6, 6, method="cayley", lipschitz=2.0),
        lambda: parametrizations.weight_norm(nn.Linear(7, 5)),
        lambda: parametrizations.spectral_norm(nn.Linear(7, 5)),
        lambda: parametrizations.orthogonal(nn.Linear(7, 5), orthogonal_map="householder"),
        lambda: parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="cayley"),
    ],
)
def test_parametrized_layers_have_the_norm_of_their_weight_in_eval_mode(make, training: bool, dtype: torch.dtype):
    """In every precision that torch evaluates them in, and without a change of the layer."""
    layer = make()
    try:
        layer = layer.to(dtype).eval()
        exact = exact_norm(layer.weight)
    except (RuntimeError, NotImplementedError):  # torch has no QR in half precision
        pytest.skip("torch cannot evaluate it")
    assert exact * (1 - 1e-13) <= upper(layer.train(training)) <= exact * (1 + 1e-8)
    assert exact_norm(layer.eval().weight) == exact


def test_our_denoiser_is_bounded_as_it_runs():
    """Eight orthogonal kernels in float32: the product of the norms of their own weights."""
    torch.manual_seed(0)
    model = denoiser("relu", channels=16)
    product = math.prod(layer_bound(frozen(layer)).upper for layer in model if isinstance(layer, nn.Conv2d))
    assert certify(model).upper == pytest.approx(product, rel=1e-12)


def frozen(layer: nn.Conv2d) -> nn.Conv2d:
    """A plain convolution with the weight that a parametrized one multiplies with."""
    plain = nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, padding=layer.padding)
    plain.weight = nn.Parameter(layer.eval().weight.detach().clone())
    return plain


class Noisy(nn.Module):
    """A random constraint."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight * torch.rand(())


class Counting(nn.Module):
    """A constraint with a state that forward changes, also in eval mode."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, weight: Tensor) -> Tensor:
        self.calls += 1
        return weight * (self.calls > 2).float()


class ByGradMode(nn.Module):
    """A constraint that is another one where gradients are wanted."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (7 if torch.is_grad_enabled() else 1)


@pytest.mark.parametrize("constraint", [Noisy, Counting, ByGradMode])
def test_parametrizations_without_one_value_are_refused_and_left_alone(constraint):
    """No bound is one of all their weights. Neither their state nor that of the random numbers changes."""
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", constraint(), unsafe=True)
    state = copy.deepcopy(layer.state_dict())
    random = torch.get_rng_state()
    with pytest.raises(ValueError, match="The parametrization of 'weight' is random or changes its own state"):
        certify(layer)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(tensor, state[name]) for name, tensor in layer.state_dict().items())


def test_a_weight_that_was_kept_is_the_one_that_runs():
    """In eval mode a constraint keeps its weight; written through `.data` its parameters change unnoticed."""
    layer = linear(3, 3, constraint="spectral").eval().requires_grad_(False)
    with torch.no_grad():
        layer(torch.zeros(1, 3))
        layer.parametrizations.weight[0]._kept.weight.mul_(5)
        assert exact_norm(layer.weight) == pytest.approx(5.0, rel=1e-6)
        assert upper(layer) == pytest.approx(5.0, rel=1e-6)


def test_weights_of_the_cache_of_torch_are_not_mixed_up():
    """Within `cached()` torch finds weights by the address of a module, which a copy may share with a dead one."""
    layers = [nn.Linear(4, 4) for _ in range(30)]
    with torch.no_grad():
        for i, layer in enumerate(layers):
            layer.weight.copy_((i + 1) * torch.eye(4))
            parametrize.register_parametrization(layer, "weight", nn.Identity())
    with parametrize.cached():
        assert [round(certify(layer).upper, 6) for layer in layers] == list(range(1, 31))


def test_a_cache_that_is_out_of_date_is_noticed():
    """What runs is the weight from before the change."""
    layer = nn.Linear(2, 2).eval()
    parametrize.register_parametrization(layer, "weight", Scaled(2.0))
    with parametrize.cached(), torch.no_grad():
        layer(torch.zeros(1, 2))
        assert upper(layer) == pytest.approx(exact_norm(layer.weight))
        layer.parametrizations.weight.original.mul_(0.1)
        with pytest.raises(ValueError, match=r"cached\(\) keeps is not the one that its parameters give now"):
            certify(layer)


@pytest.mark.parametrize("register", [nn.utils.spectral_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
def test_constraints_by_hooks_are_refused_with_their_successor(register):
    """torch.nn.utils.spectral_norm computes the weight in a hook; after a forward it cannot even be copied."""
    layer = register(nn.Linear(3, 3))
    layer(torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"has forward hooks.*in torch\.nn\.utils\.parametrizations"):
        certify(layer)


def test_a_class_that_only_looks_parametrized_is_not_the_one_it_inherits_from():
    """With a `parametrizations` of its own a subclass could pass for its base."""

    class Sevenfold(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 7 * super().forward(x)

    layer = Sevenfold(2, 2)
    layer.parametrizations = nn.ModuleDict({"weight": nn.Identity()})
    with pytest.raises(ValueError, match="no rule for Sevenfold"):
        certify(layer)
    layer = linear(2, 2)
    type(layer).forward = lambda self, x: 7 * x
    with pytest.raises(ValueError, match="no rule for ParametrizedLinear"):
        certify(layer)
    layer = linear(2, 2)
    type(layer).weight = property(lambda self: 7 * torch.eye(2))
    with pytest.raises(ValueError, match="no rule for ParametrizedLinear"):
        certify(layer)


# Modes


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.Dropout(0.5), parametrizations.spectral_norm(nn.Linear(3, 3))])
def test_a_layer_in_training_mode_within_a_network_in_eval_mode_is_refused(layer: nn.Module):
    """It does not do what eval mode does."""
    model = nn.Sequential(nn.ReLU(), layer).eval()
    if isinstance(layer, nn.Linear):  # far from where its power iteration has converged
        nn.init.normal_(layer.parametrizations.weight.original)
    certify(model)
    layer.train()
    with pytest.raises(ValueError, match=r"^Layer '1' is in training mode within a network in eval mode"):
        certify(model)
    certify(model.train())


# Hooks, methods and attributes


def test_global_hooks_are_refused():
    """They run in every module."""
    for register in (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
    ):
        handle = register(lambda *arguments: None)
        try:
            with pytest.raises(ValueError, match=r"^Layer 'itself' runs global forward hooks"):
                certify(nn.ReLU())
        finally:
            handle.remove()
    assert upper(nn.ReLU()) == 1.0


METHODS = [
    (nn.ReLU(), "forward"),
    (nn.ReLU(), "_call_impl"),
    (nn.ReLU(), "_wrapped_call_impl"),
    (nn.Conv2d(1, 1, 3), "_conv_forward"),
    (nn.ConvTranspose1d(1, 1, 3), "_output_padding"),
    (LinearSpline(2), "_spline"),
    (LinearSpline(2), "tables"),
    (nn.BatchNorm1d(2), "_check_input_dim"),
    (InferenceConv2d(1, 1, 3), "_transformed"),
]


@pytest.mark.parametrize(("layer", "name"), METHODS, ids=lambda value: str(value))
def test_methods_set_on_an_instance_are_refused(layer: nn.Module, name: str):
    """forward may call any of them."""
    setattr(layer, name, lambda *arguments: 7 * arguments[0])
    wanted = rf"^Layer '1' has a {name} that was set on the instance, and certify knows only that of its class"
    with pytest.raises(ValueError, match=wanted):
        certify(nn.Sequential(nn.ReLU(), layer))


def test_a_compiled_call_must_be_that_of_the_module():
    """torch calls `_compiled_call_impl` instead of the module, if there is one."""
    layer = nn.ReLU()
    layer.compile(backend="eager")
    assert upper(layer) == 1.0
    layer._compiled_call_impl = lambda x: 7 * x
    assert float(layer(torch.ones(1))) == 7.0
    with pytest.raises(ValueError, match=r"_compiled_call_impl that module\.compile\(\) did not make"):
        certify(layer)


def test_a_class_whose_forward_was_replaced_has_no_rule(monkeypatch):
    """The rule was written for another function."""
    monkeypatch.setattr(nn.Tanh, "forward", lambda self, x: 7 * x)
    with pytest.raises(ValueError, match="no rule for Tanh with the forward it has now"):
        certify(nn.Tanh())


class Backwards(nn.Sequential):
    def __iter__(self):
        return iter([Scaled(7.0)])


class Calling(nn.Sequential):
    def __call__(self, x):
        return 7 * x


class Implementing(nn.Sequential):
    def _call_impl(self, x):
        return 7 * x


class Getting(nn.Sequential):
    def __getattribute__(self, name):
        return {"0": Scaled(7.0)} if name == "_modules" else super().__getattribute__(name)


class Named(nn.Sequential):
    """A subclass that only adds names."""

    def first(self) -> nn.Module:
        return self[0]


@pytest.mark.parametrize("kind", [Backwards, Calling, Implementing])
def test_rows_with_ways_of_their_own_are_refused(kind):
    """A subclass of nn.Sequential may iterate or call in another way."""
    model = kind(nn.ReLU())
    assert float(model(torch.ones(1))) == 7.0
    with pytest.raises(ValueError, match=f"no rule for {kind.__name__}"):
        certify(model)
    with pytest.raises(ValueError, match="no rule for Getting"):
        certify(Getting(nn.ReLU()))
    assert upper(Named(nn.ReLU(), Scaled(3.0))) == 3.0


def test_rows_must_be_kept_in_a_dictionary():
    """Another mapping could show other layers."""

    class Odd(dict):
        def values(self):
            return [Scaled(7.0)]

    model = nn.Sequential(nn.ReLU())
    vars(model)["_modules"] = Odd(model._modules)
    assert float(model(torch.ones(1))) == 7.0
    with pytest.raises(ValueError, match="keeps its layers in a Odd, not in a dictionary"):
        certify(model)
    vars(model)["_modules"] = collections.OrderedDict({"0": Scaled(7.0)})
    assert upper(model) == 7.0


@pytest.mark.parametrize("beta", [-2.0, 1.5, 3.0, 0.0, -0.1])
def test_an_average_with_any_number_is_bounded_rightly(beta: float):
    """|beta| L + |1 - beta|, reached where both parts point the same way."""
    model = Averaged(Scaled(-2.0 if beta > 1 or beta < 0 else 2.0), 0.5)
    model.beta = beta
    exact = abs(beta) * 2 + abs(1 - beta)
    assert upper(model) == pytest.approx(exact, rel=1e-14)
    assert upper(model) >= exact * (1 - 1e-15)
    assert norm(model, 3) == pytest.approx(exact)
    one = Averaged(nn.ReLU(), 0.5)
    one.beta = beta
    assert upper(one) == pytest.approx(abs(beta) + abs(1 - beta))


@pytest.mark.parametrize("beta", [math.nan, math.inf, torch.tensor([0.5, 7.0]), "0.5", 1j, True, None])
def test_an_average_with_what_is_no_number_is_refused(beta):
    """A tensor would weigh each pixel in its own way."""
    model = Averaged(nn.ReLU(), 0.5)
    model.beta = beta
    with pytest.raises(ValueError, match="beta must be a finite number, but is"):
        certify(model)


def test_a_part_that_is_no_module_is_refused():
    """A function in its place has no rule."""
    model = Averaged(nn.ReLU(), 0.5)
    del model.inner
    model.inner = lambda x: 7 * x
    with pytest.raises(ValueError, match=r"^Layer 'inner' is no nn\.Module but a function.*lipspline\.declare"):
        certify(model)
    with pytest.raises(ValueError, match=r"^Layer 'itself' is no nn\.Module but a builtin_function_or_method"):
        certify(torch.sin)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^Layer '0' is no nn\.Module but a NoneType"):
        row = nn.Sequential(nn.ReLU())
        row._modules["0"] = None
        certify(row)


def test_a_network_that_contains_itself_is_refused():
    """It would never end."""
    model = nn.Sequential(nn.ReLU())
    model.append(Averaged(nn.ReLU(), 0.5))
    model[1].inner = model
    with pytest.raises(ValueError, match=r"^Layer '1\.inner' is a part of itself"):
        certify(model)


@pytest.mark.parametrize(
    "branch",
    [
        nn.LeakyReLU(-3.0, inplace=True),
        nn.Sequential(nn.Identity(), nn.Flatten(0), nn.LeakyReLU(-3.0, inplace=True)),
        nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.ELU(3.0, inplace=True))),
    ],
)
def test_branches_that_write_over_their_input_are_refused(branch: nn.Module):
    """The average would be of the output with itself: 3 instead of 2."""
    for model in (Averaged(branch, 0.5), Sum(branch, nn.Identity()), Concatenated(branch, nn.Identity(), dim=0)):
        with pytest.raises(ValueError, match=r"LU that writes over its input.*Set its inplace to False"):
            certify(model)
    harmless = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Dropout(0.1, inplace=True))
    certify(Averaged(harmless, 0.5))
    certify(Averaged(nn.Dropout(0.1, inplace=True), 0.5))


def test_kernels_prepared_for_another_weight_are_noticed():
    """The convolution for inference keeps a transform of its weight."""
    layer = InferenceConv2d(16, 16, 3, padding=1)
    layer._transformed()
    assert upper(layer) > 0
    layer._prepared = (layer._prepared[0], 100 * layer._prepared[1])
    with pytest.raises(ValueError, match="The transformed kernels that were kept are not those of the weight"):
        certify(layer)


def test_other_sizes_of_our_layers_are_bounded_or_refused():
    """A strided orthogonal convolution, whose layers were changed by hand."""
    model = conv2d(2, 4, 3, stride=2)
    assert upper(model) == pytest.approx(1.0, abs=1e-5)
    model[1].padding_mode = "circular"
    assert upper(model) == pytest.approx(1.0, abs=1e-5)
    model[1].dilation = (2, 2)
    assert norm(copy.deepcopy(model), 2, 12, 12) <= upper(model) * (1 + 1e-6)


@pytest.mark.parametrize("name", ["stride", "kernel_size", "dilation"])
@pytest.mark.parametrize("value", [0, -1, (0,), True, 2.0])
def test_sizes_of_less_than_one_pixel_are_refused(name, value):
    """A stride of 0 that was set after construction used to divide by zero."""
    layer = nn.MaxPool1d(2, 1)
    setattr(layer, name, value)
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1"):
        certify(layer)


LAYERS = (
    lambda: LinearSpline(4, regions=8, radius=1.0),
    lambda: fold(nn.Sequential(LinearSpline(4, regions=8, radius=1.0)))[0],
    lambda: linear(4, 4),
    lambda: linear(4, 4, constraint="spectral"),
    lambda: conv1d(4, 4, 3),
    lambda: nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular"),
    lambda: nn.ConvTranspose1d(4, 4, 3),
    lambda: nn.BatchNorm1d(4).eval(),
    lambda: nn.MaxPool1d(2),
    lambda: nn.AvgPool1d(2),
    lambda: nn.ConstantPad1d(1, 2.0),
    lambda: nn.Upsample(scale_factor=2),
    lambda: nn.LeakyReLU(0.1),
    lambda: Householder(4),
    lambda: GroupSort(2),
    lambda: LipschitzPReLU(4),
    lambda: Averaged(nn.ReLU(), 0.3),
    lambda: Scaled(0.5),
)
ODD = (0, 1, 3, 100, -1, 2.5, 1e200, True, None, "x", (-5.0, 5.0), [1, 2], math.nan, 10**30)
IGNORED = {"training", "in_features", "out_features", "in_channels", "out_channels"}


@pytest.mark.parametrize("make", LAYERS)
def test_whatever_is_written_into_a_layer_there_is_a_bound_that_holds_or_a_refusal(make):
    """Each attribute of the layer and of its parametrizations with each odd value; an error of another kind was one."""
    places = [
        (i, name) for i, part in enumerate(make().modules()) for name in {*vars(part)} - IGNORED if name[0] != "_"
    ]
    for (part, name), value in itertools.product(places, ODD):
        torch.manual_seed(0)
        layer = make().eval()
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
        setattr(list(layer.modules())[part], name, value)
        try:
            bound = certify(layer).upper
        except ValueError:
            continue
        x = 3 * torch.randn(20, 4, 6)
        near = x + 0.1 * torch.randn_like(x)
        try:
            with torch.no_grad():
                apart = layer(near.clone()) - layer(x.clone())
        except Exception:  # it does not run, and then no bound is wrong
            continue
        if name == "channel_dim":  # the batch is one vector, if its images are mixed
            apart, near, x = apart[None], near[None], x[None]
        distances = (near - x).flatten(1).norm(dim=1)
        assert not bool((apart.flatten(1).norm(dim=1) > bound * distances * (1 + 1e-4) + 1e-4).any()), (name, value)


def test_an_orthogonal_convolution_without_its_bases_is_refused():
    """It was read from memory that nobody had written: another weight at each call."""
    layer = conv1d(4, 4, 3)
    layer.parametrizations.weight.ntensors = 1
    with pytest.raises(ValueError, match=r"The bases \(2, 1, 4, 2\) of an orthogonal convolution were not given"):
        layer(torch.randn(1, 4, 6))
    with pytest.raises(ValueError, match="were not given"):
        certify(layer)
