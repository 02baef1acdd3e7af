"""Operators to and from `scipy.sparse.linalg.LinearOperator`."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.adapters.foreign import Norm, Side, sides, wrap
from lipspline.operators.base import Field, LinearOperator, Space

PURPOSE = "Exchanging operators with scipy"
COLLATZ_WIELANDT_STEPS = 30
MOST_DENSE = 2048


def to_scipy(H: LinearOperator, input_shape: tuple[int, ...] | None = None, *, dtype: Any = np.float64) -> Any:
    """One of our operators as a `scipy.sparse.linalg.LinearOperator` on flattened images, with its exact adjoint.

    A complex operator from complex images becomes a complex one. Where only one side is complex (real images, k-space
    data) the map is linear over the reals only, so that scipy gets a real operator: the complex side is flattened to
    real and imaginary parts in turn, which for a numpy array is `y.ravel().view(np.float64)`.

    Args:
        H: ours.
        input_shape: sizes of an image without batch, where H leaves one open.
        dtype: its precision; a complex one for complex images, where H takes both kinds.

    Example:
        >>> from lipspline.operators import Matrix
        >>> A = to_scipy(Matrix(torch.tensor([[1.0, 2.0]])))
        >>> print(A.shape, A.matvec(np.array([1.0, 1.0])), A.rmatvec(np.array([3.0])))
        (1, 2) [3.] [3. 6.]
    """
    linalg = checks.require("scipy.sparse.linalg", "scipy", PURPOSE)
    images, data = sides(H, input_shape, complex=np.issubdtype(dtype, np.complexfloating))
    real = np.finfo(dtype).dtype
    kind = np.result_type(real, np.complex64) if images.complex and data.complex else real

    def forward(columns: np.ndarray) -> np.ndarray:
        return _to_columns(H.forward(_to_batch(columns, images, kind)), kind)

    def adjoint(columns: np.ndarray) -> np.ndarray:
        return _to_columns(H.adjoint(_to_batch(columns, data, kind)), kind)

    return linalg.LinearOperator(
        shape=(_length(data, kind), _length(images, kind)),
        matvec=lambda x: forward(x.reshape(-1, 1)),
        rmatvec=lambda y: adjoint(y.reshape(-1, 1)),
        matmat=forward,
        rmatmat=adjoint,
        dtype=kind,
    )


def from_scipy(
    A: Any,
    input_shape: tuple[int, ...] | None = None,
    output_shape: tuple[int, ...] | None = None,
    *,
    field: Field | None = None,
    norm: Norm = None,
) -> LinearOperator:
    """A matrix or `LinearOperator` of scipy as an operator `(B, *input_shape) -> (B, *output_shape)`.

    Its adjoint is tried. Of a matrix, sparse or dense, an upper bound on the norm is computed from the entries by
    `matrix_norm_bound`.

    Args:
        A: anything that `scipy.sparse.linalg.aslinearoperator` takes, of shape `(m, n)`.
        input_shape: sizes of an image, `(n,)` if not given.
        output_shape: sizes of the data, `(m,)` if not given.
        field: "real" or "complex" images; as the dtype of A, if not given.
        norm: an upper bound on the norm of A that you vouch for, or "dense" (see `adapters.foreign.wrap`).

    Example:
        >>> H = from_scipy(np.array([[3.0, 4.0]]), output_shape=(1, 1))
        >>> H.forward(torch.ones(1, 2))
        tensor([[[7.]]])
        >>> print([round(bound, 6) for bound in H.norm_bounds()])
        [5.0, 5.0]
    """
    linalg = checks.require("scipy.sparse.linalg", "scipy", PURPOSE)
    if norm is None and not isinstance(A, linalg.LinearOperator):
        norm = matrix_norm_bound(A)
    operator = linalg.aslinearoperator(A)
    m, n = operator.shape
    given, back = _sized("output_shape", output_shape, m), _sized("input_shape", input_shape, n)
    kind = "complex" if np.issubdtype(operator.dtype, np.complexfloating) else "real"
    return wrap(
        f"The scipy operator {m}x{n}",
        lambda x: _from_columns(operator.matmat(_flat_columns(x)), given),
        lambda y: _from_columns(operator.rmatmat(_flat_columns(y)), back),
        domain=Space(back, field or kind),
        norm=norm,
    )


def matrix_norm_bound(A: Any) -> float:
    """A proven upper bound on the norm of a matrix.

    With at most 2048 rows or columns it is the norm itself, by the largest eigenvalue of the smaller one of AᵀA and
    AAᵀ, and what round-off may have lost. Otherwise `‖A‖² <= ‖|A|‖² <= max_i (|A|ᵀ|A| v)_i / v_i` for any v > 0, which
    is the norm for entries of one sign, and up to the root of the dimension more otherwise.

    Args:
        A: sparse or dense, real or complex.

    Example:
        >>> print(round(matrix_norm_bound(np.diag([3.0, -4.0])), 9))
        4.0
    """
    if min(A.shape) <= MOST_DENSE:
        return _gram_bound(A)
    size = abs(A)
    total = size.T @ (size @ np.ones(A.shape[1]))
    seen = total > 0  # a column of zeros adds nothing to the norm
    if not seen.any():
        return math.ulp(0.0)
    v, best = seen.astype(float), math.inf
    for _ in range(COLLATZ_WIELANDT_STEPS):
        w = size.T @ (size @ v)
        best = min(best, float((w[seen] / v[seen]).max()))
        v = np.where(seen, np.maximum(w / w.max(), 1e-9), 0.0)
    return math.sqrt(best) * (1 + 4 * sum(A.shape) * np.finfo(float).eps)


def _gram_bound(A: Any) -> float:
    """The root of the largest eigenvalue of AᵀA in float64, with the round-off of product and decomposition added."""
    A = A.astype(np.result_type(A.dtype, np.float64))
    tall = A if A.shape[0] >= A.shape[1] else A.conj().T
    gram = tall.conj().T @ tall
    gram = gram if isinstance(gram, np.ndarray) else gram.toarray()
    # both errors are below a small multiple of (m + n) eps times the sum of all squares, the trace
    slack = 8 * sum(A.shape) * np.finfo(float).eps * float(np.trace(gram).real)
    squared = max(float(np.linalg.eigvalsh(gram)[-1]), 0.0) + slack
    return max(math.sqrt(squared) * (1 + 4 * np.finfo(float).eps), math.ulp(0.0))


def _length(side: Side, kind: np.dtype) -> int:
    pairs = side.complex and kind.kind != "c"
    return math.prod(side.shape) * (2 if pairs else 1)


def _to_batch(columns: np.ndarray, side: Side, kind: np.dtype) -> Tensor:
    """Vectors as columns `(n, k)` to images `(k, *shape)`."""
    if np.iscomplexobj(columns) and kind.kind != "c":
        raise ValueError(
            "This operator is real, but got complex numbers. Pass a complex side as y.ravel().view(np.float64)."
        )
    rows = torch.from_numpy(np.ascontiguousarray(columns.T, dtype=kind))
    if side.complex and not rows.is_complex():
        rows = torch.view_as_complex(rows.reshape(-1, *side.shape, 2))
    return rows.reshape(-1, *side.shape)


def _to_columns(batch: Tensor, kind: np.dtype) -> np.ndarray:
    """Images `(k, ...)` to vectors as columns, complex numbers as pairs where the operator is real."""
    return batch.resolve_conj().flatten(1).contiguous().numpy().view(kind).T


def _flat_columns(batch: Tensor) -> np.ndarray:
    return batch.detach().cpu().resolve_conj().flatten(1).numpy().T


def _from_columns(columns: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(columns.T)).reshape(-1, *shape)


def _sized(name: str, shape: tuple[int, ...] | None, size: int) -> tuple[int, ...]:
    if shape is None:
        return (size,)
    if math.prod(shape) != size:
        raise ValueError(f"{name} {tuple(shape)} has {math.prod(shape)} entries, but the operator has {size}.")
    return tuple(shape)
