"""Measurement operators H with their exact adjoint and bounds on their norm."""

from lipspline.operators.base import LinearOperator
from lipspline.operators.matrix import Matrix
from lipspline.operators.mri import MRI, cartesian_mask
from lipspline.operators.space import Space

__all__ = ["MRI", "LinearOperator", "Matrix", "Space", "cartesian_mask"]
