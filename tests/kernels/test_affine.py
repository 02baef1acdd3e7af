"""The operator behind every spline: all implementations, all derivatives, all transforms [sec:deepspline]."""

import math

import pytest
import torch
from kernel_cases import disagreement, random_case
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from vmapped import assert_vmap_is_a_loop

from lipspline import kernels
from lipspline.kernels import affine, native, overwrite_piecewise_affine, piecewise_affine

needs_c = pytest.mark.skipif(native.library is None, reason="the C kernels are not built")


def tables(channels: int, regions: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, float]:
    """Random b, s, scale, offset."""
    b, s = torch.randn(2, channels, regions, dtype=dtype)
    return b, s, regions / 4 * (0.5 + torch.rand(channels, dtype=dtype)), regions / 2


def naive(x: Tensor, b: Tensor, s: Tensor, scale: Tensor, offset: float, channel_dim: int) -> Tensor:
    """The formula, one element at a time."""
    y = torch.empty_like(x)
    for at in torch.cartesian_prod(*(torch.arange(n) for n in x.shape)).reshape(-1, x.ndim).tolist():
        c = at[channel_dim] if len(b) > 1 else 0
        value = float(x[tuple(at)])
        i = min(max(math.floor(float(scale[c]) * value + offset), 0), b.shape[1] - 1)
        y[tuple(at)] = float(b[c, i]) + float(s[c, i]) * value
    return y


@pytest.mark.parametrize(("shape", "channel_dim"), [((7,), 0), ((4, 3), 1), ((2, 3, 5), 1), ((2, 2, 3, 4), -1)])
def test_every_implementation_is_the_formula(implementation, shape, channel_dim):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    arguments = (*tables(shape[channel_dim], 6), channel_dim)
    with kernels.using(implementation):
        torch.testing.assert_close(piecewise_affine(x, *arguments), naive(x, *arguments), rtol=1e-14, atol=1e-14)


def test_one_table_may_serve_all_channels(implementation):
    torch.manual_seed(0)
    x, (b, s, scale, offset) = torch.randn(3, 4, 5, dtype=torch.float64), tables(1, 7)
    with kernels.using(implementation):
        shared = piecewise_affine(x, b, s, scale, offset)
        torch.testing.assert_close(shared, naive(x, b, s, scale, offset, 1), rtol=1e-14, atol=1e-14)


@needs_c
def test_c_and_eager_agree_on_random_cases():
    for seed in range(150):
        case = random_case(seed)
        message = disagreement(case, case.results_of("c"), case.results_of("eager"))
        assert message is None, f"seed {seed}: {message}"


@needs_c
@pytest.mark.slow
def test_c_and_eager_agree_on_thousands_of_random_cases():
    for seed in range(150, 4000):
        case = random_case(seed, largest=17)
        message = disagreement(case, case.results_of("c"), case.results_of("eager"))
        assert message is None, f"seed {seed}: {message}"


@needs_c
@pytest.mark.parametrize(
    "shape", [(8, 16, 40, 40), (3, 1, 70000), (9000, 24), (40, 24, 15, 3), (2, 3, 3000), (3, 40, 9000)]
)
@pytest.mark.parametrize("regions", [3, 300])
def test_c_and_eager_agree_on_sizes_that_are_cut_into_pieces(shape, regions):
    """Blocks, bands of channels, pieces that are added up, and moving sums to double all take part here."""
    torch.manual_seed(0)
    x, g = torch.randn(2, *shape)
    b, s, scale, offset = tables(shape[1], regions, torch.float32)
    rest = b, s, scale, offset, 1
    with kernels.using("c"):
        y = piecewise_affine(x, *rest)
        gx, gb, gs = torch.ops.lipspline.piecewise_affine_backward(g, x, s, scale, offset, 1)
    assert torch.equal(y, affine.formula(x, *rest))
    exact = affine.backward_formula(g, x, s, scale, offset, 1)
    assert torch.equal(gx, exact[0])
    # The regions come from float32, the sums from float64: what C adds in float32 must be close to that.
    sums = torch.stack([g, g * x]).double()
    for got, terms in zip((gb, gs), sums, strict=True):
        with kernels.using("eager"):
            region = piecewise_affine(x, torch.arange(regions) * torch.ones_like(b), 0 * s, scale, offset).long()
        row = torch.arange(shape[1]).view(1, -1, *[1] * (x.ndim - 2))
        entry = (row * regions + region).flatten()
        wanted, size = (
            torch.zeros(b.numel(), dtype=torch.float64).index_add(0, entry, t.flatten()) for t in (terms, terms.abs())
        )
        assert ((got.flatten() - wanted).abs() <= 1e-5 * size).all()
        assert ((got.flatten() - wanted).norm() / wanted.norm()) < 1e-6


