# %%
# # Build a 1-Lipschitz network
#
# A network is 1-Lipschitz if no two inputs move apart on their way through it. Layers that are 1-Lipschitz one by one
# are so in a row [eq:architecture]: orthonormal weights, and between them activations whose slopes stay within [-1,
# 1].

import torch
from torch import nn

import lipspline as ls

torch.manual_seed(0)

# %%
# Each layer is an ordinary torch layer with a parametrized weight, so `nn.Sequential`, optimizers and `state_dict`
# work as ever. `LinearSpline` is the learned activation: one spline for each channel.

network = nn.Sequential(
    ls.nn.linear(2, 32),
    ls.nn.LinearSpline(32, radius=1.0, init="abs"),
    ls.nn.linear(32, 32),
    ls.nn.LinearSpline(32, radius=1.0, init="abs"),
    ls.nn.linear(32, 1),
)

# %%
# The distance from the origin is 1-Lipschitz, so such a network can learn it. `param_groups` gives weights, scales
# and coefficients of splines the paper's three learning rates.

optimizer = torch.optim.Adam(ls.param_groups(network, lr=4e-3))
for _ in range(250):
    x = 2 * torch.rand(256, 2) - 1
    loss = (network(x) - x.norm(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"root mean square error: {loss.sqrt():.4f}")

# %%
# However it was trained, two inputs never end up farther apart than they were:

x1, x2 = torch.randn(2, 10_000, 2)
with torch.no_grad():
    ratio = (network(x1) - network(x2)).norm(dim=1) / (x1 - x2).norm(dim=1)
print(f"largest ratio of 10,000 pairs: {ratio.max():.4f}")

# %%
# Looking at pairs proves nothing. [The certificate](certify.py) does. The weights are orthonormal up to the round-off
# of float32, so the bound of the network as it was trained may end a little above 1; `ls.plain` divides by what was
# proved, and the bound is at most 1, as a number.

certificate = ls.certify(ls.plain(network), input_shape=(2,))
print(f"{certificate.lower:.6f} <= Lipschitz constant <= {certificate.upper!r}")
assert certificate.upper <= 1
