"""A random stream for every purpose and step, so that the position in a run is a number and not a state."""

import random
import zlib
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor


def generator(seed: int, *key: int | str) -> torch.Generator:
    """A CPU generator that depends on `seed` and `key` alone, such as `generator(0, "noise", step)`.

    Different keys give independent streams. Draw on the CPU and move the result: every device then sees the same
    numbers.

    Example:
        >>> a, b, c = (torch.randn(3, generator=generator(0, "noise", step)) for step in (7, 7, 8))
        >>> bool((a == b).all()), bool((a == c).any())
        (True, False)
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in (seed, *key)]
    state = np.random.SeedSequence(words).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def shuffled(count: int, step: int, batch: int, seed: int) -> Tensor:
    """Indices `(batch,)` of batch number `step` in an endless sequence of shuffled epochs of `count` samples.

    Example:
        >>> epoch = torch.cat([shuffled(6, step, 2, seed=0) for step in range(3)])
        >>> epoch.sort().values
        tensor([0, 1, 2, 3, 4, 5])
    """
    return shuffled_each(count, step, batch, (seed,))[0]


def shuffled_each(count: int, step: int, batch: int, seeds: tuple[int, ...]) -> Tensor:
    """`shuffled` for every seed, `(len(seeds), batch)`."""
    first, last = step * batch, (step + 1) * batch
    epochs = range(first // count, (last - 1) // count + 1)
    orders = [_permutations(count, epoch, seeds) for epoch in epochs]
    whole = orders[0] if len(orders) == 1 else torch.cat(orders, dim=1)
    return whole[:, first - epochs[0] * count :][:, :batch]


@lru_cache(maxsize=4)
def _permutations(count: int, epoch: int, seeds: tuple[int, ...]) -> Tensor:
    return torch.stack([torch.randperm(count, generator=generator(seed, "epoch", epoch)) for seed in seeds])


def random_state() -> dict[str, Any]:
    """The states of the global random generators of torch (all devices), numpy and Python."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, gauss],
        "python": list(random.getstate()),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Go on with the random numbers where `random_state` was called."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
