"""How far long work has come: bars on a terminal, lines now and then elsewhere; the time passed and the time left."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import ceil, isinf

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from lipspline._infra import ranks


class Pace:
    """How long the rest of some equal pieces of work will take, by the mean of those that were worked on.

    Pieces that were found done, from an earlier run, say nothing about it.

    Args:
        clock: tells seconds.

    Example:
        >>> now = iter([0.0, 5.0, 65.0, 65.0])
        >>> pace = Pace(lambda: next(now))
        >>> pace.end(0)  # found done
        >>> pace.begin(1)
        >>> pace.end(1)
        >>> print(pace.done, timedelta(seconds=pace.left(10)))
        2 0:08:00
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._last = clock, clock()
        self._begun, self._worked, self._found, self._seconds = set[int](), 0, 0, 0.0

    def begin(self, i: int) -> None:
        """Piece i is worked on; may be said again and again."""
        if not self._begun:
            self._last = self._clock()
        self._begun.add(i)

    def end(self, i: int) -> None:
        """Piece i is done; without `begin`, it was found done."""
        if i not in self._begun:
            self._found += 1
            return
        before, self._last = self._last, self._clock()
        self._seconds, self._worked = self._seconds + self._last - before, self._worked + 1

    @property
    def done(self) -> int:
        """How many pieces are done."""
        return self._worked + self._found

    def left(self, total: int) -> float | None:
        """Seconds until all are done; None as long as nothing is known."""
        if not self._worked:
            return None
        mean = self._seconds / self._worked
        return max(0.0, mean * (total - self.done) - (self._clock() - self._last))


class _TimeLeft(ProgressColumn):
    """What `Bars.show` was told, or else by the speed so far."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        left = task.fields["left"] if task.fields["left"] is not None else task.time_remaining
        words = "-:--:--" if left is None or isinf(left) else str(timedelta(seconds=ceil(left)))
        return Text(f"{words} left", style="progress.remaining")


class Bars:
    """The bars of one piece of work, each with a key by which it is updated."""

    def __init__(self, display: Progress):
        self._display, self._tasks = display, dict[str, TaskID]()

    def show(
        self, key: str, done: float, total: float = 1.0, *, label: str = "", note: str = "", left: float | None = None
    ) -> None:
        """Draw a bar, or draw it again.

        Args:
            done: how much of `total` is done.
            label: stands before the bar; the key if not given.
            note: stands behind the bar.
            left: seconds until all is done; by the speed of the last hour if not given; infinite if nobody can tell.
        """
        if key not in self._tasks:
            self._tasks[key] = self._display.add_task("", total=total, note="", left=None)
        shown = {"description": label or key, "note": note, "left": left}
        self._display.update(self._tasks[key], completed=done, total=total, **shown)


FIRST_LINE, GROWTH = 10.0, 0.2  # seconds; and the time to the next line, as a part of the time that has passed


class Lines:
    """What `Bars` shows, as lines now and then, for a file or a pipe: after ten seconds, then less and less often."""

    def __init__(self, write: Callable[[str], None], first: float = FIRST_LINE):
        self._write, self._first, self._line, self._done = write, first, "", threading.Event()
        self._begin = time.monotonic()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> "Lines":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def show(
        self, key: str, done: float, total: float = 1.0, *, label: str = "", note: str = "", left: float | None = None
    ) -> None:
        """Remember how far it is; see `Bars.show`."""
        far = note or f"{done:g}/{total:g}"
        until = "" if left is None or isinf(left) else f", about {timedelta(seconds=ceil(left))} left"
        self._line = f"{(label or key).strip()} {far}{until}"

    def _tell(self) -> None:
        wait = self._first
        while not self._done.wait(wait):
            passed = time.monotonic() - self._begin
            if self._line:
                self._write(f"{timedelta(seconds=round(passed))} {self._line}")
            wait = max(self._first, GROWTH * passed)


@contextmanager
def bars(console: Console, *, keep: bool = False) -> Iterator[Bars | Lines]:
    """Bars that are drawn while somebody watches; if the console is no terminal, lines of the first process.

    Args:
        console: where.
        keep: whether the bars stay when the work is done.
    """
    if not console.is_terminal and ranks.is_main():
        with Lines(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)) as lines:
            yield lines
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        _TimeLeft(),
    )
    how = {"transient": not keep, "disable": not console.is_terminal, "speed_estimate_period": 3600.0}
    with Progress(*columns, console=console, **how) as display:
        yield Bars(display)