@needs_c
def test_groups_with_many_rows_are_added_up_like_each_alone():
    torch.manual_seed(0)
    x, g = torch.randn(2, 32, 9000, 4)
    s, scale = torch.randn(32, 4, 3), 1 + torch.rand(32, 4)
    together = torch.ops.lipspline.piecewise_affine_backward(g, x, s, scale, 1.5, 2)
    for i in (0, 17, 31):
        alone = affine.backward_formula(g[i].double(), x[i].double(), s[i].double(), scale[i].double(), 1.5, 1)
        for got, want in zip(together, alone, strict=True):
            torch.testing.assert_close(got[i].double(), want, rtol=1e-5, atol=1e-2)


@needs_c
@pytest.mark.parametrize("level", [0, 1, 2])
def test_every_instruction_set_gives_the_same_bits(level):
    """Levels the processor lacks are lowered to those it has."""
    torch.manual_seed(0)
    inputs = [torch.randn(4, 8, 33, 17), torch.randn(500, 40), torch.randn(4, 8, 9, dtype=torch.float64)]
    library = native.library
    assert library is not None

    def results() -> list[Tensor]:
        found = []
        for x in inputs:
            torch.manual_seed(1)
            b, s, scale, offset = tables(x.shape[1], 12, x.dtype)
            found.append(piecewise_affine(x, b, s, scale, offset))
            found.extend(torch.ops.lipspline.piecewise_affine_backward(x.sin(), x, s, scale, offset, 1))
        return found

    try:
        wanted = results()
        library.lipspline_limit_instruction_set(level)
        for got, want in zip(results(), wanted, strict=True):
            assert torch.equal(got, want)
    finally:
        library.lipspline_limit_instruction_set(2)


@pytest.mark.parametrize("rows", [(1,), (3,)])
def test_first_and_second_derivatives_are_right_backwards_and_forwards(implementation, rows):
    torch.manual_seed(0)
    b, s, scale, offset = tables(rows[0], 5)
    leaves = [t.requires_grad_() for t in (torch.randn(2, 3, 2, dtype=torch.float64), b, s)]

    def function(x: Tensor, b: Tensor, s: Tensor) -> Tensor:
        return piecewise_affine(x, b, s, scale, offset)

    with kernels.using(implementation):
        assert gradcheck(
            function, leaves, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
        )
        assert gradgradcheck(function, leaves, check_fwd_over_rev=True, check_batched_grad=True)


def test_third_derivatives_exist(implementation):
    torch.manual_seed(0)
    b, s, scale, offset = tables(2, 4)
    x = torch.randn(3, 2, dtype=torch.float64)

    def energy(s: Tensor) -> Tensor:
        return piecewise_affine(x, b, s, scale, offset).pow(3).sum()

    with kernels.using(implementation):
        third = torch.func.jacrev(torch.func.jacfwd(torch.func.grad(energy)))(s)
        direct = torch.zeros_like(third)
        region = piecewise_affine(x, torch.arange(4.0).double().expand(2, 4), 0 * s, scale, offset).long()
        for n, c in torch.cartesian_prod(torch.arange(3), torch.arange(2)).tolist():
            i = int(region[n, c])
            direct[c, i, c, i, c, i] += 6 * x[n, c] ** 3  # energy is the cube of something linear in s
    torch.testing.assert_close(third, direct)


def test_nan_stays_nan_and_infinity_takes_the_outer_regions(implementation):
    x = torch.tensor([[math.nan], [math.inf], [-math.inf], [1e38], [-1e38]])
    b, s = torch.tensor([[10.0, 20.0, 30.0]]), torch.tensor([[-1.0, 0.0, 2.0]])
    with kernels.using(implementation):
        y = piecewise_affine(x, b, s, torch.ones(1), 1.5)
        flat = piecewise_affine(x[1:2], b, 0 * s, torch.ones(1), 1.5)
    assert y[0].isnan()
    assert y[1:].flatten().tolist() == [math.inf, math.inf, 2 * float(x[3]), -float(x[4])]
    assert flat.isnan().all()  # 0 times infinity, as torch multiplies


@pytest.mark.parametrize("shape", [(0, 3), (4, 3, 0), (0, 3, 0, 2)])
def test_empty_inputs_give_empty_results_and_zero_gradients(implementation, shape):
    b, s, scale, offset = tables(3, 4)
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    with kernels.using(implementation):
        y = piecewise_affine(x, b.requires_grad_(), s.requires_grad_(), scale, offset)
        gx, gb, gs = torch.autograd.grad(y.sum(), (x, b, s))
    assert y.shape == gx.shape == x.shape
    assert torch.equal(gb, torch.zeros_like(b))
    assert torch.equal(gs, torch.zeros_like(s))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("table_dtype", [None, torch.float32])
