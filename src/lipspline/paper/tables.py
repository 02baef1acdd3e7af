"""Tables of results as text: ours, and the paper's beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = tuple[float, ...]
"""A number, or a mean and its deviation."""


@dataclass(frozen=True)
class Table:
    """Numbers by row and column, with the published ones where there are some.

    Args:
        title: one line.
        corner: what the rows are.
        ours: `ours[row][column]`.
        paper: `paper[row][column]`, the published numbers.
        best: which of a row is marked with a star, `max` or `min`; None marks nothing.
        digits: a format such as ".3f".
    """

    title: str
    corner: str
    ours: Mapping[str, Mapping[str, Value]]
    paper: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    best: str | None = None
    digits: str = ".3f"

    def columns(self) -> list[str]:
        """All columns, in the order of their first appearance."""
        return list(dict.fromkeys(column for row in self.ours.values() for column in row))

    def __str__(self) -> str:
        columns = self.columns()
        grid = [[self.corner, "", *columns]]
        for row, values in self.ours.items():
            grid.append([row, "ours", *(self._cell(values, column) for column in columns)])
            if row in self.paper:
                grid.append(["", "paper", *(_text(self.paper[row].get(column), self.digits) for column in columns)])
        return "\n".join([self.title, *_aligned(grid)])

    def _cell(self, values: Mapping[str, Value], column: str) -> str:
        value = values.get(column)
        star = "*" if value is not None and self.best and value[0] == self._extreme(values) else ""
        return _text(value, self.digits) + star

    def _extreme(self, values: Mapping[str, Value]) -> float:
        numbers = [value[0] for value in values.values()]
        return max(numbers) if self.best == "max" else min(numbers)


def _text(value: Value | None, digits: str) -> str:
    """A value as in the paper's tables: `mean/deviation`, or the number alone."""
    return "-" if value is None else "/".join(format(number, digits) for number in value)


def _aligned(grid: list[list[str]]) -> list[str]:
    """Lines with the columns of a grid aligned, and a rule below the header."""
    widths = [max(len(row[i]) for row in grid) for i in range(len(grid[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in grid]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
