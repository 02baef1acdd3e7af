"""Bounds of any module that can be traced: tight ones, refusals that name the line, and random graphs."""

import math
import warnings

import graph_hunt
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lipspline as ls
from lipspline.certification import flow, functions, moves, operations
from lipspline.certification.graph import graph_bounds


class Written(nn.Module):
    """A module with a forward of its own."""

    def __init__(self, function, **parts: nn.Module):
        super().__init__()
        self.function = function
        self.parts = nn.ModuleDict(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, **self.parts)


def upper(function, shape: tuple[int, ...], **parts: nn.Module) -> float:
    model = Written(function, **parts).double().eval()
    return graph_bounds(model, torch.randn(1, *shape, dtype=torch.float64), lambda name, module: None)[0]


def turn(like: Tensor) -> Tensor:
    return torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=like.dtype)


EXACT = {
    "a residual sum": (lambda x: x + x.relu(), 2.0),
    "a difference that cancels": (lambda x: x - 0.25 * x, 0.75),
    "a concatenation": (lambda x: torch.cat([x, x.relu()], 1), math.sqrt(2)),
    "halves joined again": (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), 1.0),
    "halves that overlap": (lambda x: torch.cat([x[:, :3], x[:, 1:]], 1), math.sqrt(2)),
    "the larger and the smaller half": (
        lambda x: torch.cat([torch.maximum(*x.chunk(2, 1)), torch.minimum(*x.chunk(2, 1))], 1), 1.0),
    "a function of each half": (lambda x: torch.cat([x[:, :2].relu(), x[:, 2:].tanh()], 1), 1.0),
    "a leaky slope by hand": (lambda x: torch.maximum(x, 0.1 * x), 1.0),
    "sorting in groups": (lambda x: x.view(-1, 2, 2).sort(-1)[0].flatten(1), 1.0),
    "sorting pairs by their larger and smaller entry": (
        lambda x: torch.cat([f(x.view(-1, 2, 2), 2, keepdim=True)[0] for f in (torch.min, torch.max)], 2), 1.0),
    "twice the larger entry": (
        lambda x: torch.cat([f(x.view(-1, 2, 2), 2, keepdim=True)[0] for f in (torch.max, torch.max)], 2), 2**0.5),
    "the larger half, the smaller, and the larger again": (
        lambda x: torch.cat(
            [(larger := torch.maximum(*x.chunk(2, 1))), torch.minimum(*x.chunk(2, 1)), larger], 1), math.sqrt(2)),
    "the larger half and the smaller, of other numbers": (
        lambda x: torch.cat([torch.maximum(x[:, :2] + 1, x[:, 2:]), torch.minimum(*x.chunk(2, 1))], 1), math.sqrt(2)),
    "pairs by their larger and smaller entry, of other numbers": (
        lambda x: torch.cat(
            [(x.view(-1, 2, 2) + torch.tensor([0.0, 1.0]).to(x)).max(2)[0], x.view(-1, 2, 2).min(2)[0]], 1),
        math.sqrt(2)),
    "the larger and the smaller of two, constants between": (
        lambda x: torch.cat(
            [torch.maximum(F.pad(x[:, :2], (0, 1)), F.pad(x[:, 2:], (1, 0))),
             torch.minimum(F.pad(x[:, :2], (0, 1), value=5), F.pad(x[:, 2:], (1, 0), value=5))], 1), math.sqrt(2)),
    "a mean that is removed": (lambda x: x - x.mean(1, keepdim=True), 1.0),
    "a mean that is added": (lambda x: x + x.mean(1, keepdim=True), 2.0),
    "a sum over an axis": (lambda x: x.sum(1), 2.0),
    "a mean over an axis": (lambda x: x.mean(1), 0.5),
    "a length": (lambda x: torch.linalg.vector_norm(x, dim=1), 1.0),
    "an entry shown three times": (lambda x: x.repeat_interleave(3, 1), math.sqrt(3)),
    "reflection": (lambda x: F.pad(x[:, None], (1, 1), mode="reflect"), math.sqrt(2)),
    "a matrix": (lambda x: x @ torch.ones(4, 4, dtype=x.dtype), 4.0),
    "two matrices that undo each other": (
        lambda x: x[:, :2] @ (2.0 * turn(x)) @ (0.5 * turn(x).mT),
        1.0,
    ),
    "a matrix and its input": (lambda x: x - 0.25 * x @ torch.ones(4, 4, dtype=x.dtype), 1.0),
    "one matrix for each copy": (lambda x: x[:, None] @ torch.eye(4, dtype=x.dtype).expand(9, 4, 4), 3.0),
    "a matrix by einsum": (lambda x: torch.einsum("bi,oi->bo", x, torch.ones(4, 4).to(x)), 4.0),
    "two matrices by einsum, one undoing the other": (
        lambda x: torch.einsum("...i,ij", torch.einsum("...i,oi->...o", x[:, :2], 2 * turn(x)), 0.5 * turn(x)), 1.0),
    "the trace of nothing but axes": (lambda x: torch.einsum("bcw->wb", x.view(1, 2, 2)), math.sqrt(2)),
    "a factor for each entry by einsum": (
        lambda x: torch.einsum("bi,i->bi", x, torch.tensor([1.0, -3.0, 2.0, 0.0]).to(x)), 3.0),
    "one matrix for each head": (
        lambda x: torch.einsum("bhi,hio->bho", x.view(1, 2, 2), torch.stack([turn(x), 5 * turn(x)])), 5.0),
    "a matrix by tensordot": (lambda x: torch.tensordot(torch.ones(3, 4).to(x), x, ([-1], [1])), math.sqrt(12)),
    "all axes by tensordot": (lambda x: torch.tensordot(x, torch.ones(1, 4).to(x), 2), 2.0),
    "inner and outer products": (lambda x: torch.outer(torch.inner(x, torch.ones(4).to(x)), torch.ones(9).to(x)), 6.0),
    "a product with a vector": (lambda x: torch.dot(torch.full((4,), 3.0).to(x), x[0]), 6.0),
    "a spread": (lambda x: x.std(1), 1 / math.sqrt(3)),
    "a spread of all": (lambda x: torch.std(x, correction=0), 0.5),
    "a spread as of a sample": (lambda x: x.std(1, unbiased=False), 0.5),
    "SiLU by hand": (lambda x: x * x.sigmoid(), 1.0998394),
    "ELU": (lambda x: F.elu(x, 1.5), 1.5),
    "a sigmoid": (torch.sigmoid, 0.25),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_bounds_that_are_equalities(name: str):
    """Each is the exact Lipschitz constant, so that neither a looser nor a smaller bound passes."""
    function, exact = EXACT[name]
    assert upper(function, (4,)) == pytest.approx(exact, rel=1e-6)
    assert upper(function, (4,)) >= exact * (1 - 1e-15)