def test_half_precision_is_computed_in_single(implementation, dtype, table_dtype):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5).to(dtype)
    b, s, scale, offset = tables(3, 6, torch.float32)
    b, s, scale = (t.to(table_dtype or dtype) for t in (b, s, scale))
    with kernels.using(implementation):
        x, b, s = (t.requires_grad_() for t in (x, b, s))
        y = piecewise_affine(x, b, s, scale, offset)
        gradients = torch.autograd.grad(y, (x, b, s), torch.ones_like(y))
    assert y.dtype == dtype
    assert [g.dtype for g in gradients] == [x.dtype, b.dtype, s.dtype]
    single = affine.formula(x.float(), b.float(), s.float(), scale.float(), offset, 1)
    assert torch.equal(y, single.to(dtype))


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "sliced"])
def test_the_result_keeps_the_layout_of_the_input(implementation, layout):
    x = {
        "channels_last": torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last),
        "transposed": torch.randn(6, 4, 5).transpose(1, 2).transpose(0, 1),
        "sliced": torch.randn(2, 4, 3, 10)[..., ::2],
    }[layout].requires_grad_()
    b, s, scale, offset = tables(x.shape[1], 5, torch.float32)
    with kernels.using(implementation):
        y = piecewise_affine(x, b, s, scale, offset)
        (gx,) = torch.autograd.grad(y.sum(), x)
    assert y.stride() == gx.stride() == torch.empty_like(x).stride()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
def test_overwriting_gives_the_same_values_in_the_same_memory_where_it_can(implementation, layout):
    x = torch.randn(2, 4, 30, 60)
    x = {"contiguous": x, "channels_last": x.to(memory_format=torch.channels_last), "sliced": x[..., ::2]}[layout]
    b, s, scale, offset = tables(4, 50, torch.float32)
    with kernels.using(implementation):
        want = piecewise_affine(x, b, s, scale, offset)
        got = overwrite_piecewise_affine(x, b, s, scale, offset)
    assert torch.equal(got, want)
    assert (got is x) == (implementation == "c" and layout != "sliced")


