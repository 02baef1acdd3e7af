"""How far long work has come, where nobody watches a terminal."""

import io
import math
import time

from rich.console import Console

from lipspline._infra.progress import Bars, Lines, _TimeLeft, bars


def wait_for(lines: list[str], count: int) -> None:
    deadline = time.monotonic() + 20
    while len(lines) < count and time.monotonic() < deadline:
        time.sleep(0.005)


def test_without_a_terminal_the_last_state_is_told_now_and_then():
    written: list[str] = []
    with Lines(written.append, first=0.02) as lines:
        lines.show("slices", 1, 4, note="1/4, slice 2: 30 steps", left=59.2)
        wait_for(written, 2)
        lines.show("a.png", 3, 8)
        wait_for(written, len(written) + 2)
    assert written[0] == "0:00:00 slices 1/4, slice 2: 30 steps, about 0:01:00 left"
    assert written[-1].endswith(" a.png 3/8")
    count = len(written)
    time.sleep(0.1)
    assert len(written) == count  # nobody writes when the work is done


def test_lines_become_rare():
    """After an hour one in twelve minutes, not one in ten seconds."""
    written: list[str] = []
    lines = Lines(written.append, first=0.01)
    lines._begin -= 3600
    with lines:
        lines.show("slices", 0, 1)
        wait_for(written, 1)
        time.sleep(0.1)
    assert len(written) == 1


def test_a_pipe_gets_lines_and_short_work_none():
    pipe = io.StringIO()
    with bars(Console(file=pipe)) as display:
        display.show("slices", 0, 2)
        assert isinstance(display, Lines)
    assert pipe.getvalue() == ""
    with bars(Console(file=pipe, force_terminal=True)) as display:
        assert isinstance(display, Bars)


def test_a_time_left_that_nobody_can_tell_is_not_told():
    lines = Lines(lambda line: None)
    lines.show("slices", 1, 3, note="1/1", left=math.inf)
    assert lines._line == "slices 1/1"
    with bars(Console(file=io.StringIO(), force_terminal=True)) as display:
        display.show("slices", 1, 3, left=math.inf)
        assert _TimeLeft().render(display._display.tasks[0]).plain == "-:--:-- left"
