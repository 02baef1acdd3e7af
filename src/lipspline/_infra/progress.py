"""How far long work has come: bars on a terminal, with the time that has passed and the time that is left."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bars:
    """The bars of one piece of work, each with a key by which it is updated."""

    def __init__(self, display: Progress):
        self._display, self._tasks = display, dict[str, TaskID]()

    def show(self, key: str, done: float, total: float = 1.0, *, label: str = "", note: str = "") -> None:
        """Draw a bar, or draw it again.

        Args:
            done: how much of `total` is done.
            label: stands before the bar; the key if not given.
            note: stands behind the bar.
        """
        if key not in self._tasks:
            self._tasks[key] = self._display.add_task("", total=total, note="")
        self._display.update(self._tasks[key], completed=done, total=total, description=label or key, note=note)


@contextmanager
def bars(console: Console, *, keep: bool = False) -> Iterator[Bars]:
    """Bars that are drawn while somebody watches.

    Args:
        console: where; nothing is drawn if it is no terminal.
        keep: whether the bars stay when the work is done.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=not keep, disable=not console.is_terminal) as display:
        yield Bars(display)
