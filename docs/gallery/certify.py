# %%
# # Certify a network
#
# `ls.certify` bounds the Lipschitz constant of a network from above, by a proof. Told the shape of an input it also
# looks from below, for the steepest direction it can find. Where the two meet nothing is left to know.

import torch
from torch import nn

import lipspline as ls

torch.manual_seed(0)
denoiser = ls.models.denoiser(channels=8, depth=3)
print(ls.certify(denoiser, (1, 32, 32)))

# %%
# The bound may end a little above 1: weights are float32 numbers, and orthonormal only up to round-off. `ls.plain`
# folds the constraints into ordinary layers and divides by what was proved, so that the bound is at most 1, as a
# number.

final = ls.plain(denoiser)
print(f"Lipschitz constant <= {ls.certify(final).upper!r}")
assert ls.certify(final).upper <= 1

# %%
# Ordinary torch layers are certified too. Their bounds multiply, which proves less the more layers there are: the
# steepest directions of one layer need not be those of the next.

ordinary = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))
certificate = ls.certify(ordinary, input_shape=(10,))
print(f"{certificate.lower:.3f} <= Lipschitz constant <= {certificate.upper:.3f}")

# %%
# A layer without a rule is an error, never a silent 1.


class Twice(nn.Module):
    """Multiplies by two."""

    def forward(self, x):
        """Twice the input."""
        return 2 * x


try:
    ls.certify(Twice())
except ValueError as error:
    print(error)

# %%
# Either teach `certify` a rule for the layer, or vouch for this one; the certificate repeats your reason.

print(ls.certify(ls.declare(Twice(), upper=2.0, reason="multiplies by two"), (3,)))
