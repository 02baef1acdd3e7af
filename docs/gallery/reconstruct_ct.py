# %%
# # Reconstruct CT, with a denoiser of your own
#
# `ls.pnp.fbs` takes any denoiser that is 1-Lipschitz, not only networks of this library. Here it is a classical one:
# shrinkage of Haar wavelets.

import matplotlib.pyplot as plt
import torch

import lipspline as ls
from lipspline.formats.builtin import shepp_logan
from lipspline.functional.quality import psnr

torch.manual_seed(0)

# %%
# Forty views of the Shepp-Logan phantom. Lengths are in pixels; the adjoint is the exact transpose of the projector.

image = shepp_logan(128)[None, None]
H = ls.operators.ParallelBeamCT(128, angles=40, detectors=181, spacing=1.0)
y = H.forward(image)
y = y + 0.3 * torch.randn_like(y)
print(f"{y.shape[-2]} angles, {y.shape[-1]} detectors, ‖H‖ <= {H.norm_bounds()[1]:.4f}")

# %%
# The orthonormal Haar transform of 2x2 blocks, soft thresholding of its details, and back: the proximal operator of a
# convex function, so 1-Lipschitz. Shifted copies of it are too, and so is their mean.

HAAR = torch.tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
THRESHOLD = torch.tensor([0.0, 1.0, 1.0, 1.0]).view(1, 4, 1, 1)


def haar_shrinkage(x, amount):
    """Soft thresholding of the details of 2x2 blocks."""
    blocks = torch.nn.functional.pixel_unshuffle(x, 2)
    details = torch.einsum("ij,bjhw->bihw", HAAR, blocks)
    shrunk = details - details.clamp(-amount * THRESHOLD, amount * THRESHOLD)
    return torch.nn.functional.pixel_shuffle(torch.einsum("ji,bjhw->bihw", HAAR, shrunk), 2)


def mean_over_shifts(x):
    """The mean of the shrinkage over the four positions of the blocks."""
    shifts = [(0, 0), (0, 1), (1, 0), (1, 1)]
    return sum(haar_shrinkage(x.roll((-i, -j), (2, 3)), 0.006).roll((i, j), (2, 3)) for i, j in shifts) / 4


denoiser = ls.declare(mean_over_shifts, upper=1.0, reason="a mean of proximal operators")

# %%
# The certificate repeats that the bound is vouched for, and says which estimates hold.

solution = ls.pnp.fbs(y, H, denoiser, beta=0.5, tol=1e-4, accelerate=True, max_steps=300)
print(ls.certify(denoiser))
print(solution)

# %%
# Filtered backprojection amplifies noise and shows streaks where views are missing.

direct = ls.operators.fbp(y, H)
figure, axes = plt.subplots(1, 3, figsize=(9, 3.3))
shown = {"truth": image, "filtered backprojection": direct, "plug-and-play": solution.value}
for axis, (name, picture) in zip(axes, shown.items(), strict=True):
    axis.imshow(picture[0, 0], cmap="gray", vmin=0, vmax=0.5)
    score = "" if picture is image else f"\n{psnr(picture, image).item():.2f} dB"
    axis.set_title(name + score)
    axis.axis("off")

# %%
# How far can the reconstruction move when the data do? The estimates are proven; here some perturbations try to break
# them.

print(ls.pnp.stability(y, H, denoiser, beta=0.5, perturbations=2, ascents=2, ascent_steps=1, tol=1e-4, max_steps=300))
