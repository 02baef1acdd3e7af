"""What all tests share: the same examples on every run, and the same random numbers in every test."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("everyday", derandomize=True, max_examples=40, deadline=None, database=None)
settings.load_profile("everyday")


@pytest.fixture(autouse=True)
def _same_random_numbers_in_every_test():
    """A test must not depend on which tests ran before it."""
    torch.manual_seed(0)
