# %%
# # Learn an activation
#
# How much does the shape of the activations matter? We fit the sawtooth below, which has slopes ±1 and is therefore
# as steep as a 1-Lipschitz network may be, with three small networks that differ in their activations only.

import matplotlib.pyplot as plt
import torch

import lipspline as ls


def sawtooth(x):
    """Four teeth on [-1, 1], with slopes ±1."""
    return ((2 * x) % 1 - 0.5).abs() / 2


def fitted(activation, **options):
    """A network that learned the sawtooth."""
    torch.manual_seed(0)
    network = ls.models.mlp(1, 1, width=10, depth=4, activation=activation, activation_options=options)
    optimizer = torch.optim.Adam(ls.param_groups(network, lr=4e-3))
    x = torch.linspace(-1, 1, 500).unsqueeze(1)
    for _ in range(300):
        loss = (network(x) - sawtooth(x)).square().mean() + 1e-7 * ls.tv2(network)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


networks = {
    "ReLU": fitted("relu"),
    "absolute value": fitted("av"),
    "learned splines": fitted("lls", radius=0.5, regions=100, init="relu"),
}

# %%
# ReLU loses: it is flat on half of the line, and orthonormal weights cannot make up for it. The absolute value keeps
# gradients, and a spline finds the shape that the data ask for.

x = torch.linspace(-1, 1, 500).unsqueeze(1)
figure, axis = plt.subplots(figsize=(7, 3))
axis.plot(x, sawtooth(x), color="black", linewidth=3, alpha=0.3, label="target")
for name, network in networks.items():
    values = network(x).detach()
    axis.plot(x, values, label=name)
    print(f"{name:16} mean square error {(values - sawtooth(x)).square().mean():.2e}")
axis.legend()

# %%
# These are the splines of the last network, layer by layer. The second-order total variation `ls.tv2`, added to the
# loss with a small weight, keeps them simple [eq:optim_network].

learned = networks["learned splines"]
ls.plot_activations(learned, columns=10, per_layer=10)
print(f"effective linear regions per spline: {ls.effective_regions(learned).overall:.1f}")

# %%
# Regions with nearly the same slope can be merged afterwards; the result is still 1-Lipschitz.

simpler, report = ls.sparsify(learned, tol=0.05)
error = (simpler(x) - sawtooth(x)).square().mean()
print(f"regions per spline: {ls.effective_regions(simpler).overall:.1f}, mean square error {error:.2e}")
