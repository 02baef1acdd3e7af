"""Problems shared out over processes."""

import torch.multiprocessing as multiprocessing
from torch import distributed

from lipspline.pnp import solve_all


def test_one_process_solves_all_in_order():
    assert solve_all(str, [3, 1, 2]) == ["3", "1", "2"]


def square(n: int) -> tuple[int, int]:
    return n * n, distributed.get_rank()


def work(rank: int, address: str, queue) -> None:
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    queue.put(solve_all(square, [1, 2, 3]))
    distributed.destroy_process_group()


def test_two_processes_share_them_and_both_get_all(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=work, args=(rank, f"file://{tmp_path}/meet", queue)) for rank in range(2)]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert results == [[(1, 0), (4, 1), (9, 0)]] * 2
