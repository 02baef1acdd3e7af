# %%
# # Train a denoiser
#
# A small one on three photographs that ship with scikit-image, in seconds: to see how it goes, not to be used. The
# shipped denoisers have [recipes](../denoisers.md#training-what-ships).

import matplotlib.pyplot as plt
import torch
from skimage import data
from torch.nn.functional import mse_loss

import lipspline as ls
from lipspline.functional.quality import psnr

torch.manual_seed(0)
NOISE = 25 / 255

# %%
# Clean photographs in [0, 1], at half their size.


def photograph(pixels):
    """An image of scikit-image as `(1, 1, H, W)` with values in [0, 1]."""
    return torch.nn.functional.avg_pool2d(torch.as_tensor(pixels)[None, None].float() / 255, 2)


training = [photograph(data.camera()), photograph(data.brick()), photograph(data.moon())]
test = photograph(data.coins())


def patches(count, size=32):
    """Random pieces of the photographs, `(count, 1, size, size)`."""
    pieces = []
    for _ in range(count):
        image = training[int(torch.randint(len(training), ()))]
        row, column = (int(torch.randint(extent - size, ())) for extent in image.shape[-2:])
        pieces.append(image[..., row : row + size, column : column + size])
    return torch.cat(pieces)


# %%
# Orthogonal convolutions with splines between them. The network sees noise and must return what is below it.

denoiser = ls.models.denoiser(channels=16, depth=4, activation_options={"init": "maxmin"})
optimizer = torch.optim.Adam(ls.param_groups(denoiser, lr=1e-2))
for step in range(150):
    clean = patches(8)
    loss = mse_loss(denoiser(clean + NOISE * torch.randn_like(clean)), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 29:
        print(f"step {step + 1}: mean square error {loss:.5f}")

# %%
# A photograph it has not seen:

noisy = test + NOISE * torch.randn_like(test)
with torch.no_grad():
    denoised = denoiser(noisy)
print(f"noisy {psnr(noisy, test).item():.2f} dB, denoised {psnr(denoised, test).item():.2f} dB")

figure, axes = plt.subplots(1, 3, figsize=(9, 3))
for axis, image, title in zip(axes, (test, noisy, denoised), ("clean", "noisy", "denoised"), strict=True):
    axis.imshow(image[0, 0], cmap="gray", vmin=0, vmax=1)
    axis.set_title(title)
    axis.axis("off")

# %%
# And it is as 1-Lipschitz as it was before the first step.

final = ls.plain(denoiser)
print(f"Lipschitz constant <= {ls.certify(final).upper:.9f}")
