"""Several processes as one: gradients are averaged, data are sharded, one process writes.

Start with `torchrun --nproc-per-node N -m lipspline train ...`. Every process draws the same batch and works on its
rows of it; the gradients are then averaged, so N processes compute what one computes with the whole batch. The
averaging is one collective call a player and step instead of `DistributedDataParallel`: it works for any task (two
players, penalties on the parameters, parametrized weights) without wrapping modules, and the networks here are
too small for overlapping communication with the backward pass to pay.

Without torchrun every function here does nothing, or returns what one process needs.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def session() -> Iterator[None]:
    """Join the process group that torchrun announces in the environment, and leave it.

    Tensors on GPUs travel by NCCL, others by gloo.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # torchrun keeps one store over restarts: without a prefix a new group finds the addresses of dead processes
    store, number, count = next(rendezvous("env://"))
    attempt = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"  # for tensors on either
    dist.init_process_group(backend, store=attempt, rank=number, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


def world() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if world() > 1 else 0


def is_main() -> bool:
    """Whether this process is the one that writes."""
    return rank() == 0


def wait() -> None:
    """Wait until all processes are here."""
    if world() > 1:
        dist.barrier()


def rows(batch: int) -> slice:
    """The rows of a batch that belong to this process: equal parts, so that the mean of means is the mean."""
    if batch % world():
        raise ValueError(f"The batch size {batch} must be a multiple of the number of processes, {world()}.")
    share = batch // world()
    return slice(rank() * share, (rank() + 1) * share)


def shard(items: Sequence[Item]) -> Sequence[Item]:
    """The items (images, seeds, recipes) that belong to this process: every `world()`-th."""
    return items[rank() :: world()]


def solve_all(solve: Callable[[Item], Result], problems: Sequence[Item]) -> list[Result]:
    """Apply `solve` to every problem, shared out over the ranks of `torch.distributed` if it is initialised.

    Every rank must call this with the same problems; each returns the results of all, in their order. Slices of one
    shape are best put into a batch; this is for lists of batches, or of slices that differ.

    Example:
        >>> solve_all(lambda n: n * n, [1, 2, 3])
        [1, 4, 9]
    """
    mine = [solve(problem) for problem in shard(problems)]
    if world() == 1:
        return mine
    shares: list[list[Result]] = [[]] * world()
    dist.all_gather_object(shares, mine)
    return [shares[i % world()][i // world()] for i in range(len(problems))]


@torch.no_grad()
def average_gradients(parameters: Sequence[Tensor]) -> None:
    """Replace every gradient by its mean over the processes."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if world() > 1 and gradients:
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.div_(world()).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


@torch.no_grad()
def share_buffers(modules: Sequence[nn.Module]) -> None:
    """Give every process the buffers of the first one (running statistics depend on the rows a process saw)."""
    if world() > 1:
        for module in modules:
            for buffer in module.buffers():
                dist.broadcast(buffer, src=0)


def total(value: Tensor) -> Tensor:
    """The sum of a tensor over the processes."""
    if world() > 1:
        value = value.clone()
        dist.all_reduce(value)
    return value


def mean(value: Tensor) -> Tensor:
    """The mean of a tensor over the processes."""
    return total(value) / world()
