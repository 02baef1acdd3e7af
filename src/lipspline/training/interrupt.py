"""Ctrl-C between two steps instead of in the middle of one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Interruption:
    """Whether the user has asked to stop."""

    requested: bool = False


@contextmanager
def deferred_interrupt() -> Iterator[Interruption]:
    """Note the first Ctrl-C instead of raising at once; a second one raises as usual.

    Signals reach the main thread only; elsewhere this does nothing.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    previous = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: object) -> None:
        interruption.requested = True
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, previous)
