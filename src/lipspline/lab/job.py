"""One reconstruction in the background, and what it tells whoever watches."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Cancelled(Exception):
    """The visitor has asked to stop."""


@dataclass(frozen=True)
class Event:
    """Something that happened: `kind` is "step", "image", "done", "failed" or "cancelled"."""

    number: int
    kind: str
    data: dict[str, Any]


Work = Callable[["Job"], dict[str, Any]]
LAST = ("done", "failed", "cancelled")


@dataclass
class Job:
    """Work in a thread of its own; its events can be read by many, at any time, from any point on."""

    id: int
    work: Work
    _events: list[Event] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin; daemonic, so that it does not keep the program alive."""
        threading.Thread(target=self._run, name=f"lab-job-{self.id}", daemon=True).start()

    def cancel(self) -> None:
        """Ask it to stop; it does at its next step."""
        self._stop.set()

    @property
    def running(self) -> bool:
        """Whether its last event is still to come."""
        with self._lock:
            return not self._events or self._events[-1].kind not in LAST

    def tell(self, kind: str, **data: Any) -> None:
        """Record an event; a new image takes the place of the one before. Raises `Cancelled` if asked to stop."""
        if self._stop.is_set() and kind not in LAST:
            raise Cancelled
        with self._lock:
            number = self._events[-1].number + 1 if self._events else 1
            if kind == "image":
                self._events = [event for event in self._events if event.kind != "image"]
            self._events.append(Event(number, kind, data))

    def since(self, number: int) -> list[Event]:
        """Events after this number that have not been superseded."""
        with self._lock:
            return [event for event in self._events if event.number > number]

    def _run(self) -> None:
        try:
            result = self.work(self)
        except Cancelled:
            self.tell("cancelled")
        except Exception as error:
            self.tell("failed", sentence=str(error) or type(error).__name__)
        else:
            self.tell("done", **result)
