"""Cases in processes of their own."""

import os
from collections.abc import Callable
from functools import partial

import torch

from lipspline.benchmarks.isolation import isolated


def number(function: Callable[[], int]) -> Callable[[], float]:
    return lambda: float(function())


def test_each_case_has_a_process_of_its_own_with_the_threads_of_this_one():
    makers = {"first": partial(number, os.getpid), "second": partial(number, os.getpid)}
    with isolated({**makers, "threads": partial(number, torch.get_num_threads)}) as cases:
        first, second = cases["first"](), cases["second"]()
        assert len({first, second, float(os.getpid())}) == 3
        assert cases["first"]() == first
        assert cases["threads"]() == torch.get_num_threads()