def test_backward_keeps_the_input_and_the_tables_and_nothing_else():
    b, s, scale, offset = tables(4, 50, torch.float32)
    x = torch.randn(2, 4, 30, 30, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        piecewise_affine(x, b.requires_grad_(), s.requires_grad_(), scale, offset)
    large = [t for t in kept if t.numel() > s.numel()]
    assert [t.data_ptr() for t in large] == [x.data_ptr()]


# ---- torch.func, torch.compile, torch.export ----


def ensemble() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(5, 2, 3, 4, dtype=torch.float64)
    b, s = torch.randn(2, 5, 3, 6, dtype=torch.float64)
    return x, b, s, 1 + torch.rand(5, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    "in_dims", [(0, 0, 0, 0), (0, None, None, None), (None, 0, 0, 0), (1, None, 0, None), (2, 1, 2, 1)]
)
def test_vmap_is_a_loop(implementation, in_dims):
    with kernels.using(implementation):
        assert_vmap_is_a_loop(lambda *tables: piecewise_affine(*tables, 3.0), ensemble(), in_dims, learned=(0, 1, 2))


def test_vmap_within_vmap_is_a_double_loop(implementation):
    x, b, s, scale = (torch.stack([t, 2 * t]) for t in ensemble())

    def function(x: Tensor, b: Tensor, s: Tensor, scale: Tensor) -> Tensor:
        return piecewise_affine(x, b, s, scale, 3.0)

    with kernels.using(implementation):
        twice = torch.func.vmap(torch.func.vmap(function))(x, b, s, scale)
        shared = torch.func.vmap(torch.func.vmap(function), (0, None, None, None))(x, b[0], s[0], scale[0])
        assert torch.equal(twice[1, 3], function(x[1, 3], b[1, 3], s[1, 3], scale[1, 3]))
        assert torch.equal(shared[1, 3], function(x[1, 3], b[0, 3], s[0, 3], scale[0, 3]))


def test_hessians_agree_whichever_way_they_are_computed(implementation):
    torch.manual_seed(0)
    b, s, scale, offset = tables(3, 5)
    x = torch.randn(2, 3, dtype=torch.float64)

    def energy(s: Tensor) -> Tensor:
        return piecewise_affine(x, b * s.exp(), s.sin(), scale, offset).pow(2).sum()

    with kernels.using(implementation):
        ways = [torch.func.jacrev, torch.func.jacfwd]
        hessians = [outer(inner(energy))(s) for outer in ways for inner in ways]
    assert hessians[0].abs().sum() > 0
    for hessian in hessians[1:]:
        torch.testing.assert_close(hessian, hessians[0])


def test_gradients_of_gradients_reach_the_tables_through_nested_transforms(implementation):
    """A gradient penalty by torch.func equals the one by autograd."""
    torch.manual_seed(0)
    b, s, scale, offset = tables(3, 5)
    x = torch.randn(4, 3, dtype=torch.float64)

    def penalty(s: Tensor) -> Tensor:
        inner = torch.func.grad(lambda x: piecewise_affine(x, b, s, scale, offset).pow(2).sum())
        return inner(x).pow(2).sum()

    with kernels.using(implementation):
        by_func = torch.func.grad(penalty)(s)
        leaf, point = s.clone().requires_grad_(), x.clone().requires_grad_()
        energy = piecewise_affine(point, b, leaf, scale, offset).pow(2).sum()
        (gx,) = torch.autograd.grad(energy, point, create_graph=True)
        (by_autograd,) = torch.autograd.grad(gx.pow(2).sum(), leaf)
    assert by_func.abs().sum() > 0
    torch.testing.assert_close(by_func, by_autograd)


class Activation(nn.Module):
    """Learned tables, the smallest module around the operator."""

    def __init__(self):
        super().__init__()
        b, s, scale, self.offset = tables(3, 6, torch.float32)
        self.b, self.s = nn.Parameter(b), nn.Parameter(s)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return piecewise_affine(x.sin(), self.b, self.s, self.scale, self.offset).cos()


def test_functional_call_replaces_the_tables():
    torch.manual_seed(0)
    module, x = Activation(), torch.randn(2, 3, 4)
    zero = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    assert torch.equal(torch.func.functional_call(module, zero, (x,)), torch.ones_like(x))


@pytest.mark.parametrize("channels_last", [False, True])
def test_compile_makes_one_graph_with_the_same_results(implementation, channels_last):
    torch.manual_seed(0)
    module, x = Activation(), torch.randn(2, 3, 4, 4)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    torch.compiler.reset()
    with kernels.using(implementation):
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        gradients = []
        for function in (compiled, module):
            leaf = x.clone().requires_grad_()
            y = function(leaf)
            gradients.append((y, *torch.autograd.grad(y.sum(), (leaf, module.b, module.s))))
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.slow
def test_inductor_compiles_the_operator_with_its_backward():
    torch.manual_seed(0)
    module, x = Activation(), torch.randn(2, 3, 4, 4, requires_grad=True)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True)
    for got, want in zip(
        torch.autograd.grad(compiled(x).sum(), (x, module.b)), torch.autograd.grad(module(x).sum(), (x, module.b)),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(got, want)


def test_export_keeps_the_operator_and_any_batch_size():
    torch.manual_seed(0)
    module, x = Activation(), torch.randn(2, 3, 4)
    dynamic = {"x": {0: torch.export.Dim("batch", min=1)}}
    exported = torch.export.export(module, (x,), dynamic_shapes=dynamic)
    assert torch.ops.lipspline.piecewise_affine.default in [node.target for node in exported.graph.nodes]
    other = torch.randn(5, 3, 4)
    assert torch.equal(exported.module()(other), module(other))


def test_export_can_be_decomposed_into_plain_torch():
    torch.manual_seed(0)
    module, x = Activation(), torch.randn(2, 3, 4)
    plain = torch.export.export(module, (x,)).run_decompositions(
        {torch.ops.lipspline.piecewise_affine.default: affine.formula}
    )
    assert not [node for node in plain.graph.nodes if "lipspline" in str(node.target)]
    torch.testing.assert_close(plain.module()(x), module(x))


def test_torch_finds_the_operator_well_formed():
    b, s, scale, offset = tables(3, 5)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    arguments = (x, b.requires_grad_(), s.requires_grad_(), scale, offset, 1)
    torch.library.opcheck(torch.ops.lipspline.piecewise_affine.default, arguments)
    g = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(torch.ops.lipspline.piecewise_affine_backward.default, (g, x, s, scale, offset, 1))


# ---- errors ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"s": torch.zeros(4, 5)}, r"needs slopes \(C, R\).* got slopes \(4, 5\)"),
        ({"b": torch.zeros(3, 6)}, r"Intercepts and slopes must have one shape, but got \(3, 6\) and \(3, 5\)"),
        ({"scale": torch.ones(2)}, r"scale \(2,\)"),
        (
            {"b": torch.zeros(7, 3, 5), "s": torch.zeros(7, 3, 5), "scale": torch.ones(7, 3)},
            r"7 groups of tables, so dimension 0 of x must have size 7",
        ),
    ],
)
def test_tables_of_the_wrong_shape_are_refused(implementation, change, message):
    arguments = {"b": torch.zeros(3, 5), "s": torch.zeros(3, 5), "scale": torch.ones(3)} | change
    with kernels.using(implementation), pytest.raises(ValueError, match=message):
        piecewise_affine(torch.zeros(2, 3, 4), offset=2.0, **arguments)