EQUATIONS = [
    *(
        "abc,cd->abd",
        "abc,cd->adb",
        "abc,bcd->abd",
        "abc,bc->a",
        "abc,c->ab",
        "abc,cd->ad",
        "abc,bdc->cda",
        "abc,de->abcde",
    ),
    *("bc,abc->a", "db,abc->acd", "...c,cd->...d", "a...,cd->a...cd", "abc,", "abc,bd", "cd,abc"),
]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_is_bounded_by_its_matrix(equation: str):
    """The bound is the largest singular value, with every axis contracted, kept, summed or common."""
    torch.manual_seed(0)
    sizes = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 2}
    terms = equation.split("->")[0].split(",")
    at = next(i for i, term in enumerate(terms) if term in ("abc", "...c", "a..."))
    shape = [sizes[letter] for letter in terms[1 - at]]
    weight = torch.randn(shape, dtype=torch.float64)

    def function(x: Tensor) -> Tensor:
        return torch.einsum(equation, *((x, weight) if at == 0 else (weight, x)))

    x = torch.randn(2, 3, 4, dtype=torch.float64)
    exact = float(torch.linalg.matrix_norm(torch.func.jacrev(function)(x).reshape(-1, 24), ord=2))
    bound = graph_bounds(Written(function), x, lambda name, module: None)[0]
    assert exact * (1 - 1e-12) <= bound <= exact * (1 + 1e-6)


def averaging(axes: int, mode: str = "zeros") -> nn.Module:
    layer = (nn.Conv1d, nn.Conv2d)[axes - 1](1, 1, 3, padding=1, padding_mode=mode, bias=False)
    nn.init.constant_(layer.weight, 3.0**-axes)
    return layer


