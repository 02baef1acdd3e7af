"""Memory that a process keeps.

Where the C library is glibc, large tensors are given back to the system as soon as they are freed, and the next step
pays for clearing the same pages again, a fifth of a training step of a denoiser.
"""

import ctypes

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of malloc.h
NEVER = 2**31 - 1


def keep_memory() -> bool:
    """Make the allocator reuse freed memory instead of returning it, until the process ends; False where it cannot."""
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, NEVER))
