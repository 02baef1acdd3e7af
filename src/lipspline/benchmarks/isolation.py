"""Cases that each live in a process of their own, with a heap that no other case has grown or torn."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

import torch

from lipspline.benchmarks.timing import Case


@contextmanager
def isolated(makers: Mapping[str, Callable[[], Case]]) -> Iterator[dict[str, Case]]:
    """Make each case in a new process, with as many threads as here; the processes take turns and end with the block.

    Args:
        makers: what makes each case; must survive pickling, so no lambdas.
    """
    with ExitStack() as stack:
        yield {name: stack.enter_context(_isolated(make)) for name, make in makers.items()}


@contextmanager
def _isolated(make: Callable[[], Case]) -> Iterator[Case]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, make, torch.get_num_threads()), daemon=True)
    process.start()
    there.close()  # so that the end of the process is seen as the end of the pipe

    def case() -> float:
        here.send(True)
        return here.recv()

    try:
        yield case
    finally:
        here.close()
        process.join()


def _serve(pipe: Connection, make: Callable[[], Case], threads: int) -> None:
    """Run the case at every request until the other end closes."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    case = make()
    try:
        while pipe.recv():
            pipe.send(case())
    except EOFError:
        pass
