r"""Safeguarded Anderson acceleration of a fixed-point iteration `x ← T(x)`."""

import torch
from torch import Tensor

from lipspline.pnp.norms import inner, norms, pick, scale

# Added to the normal equations of unit columns: well above float64 round-off, well below what steers the weights.
RIDGE = 1e-10


class Anderson:
    r"""Propose `x = T(x_k) - Σ_j γ_j ΔT_j` where `γ` minimises `‖g_k - Σ_j γ_j Δg_j‖`, with `g = T - Id`.

    `ΔT_j`, `Δg_j` are differences of `T` and `g` between the last `memory` points where `T` was called, so to propose
    costs no call of `T`. A proposal is taken only if the safeguard approves of it; otherwise the next step is plain.

    **The theorem.** Let `T` be averaged, as it is in [eq:pnp_fbs] under the conditions of [sec:PnPReconstruction], and
    have a fixed point. Write the step taken as `x_{k+1} = T(x_k) + e_k`, so `e_k = 0` for a plain step. A proposal
    is taken only if

    1. `‖e_k‖ <= reach · ‖g(x_k)‖`, and
    2. `‖g(x_{k+1})‖ <= decrease · ‖g(x_k)‖` with `decrease < 1`.

    Plain steps of a nonexpansive map do not increase `‖g‖`. So the n-th proposal taken has
    `‖e_k‖ <= reach · decrease^(n-1) · ‖g(x_0)‖`, and `Σ ‖e_k‖` is finite: this is the Krasnosel'skii-Mann iteration
    with summable errors, which converges to a fixed point of `T`. (For a fixed point `p`,
    `‖x_{k+1} - p‖ <= ‖x_k - p‖ + ‖e_k‖`, so the distances to `p` converge and the iterates are bounded. Since `T` is
    θ-averaged, `‖T(x) - p‖² <= ‖x - p‖² - (1-θ)/θ ‖g(x)‖²`; summing gives `g(x_k) → 0`, so every cluster point is a
    fixed point, and as the distance to it converges, it is the limit.) The residuals `‖g(x_k)‖` never increase.

    A proposal that fails 2. has cost one call of `T`. After the j-th failure in a row the next `2^j - 1` steps are
    plain, so failures in a row waste at most about log2(n) of n calls.

    Where `T` has several fixed points the limit may be another one than that of the plain iteration. For `β <= 1/2` all
    have the same `H x`, by [eq:EstForward] with `y_1 = y_2`, so that is what to compare.

    An object of this class remembers one run; take a new one for the next.
    """

    def __init__(self, memory: int = 6, *, decrease: float = 0.999, reach: float = 1e4):
        self.memory, self.decrease, self.reach = memory, decrease, reach
        self._calls = 0

    def propose(self, point: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        """The next point to try for each image, and where it is bolder than the plain step `image = T(point)`."""
        if self._calls == 0:
            self._begin(point)
        residual = image - point
        weights = self._weights(residual)
        proposal = image
        for j in range(self.memory):
            proposal = proposal - scale(weights[:, j], self._images[j])
        length = norms(proposal - image)
        bold = (self._pause == 0) & (length > 0) & (length <= self.reach * norms(residual))
        self._pause = (self._pause - 1).clamp_min(0)
        return pick(bold, proposal, image), bold

    def judge(self, moved: Tensor, mapped: Tensor, trial: Tensor, change: Tensor, bold: Tensor) -> Tensor:
        """Learn from the candidates that were tried, and say which of them may be taken.

        Args:
            moved, mapped: from the current points to the candidates, and between their images under T, `(B, ...)`.
            trial, change: `‖g‖` at the candidates and at the current points, `(B,)`.
            bold: where the candidate is not the plain step.
        """
        self._learn(mapped, mapped - moved, torch.isfinite(trial))
        approved = ~bold | (trial <= self.decrease * change)
        failed = bold & ~approved
        self._failures = torch.where(failed, self._failures + 1, torch.where(bold, 0, self._failures))
        self._pause = torch.where(failed, 2 ** self._failures.clamp_max(30) - 1, self._pause)
        return approved

    def _begin(self, like: Tensor) -> None:
        """No differences yet: zeros get the weight zero."""
        self._images = [torch.zeros_like(like) for _ in range(self.memory)]
        self._residuals = list(self._images)
        self._gram = torch.zeros(len(like), self.memory, self.memory, dtype=torch.float64, device=like.device)
        self._pause = self._failures = torch.zeros(len(like), dtype=torch.int64, device=like.device)

    def _learn(self, images: Tensor, residuals: Tensor, finite: Tensor) -> None:
        """Replace the oldest differences, and keep the Gram matrix `⟨Δg_i, Δg_j⟩` up to date."""
        slot = self._calls % self.memory
        self._calls += 1
        zero = torch.zeros_like(images)
        self._images[slot], self._residuals[slot] = pick(finite, images, zero), pick(finite, residuals, zero)
        self._gram[:, slot, :] = self._gram[:, :, slot] = self._against(self._residuals[slot])

    def _weights(self, residual: Tensor) -> Tensor:
        """Least-squares weights `(B, memory)` by the normal equations of the columns scaled to unit length."""
        length = self._gram.diagonal(dim1=1, dim2=2).sqrt()
        length = torch.where(length > 0, length, 1.0)
        gram = self._gram / (length[:, :, None] * length[:, None, :])
        gram.diagonal(dim1=1, dim2=2).add_(RIDGE)
        return torch.linalg.solve(gram, self._against(residual) / length) / length

    def _against(self, g: Tensor) -> Tensor:
        return torch.stack([inner(column, g) for column in self._residuals], dim=1)
