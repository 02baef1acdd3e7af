# %%
# # Use with deepinv
#
# [deepinv](https://deepinv.github.io) has many algorithms for inverse problems. Denoisers and operators of this
# library become parts of it, and keep what is proven about them.

import torch

import lipspline as ls

torch.manual_seed(0)
try:
    import deepinv
except Exception as error:  # a torchvision that does not fit torch raises something else than ImportError
    print(f"deepinv cannot be imported here, so what follows is skipped: {error}")
    deepinv = None

# %%
# An operator as a `LinearPhysics`, and a denoiser that takes the noise level with every call, `D(x, sigma)`.

H = ls.operators.MRI(ls.operators.cartesian_mask(64))
network = ls.plain(ls.models.denoiser(channels=4, depth=2))
if deepinv is not None:
    from lipspline.adapters import to_deepinv, to_deepinv_denoiser

    physics = to_deepinv(H)
    denoiser = to_deepinv_denoiser(network, noise=15)
    x = torch.rand(1, 1, 64, 64)
    print(type(physics).__mro__[1].__name__, "and", type(denoiser).__mro__[2].__name__)
    print("the same data:", torch.equal(physics.A(x), H.forward(x)))

# %%
# deepinv does not check the hypotheses of the convergence theorem. The step below satisfies them: $1 / \|H\|^2$, from
# a proven bound on the norm.

if deepinv is not None:
    y, x = physics.A(x), torch.zeros_like(x)
    step = 1 / H.norm_bounds()[1] ** 2
    for _ in range(20):
        x = x - step * physics.A_adjoint(physics.A(x) - y)
        x = 0.5 * x + 0.5 * denoiser(x, 15 / 255)
    print(f"data are met up to {(physics.A(x) - y).norm() / y.norm():.3f}")