def test_neighbouring_convolutions_count_as_one():
    """A difference after an average: the product of the norms is 2, that of the composition much less."""
    difference = nn.Conv1d(1, 1, 2, bias=False)
    difference.weight.data.copy_(torch.tensor([[[1.0, -1.0]]]))
    model = Written(lambda x, a, d: d(a(x)), a=averaging(1), d=difference)
    matrix = torch.func.jacrev(model.double())(torch.zeros(1, 1, 200, dtype=torch.float64)).reshape(199, 200)
    exact = float(torch.linalg.matrix_norm(matrix.detach(), ord=2))
    bound = upper(model.function, (1, 200), a=averaging(1), d=difference)
    assert exact <= bound <= 1.03 * exact < 0.8


def test_zeros_between_convolutions_keep_them_apart():
    """Zero padding between two convolutions cuts off what the first left outside, so they do not compose."""
    shift, back = (nn.Conv1d(1, 1, 3, padding=1, bias=False) for _ in range(2))
    shift.weight.data.copy_(torch.tensor([[[3.0, 0.0, 1.0]]]))
    back.weight.data.copy_(torch.tensor([[[1.0, 0.0, -3.0]]]))
    model = Written(lambda x, a, b: b(a(x)), a=shift, b=back).double()
    matrix = torch.func.jacrev(model)(torch.zeros(1, 1, 4, dtype=torch.float64)).reshape(4, 4)
    assert upper(model.function, (1, 4), a=shift, b=back) >= float(torch.linalg.matrix_norm(matrix.detach(), ord=2))


def test_a_convolution_and_its_input_are_one_convolution():
    """x - average(x) removes what is constant: its norm is below 1.34, not 1 + 1."""
    bound = upper(lambda x, a: x - a(x), (1, 12, 12), a=averaging(2))
    circular = upper(lambda x, a: x - a(x), (1, 12, 12), a=averaging(2, "circular"))
    assert 1.3 < bound == pytest.approx(circular, rel=0.05)
    assert bound < 1.4


def test_batch_normalisation_is_folded_into_the_convolution():
    """A gain of 10 on a channel whose kernel is small, and of 0.1 on one that is large."""
    convolution, normal = nn.Conv1d(2, 2, 1, bias=False), nn.BatchNorm1d(2, eps=0)
    convolution.weight.data.copy_(torch.tensor([[[0.1], [0.0]], [[0.0], [10.0]]]))
    normal.weight.data.copy_(torch.tensor([10.0, 0.1]))
    assert upper(lambda x, c, n: n(c(x)), (2, 7), c=convolution, n=normal) == pytest.approx(1, rel=1e-6)


def test_circular_convolutions_are_as_tight_as_their_class():
    layer = ls.nn.conv2d(4, 4, 3, padding_mode="circular").double()
    assert upper(lambda x, c: c(x), (4, 8, 8), c=layer) == pytest.approx(1, abs=1e-5)


def test_the_librarys_own_layers():
    layers = nn.Sequential(
        *(ls.nn.linear(8, 8), ls.nn.LinearSpline(8), ls.nn.Householder(8), ls.nn.MaxMin(), ls.nn.GroupSort(4)),
        *(ls.nn.LipschitzPReLU(8, init=0.3), ls.nn.AbsoluteValue(), ls.nn.linear(8, 8)),
    )
    certificate = ls.certify(Written(lambda x, f: f(x), f=layers), (8,))
    assert certificate.upper == pytest.approx(1, abs=1e-5)
    assert certificate.lower is not None
    assert 0 < certificate.lower <= certificate.upper
    assert certificate.valid_for == "inputs of shape (1, 8)"


def test_layers_with_a_rule_of_their_own_are_asked():
    """`declare` and `register_rule` hold inside a module that is traced."""
    jump = ls.declare(lambda x: torch.where(x > 0, x, x / 2), upper=1.0, reason="slopes 1 and 1/2")
    certificate = ls.certify(Written(lambda x, f: f(x) + x, f=jump), (3,))
    assert certificate.upper == 2
    assert (certificate.layers[0].kind, certificate.layers[0].rule) == ("Declared", "declared: slopes 1 and 1/2")
    sparse = ls.sparsify(ls.models.mlp(2, 2, width=4, depth=2), inputs=torch.randn(20, 2))[0]
    assert ls.certify(Written(lambda x, f: x + f(x), f=sparse), (2,)).upper == pytest.approx(2, abs=1e-3)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_is_bounded_with_its_own_weights_and_says_what_rounding_does(half):
    torch.manual_seed(0)
    layer = nn.Linear(5, 5).to(half)
    exact = float(torch.linalg.matrix_norm(layer.weight.detach().double(), ord=2))
    for example in (None, (5,), torch.randn(1, 5, dtype=half)):
        certificate = ls.certify(layer, example)
        assert certificate.upper == pytest.approx(exact, rel=1e-9)
        assert "which no constant bounds" in str(certificate)
        assert "bound so far" not in str(certificate)
    assert "rounding" not in ls.certify(layer.float()).valid_for


