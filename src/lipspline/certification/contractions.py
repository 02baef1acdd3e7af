"""Rules of products with a constant tensor along axes that are named: einsum, tensordot, inner, outer and dot."""

import math
import string
from collections.abc import Sequence

from torch import Tensor

from lipspline.certification.certificate import multiply_up, root_up
from lipspline.certification.flow import Flow
from lipspline.certification.operations import MULTIPLIED, Call, constant_weight, dense, operation
from lipspline.functional.matrices import spectral_norm_upper

LETTERS = string.ascii_letters


@operation("aten.einsum")
def _einsum(call: Call) -> Flow:
    operands = call["tensors"]
    names, out = _axes(call["equation"], [_shape(operand) for operand in operands])
    flows = [operand for operand in operands if isinstance(operand, Flow)]
    if len(flows) > 1:
        raise ValueError(MULTIPLIED)
    if len(operands) > 2:
        raise ValueError("einsum is known with one constant only. Multiply the constants first")
    at = next(i for i, operand in enumerate(operands) if isinstance(operand, Flow))
    if len(operands) == 1:
        return _contracted(call, flows[0], names[0], None, "", out)
    return _contracted(call, flows[0], names[at], constant_weight(operands[1 - at]), names[1 - at], out)


@operation("aten.tensordot")
def _tensordot(call: Call) -> Flow:
    first, second = (list(LETTERS[at : at + len(_shape(call[name]))]) for at, name in ((0, "self"), (26, "other")))
    for i, j in zip(call["dims_self"], call["dims_other"], strict=True):
        second[j] = first[i]
    out = [name for name in first if name not in second] + [name for name in second if name not in first]
    return _of_two(call, call["self"], call["other"], "".join(first), "".join(second), "".join(out))


@operation("aten.dot", "aten.vdot")
def _dot(call: Call) -> Flow:
    return _of_two(call, call["self"], call["tensor"] if "tensor" in call.arguments else call["other"], "a", "a", "")


@operation("aten.outer")
def _outer(call: Call) -> Flow:
    return _of_two(call, call["self"], call["vec2"], "a", "b", "ab")


@operation("aten.inner")
def _inner(call: Call) -> Flow:
    first, second = (len(_shape(call[name])) for name in ("self", "other"))
    one, other = LETTERS[1:first] + "a", LETTERS[26 : 25 + second] + "a"
    return _of_two(call, call["self"], call["other"], one, other, one[:-1] + other[:-1])


def _of_two(call: Call, first: "Flow | Tensor", second: "Flow | Tensor", one: str, other: str, out: str) -> Flow:
    if isinstance(first, Flow) and isinstance(second, Flow):
        raise ValueError(MULTIPLIED)
    if isinstance(first, Flow):
        return _contracted(call, first, one, constant_weight(second), other, out)
    assert isinstance(second, Flow)
    return _contracted(call, second, other, constant_weight(first), one, out)


def _contracted(call: Call, flow: Flow, names: str, weight: Tensor | None, axes: str, out: str) -> Flow:
    """The sum over axes that are not in `out`: for each index of a common axis in `out`, one matrix times the input."""
    sizes = dict(zip(names, flow.shape, strict=True))
    if len(sizes) < len(names) or len(set(axes)) < len(axes):
        raise ValueError("it takes a diagonal, for which certify has no rule")
    summed = _size(sizes, [name for name in names if name not in axes and name not in out])
    gain = root_up(summed)
    if weight is None:
        return call.stretched(flow, gain, f"sum of {summed} entries")
    inner = [name for name in axes if name in sizes and name not in out]
    outer = [name for name in axes if name not in sizes]
    common = [name for name in axes if name in sizes and name in out]
    if any(name not in out for name in outer):
        raise ValueError("it sums a constant alone, for which certify has no rule. Sum it first")
    if any(weight.shape[axes.index(name)] != sizes[name] for name in (*inner, *common)):
        raise ValueError("it repeats an axis of size 1, for which certify has no rule. Expand it first")
    if weight.numel() == 0:
        raise ValueError("its constant is empty")
    moved = weight.permute([axes.index(name) for name in (*common, *outer, *inner)])
    matrices = moved.reshape(-1, math.prod(weight.shape[axes.index(name)] for name in outer), _size(sizes, inner))
    if len(outer) == 1 and not common and inner == [names[-1]] and out == "".join((*names[:-1], *outer)):
        return dense(call, flow, matrices[0])
    norm = max(spectral_norm_upper(matrix) for matrix in matrices)
    return call.stretched(flow, multiply_up(norm, gain), "largest singular value")


def _size(sizes: dict[str, int], names: Sequence[str]) -> int:
    return math.prod(sizes[name] for name in names)


def _shape(operand: "Flow | Tensor") -> tuple[int, ...]:
    return tuple(operand.shape)


def _axes(equation: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[str], str]:
    """The axes of each operand and of the result, one letter each; an ellipsis becomes letters that are not used."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    unused = [letter for letter in LETTERS if letter not in equation]
    terms = left.split(",")
    hidden = [len(shape) - len(term.replace("...", "")) for term, shape in zip(terms, shapes, strict=True)]
    wide = "".join(unused[: max((n for n, term in zip(hidden, terms, strict=True) if "..." in term), default=0)])
    names = [term.replace("...", wide[len(wide) - n :]) for term, n in zip(terms, hidden, strict=True)]
    if not arrow:
        letters = "".join(terms).replace("...", "")
        right = "..." * ("..." in left) + "".join(sorted(name for name in set(letters) if letters.count(name) == 1))
    return names, right.replace("...", wide)
