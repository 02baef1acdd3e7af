"""Compares Triton, interpreted on the CPU, with eager torch and C; prints what differs, one line each.

Run as a script, because triton decides whether to interpret when it is imported:
TRITON_INTERPRET=1 python interpreted.py FIRST COUNT [gradcheck]
"""

import sys

import torch
from kernel_cases import disagreement, random_case

from lipspline import kernels
from lipspline.kernels import piecewise_affine


def differentiate() -> None:
    """gradcheck and gradgradcheck on a small case."""
    torch.manual_seed(0)
    x, b, s = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in ((2, 2, 3), (2, 3), (2, 3)))
    scale = torch.tensor([1.0, 2.0], dtype=torch.float64)

    def function(*arguments: torch.Tensor) -> torch.Tensor:
        return piecewise_affine(*arguments, scale, 1.5)

    with kernels.using("triton"):
        torch.autograd.gradcheck(function, (x, b, s), check_forward_ad=True)
        torch.autograd.gradgradcheck(function, (x, b, s))


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        case = random_case(seed, largest=5)
        triton = case.results_of("triton")
        for other in ("eager", "c"):
            if message := disagreement(case, triton, case.results_of(other)):
                print(f"Triton and {other}, seed {seed}: {message}")
    if "gradcheck" in sys.argv:
        differentiate()
