# %%
# # Reconstruct MRI
#
# A scanner that measures one column of k-space in four is four times as fast, and leaves an image to be found. On the
# command line this is `lipspline reconstruct mri`; here are its parts.

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import avg_pool2d

import lipspline as ls
from lipspline.formats.builtin import head
from lipspline.functional.quality import psnr

torch.manual_seed(0)

# %%
# A slice through a head, which ships with matplotlib; the operator $H$ with its exact adjoint; and noisy data $y = Hx
# + n$.

image = avg_pool2d(head()[None, None], 2)
H = ls.operators.MRI(ls.operators.cartesian_mask(image.shape[-1], acceleration=4, center=0.08))
y = H.forward(image)
y = y + 0.01 * torch.randn_like(y)  # where nothing was measured the adjoint ignores it
print(H, "with ‖H‖ between", *H.norm_bounds())

# %%
# The prior is a denoiser that is proved to be 1-Lipschitz. This one ships with the package; it was proved again when
# it was read.

denoiser = ls.models.zoo("lls", noise=8)
print(denoiser.certificate)

# %%
# Before the first step the hypotheses of the theorem are checked. What comes back is an image and the evidence.

solution = ls.pnp.fbs(y, H, denoiser, beta=0.1, tol=1e-4, accelerate=True)
print(solution)

# %%
# Zero-filling, $H^T y$, is what the data say with nothing added.

direct = H.adjoint(y)
figure, axes = plt.subplots(1, 3, figsize=(9, 3.3))
shown = {"truth": image, "zero-filled": direct, "plug-and-play": solution.value}
for axis, (name, picture) in zip(axes, shown.items(), strict=True):
    axis.imshow(picture[0, 0], cmap="gray", vmin=0, vmax=1)
    score = "" if picture is image else f", {psnr(picture, image).item():.2f} dB"
    axis.set_title(name + score)
    axis.axis("off")