def test_integers_and_autocast_are_refused_with_the_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})
    for example in (None, (4,)):
        with pytest.raises(ValueError, match="rounds to integers: its output jumps"):
            ls.certify(whole, example)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match="rounded weights"):
        ls.certify(nn.Linear(2, 2))


REFUSED = {
    "attention": (lambda x: x.softmax(1) * x, "both depend on the input"),
    "layer normalisation": (lambda x: F.layer_norm(x, (4,)), "spread of its own input"),
    "a square": (lambda x: x**2, "slope has no bound"),
    "a jump": (lambda x: torch.where(x > 0, x, x + 1), "jumps"),
    "noise": (lambda x: x + torch.randn(4), "random"),
    "a gate that is not SiLU": (lambda x: x * (x.sigmoid() + 1), "both depend on the input"),
    "bits of numbers": (lambda x: x.view(torch.int32).view(torch.float32), "reads the bits"),
    "division by zero": (lambda x: x / 0, "multiplies by inf"),
    "a weight from the input": (lambda x: F.linear(torch.ones(1, 4), x), "depends on the input"),
    "softplus": (F.softplus, "threshold=40"),
    "integers": (lambda x: x.long().float(), "jumps"),
    "half precision in between": (lambda x: x.half().float(), r"it rounds torch.float32 to torch.float16, in steps"),
    "a product of two by einsum": (lambda x: torch.einsum("bi,bi->b", x, x), "both depend on the input"),
    "a product of two by tensordot": (lambda x: torch.tensordot(x, x, 2), "both depend on the input"),
    "a constant and two others": (
        lambda x: torch.einsum("bi,ij,jk->bk", x, torch.ones(4, 4), torch.ones(4, 4)),
        "one constant only",
    ),
    "a diagonal": (lambda x: torch.einsum("ii->i", x.view(2, 2)), "takes a diagonal"),
    "an axis of size 1": (lambda x: torch.einsum("bi,i->b", x[:, :1], torch.ones(4)), "axis of size 1"),
    "the spread of one entry": (lambda x: x.std(0), "divides the spread of 1 entries by 0"),
    "distances": (lambda x: torch.cdist(x, torch.ones(1, 4)), "register_rule or lipspline.declare"),
    "a bias from the input": (lambda x: F.linear(x.view(4), torch.ones(2, 4), x.view(4)[:2])[None], "bias depends on"),
    "a bias of a convolution": (
        lambda x: F.conv1d(x.view(2, 2), torch.ones(2, 2, 1), x.view(2, 2)[:, 0])[None],
        "bias depends on",
    ),
    "a bias of a transposed convolution": (
        lambda x: F.conv_transpose1d(x.view(2, 2), torch.ones(2, 2, 1), x.view(2, 2)[:, 0])[None],
        "bias depends on",
    ),
    "a bias of a normalisation": (
        lambda x: F.batch_norm(x.view(1, 4), torch.zeros(4), torch.ones(4), bias=x.view(4)),
        "bias depends on",
    ),
    "complex factors": (lambda x: (x * torch.tensor([3j, 1, 1, 1])).abs(), "makes complex numbers"),
    "a complex factor": (lambda x: (x * 2j).abs(), "makes complex numbers"),
    "an unknown operation": (lambda x: torch.special.bessel_j0(x), "no rule"),
    "integers that learn": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7), "jumps"),
    "a branch on values": (lambda x: x if x.sum() > 0 else -x, "cannot trace"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused_with_the_reason(name: str):
    function, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        ls.certify(Written(function), (4,))


@pytest.mark.parametrize("pads", [(-1, 3), (3, -1), (-2, 4), (1, 1), (2, 0), (3, 3)])
def test_circular_padding_that_crops_is_no_circular_convolution(pads: tuple[int, int]):
    torch.manual_seed(0)
    for _ in range(5):
        weight = torch.randn(2, 1, 3, dtype=torch.float64)

        def function(x: Tensor, weight: Tensor = weight) -> Tensor:
            return F.conv1d(F.pad(x, pads, mode="circular"), weight)

        exact = torch.autograd.functional.jacobian(function, torch.randn(1, 1, 6, dtype=torch.float64)).reshape(-1, 6)
        assert upper(function, (1, 6)) >= float(torch.linalg.matrix_norm(exact, 2)) * (1 - 1e-12)


def test_a_complex_example_is_refused():
    with pytest.raises(ValueError, match=r"The example is complex \(torch.complex64\)"):
        ls.certify(nn.Tanh(), torch.randn(1, 4, dtype=torch.complex64))


def test_a_refusal_names_the_line_of_the_users_code():
    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tanh(x)  # the line in question

    with pytest.raises(ValueError, match=r"mul.*test_graph\.py line \d+, in forward: `return x \* torch"):
        ls.certify(nn.Sequential(nn.Linear(2, 2), Gate()), (2,))


def test_a_module_that_runs_something_else_when_traced_is_refused():
    class Sly(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if torch.compiler.is_compiling() else 7 * x

    with pytest.raises(ValueError, match="something else when"):
        ls.certify(Sly(), (2,))


def test_a_module_with_a_declared_part_runs_what_is_traced():
    class SlyAround(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = ls.declare(lambda x: 2 * x, upper=2.0, reason="twice")

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x) if torch.compiler.is_compiling() else self.part(x) + 100 * x.flip(1)

    with pytest.raises(ValueError, match="something else when"):
        ls.certify(SlyAround(), (2,))


def test_a_declared_part_takes_one_tensor_by_place_or_by_name():
    part = ls.declare(lambda x: 2 * x, upper=2.0, reason="twice")
    assert ls.certify(Written(lambda x, part: part(x=x) + x, part=part), (2,)).upper == 3

    class Both(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    ls.register_rule(Both)(lambda layer: (1.0, "said so"))
    with pytest.raises(ValueError, match=r"Layer 'parts.both' \(Both\) has a bound for one tensor .* with 2 arguments"):
        ls.certify(Written(lambda x, both: both(x, x), both=Both()), (2,))


def test_hooks_are_traced_with_the_rest():
    layer = nn.Identity()
    layer.register_forward_hook(lambda module, inputs, output: 7 * output)
    assert ls.certify(nn.Sequential(layer), (2,)).upper == 7


def test_wrappers_are_looked_into():
    model = Written(lambda x: x + x.relu())
    assert ls.certify(nn.DataParallel(model), (2,)).upper == 2
    assert ls.certify(torch.compile(model), (2,)).upper == 2  # type: ignore[arg-type]


def test_lower_stands_beside_upper_behind_a_flatten():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    certificate = ls.certify(model, (3, 2, 2))
    assert certificate.lower == pytest.approx(certificate.upper, rel=1e-3)


def test_the_table_says_that_bounds_are_from_the_input():
    text = str(ls.certify(Written(lambda x: x + x.relu()), (2,)))
    assert "bound so far" in text
    assert "for inputs of shape (1, 2)" in text


class Block(nn.Module):
    """The residual block of ResNet-18."""

    def __init__(self, c_in: int, c_out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(c_out), nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        shrinks = stride > 1 or c_in != c_out
        self.down = (
            nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out)) if shrinks else None
        )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.down is None else self.down(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """ResNet-18 in plain torch, with any width."""

    def __init__(self, width: int = 64, classes: int = 1000):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = []
        for i in range(4):
            stride = 1 if i == 0 else 2
            blocks += [Block(sizes[i], sizes[i + 1], stride), Block(sizes[i + 1], sizes[i + 1], 1)]
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = F.adaptive_avg_pool2d(self.blocks(x), 1)
        return self.fc(torch.flatten(x, 1))


def test_a_small_resnet_stays_below_its_bound():
    torch.manual_seed(0)
    model = ResNet(width=2, classes=3).double().eval()
    x = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    jacobian = torch.func.jacrev(model)(x).reshape(3, -1)
    certificate = ls.certify(model, x)
    assert float(torch.linalg.matrix_norm(jacobian.detach(), ord=2)) <= certificate.upper < math.inf
    assert certificate.lower is not None


@pytest.mark.slow
def test_resnet_18_certifies():
    torch.manual_seed(0)
    assert math.isfinite(ls.certify(ResNet().eval(), (3, 224, 224)).upper)


@pytest.mark.parametrize("first", range(0, 100, 50))
def test_no_random_graph_exceeds_its_bound(first: int):
    """Singular values of exact Jacobians; some bounds are reached, and none is refused."""
    counts = graph_hunt.hunt(range(first, first + 50), report=lambda line: None)
    assert not any(counts[outcome] for outcome in graph_hunt.WRONG)
    assert counts["below"] >= 45
    assert counts["tight within 1 %"] >= 10


def _wrong_joint(flows):
    return max(flow.upper for flow in flows)


WRONG = {
    "sums": ("[", lambda m: m.setattr(operations, "add_maps", lambda one, other, sizes: one)),
    "concatenations": ("cat", lambda m: m.setattr(moves, "joint_upper", _wrong_joint)),
    "entries shown twice": ("[", lambda m: m.setattr(moves, "copies_root", lambda indices: 1.0)),
    "slopes": ("smooth", lambda m: m.setitem(functions.SLOPES, "silu", 1.0)),
    "gates": ("gate", lambda m: m.setattr(operations, "SILU", 1.0)),
    "batch normalisation": (
        "Norm",
        lambda m: m.setattr(operations, "_channel", lambda gains, call: gains[:1].clamp(-1, 1)),
    ),
    "broadcasting": ("broadcast", lambda m: m.setattr(operations, "broadcast", lambda flow, shape: flow)),
    "pooling": ("pool", lambda m: m.setattr(functions, "_axis_by_axis", lambda flow, axes, along: 0.3)),
    "matrices": (
        "matrix",
        lambda m: m.setattr(operations, "spectral_norm_upper", lambda weight: float(weight.abs().max())),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_the_hunt_finds_what_is_wrong_in_a_graph(what: str, monkeypatch):
    """Each mistake planted in the rules is met by one of a few thousand graphs that come near it."""
    step, plant = WRONG[what]
    plant(monkeypatch)
    assert graph_hunt.finds(step, range(4000))


def _averages_and_differences(x: Tensor) -> Tensor:
    """A long average with zeros around it, and the differences of its neighbours, with zeros around them again."""
    averages = F.conv1d(x[:, None], torch.ones(1, 1, 33, dtype=x.dtype), padding=16)
    return F.conv1d(averages, torch.tensor([[[-1.0, 1.0, 0.0]]], dtype=x.dtype), padding=1)


def test_zeros_between_two_convolutions_are_not_forgotten(monkeypatch):
    """Without them the two would be one convolution, of norm 2; the zeros make steps of half the average."""
    jacobian = torch.func.jacrev(_averages_and_differences)(torch.zeros(1, 32, dtype=torch.float64)).reshape(32, 32)
    exact = float(torch.linalg.matrix_norm(jacobian, ord=2))
    assert exact > 2.5
    assert upper(_averages_and_differences, (32,)) >= exact
    monkeypatch.setattr(
        flow.Convolution, "border", property(lambda self: False, lambda self, value: None), raising=False
    )
    assert upper(_averages_and_differences, (32,)) < exact


def test_nothing_is_printed_about_a_module_that_cannot_be_traced(capfd):
    """torch writes its graph before it raises."""
    refused = {
        "a branch": (Written(lambda x: x if x.sum() > 0 else -x), (4,), "cannot trace"),
        "an odd size": (Written(lambda x: F.pixel_unshuffle(x, 2)), (1, 3, 3), r"does not take .*\(1, 1, 3, 3\)"),
    }
    for model, shape, reason in refused.values():
        with pytest.raises(ValueError, match=reason):
            ls.certify(model, shape)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_an_example_of_another_type_is_refused_where_it_must_run(dtype: torch.dtype):
    example = torch.zeros(1, 3, dtype=dtype)
    with pytest.raises(ValueError, match=rf"does not take inputs of shape \(1, 3\) and {dtype}"):
        ls.certify(Written(lambda x, f: x + f(x), f=nn.Linear(3, 3)), example)
    layer = nn.Linear(3, 2)
    assert ls.certify(layer, example).upper == ls.certify(layer).upper
