"""What `certify` returns, and the arithmetic behind it: sums and products of bounds, rounded outward."""

import json
import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class LayerBound:
    """The bound of one layer and the rule that gave it."""

    name: str
    kind: str
    rule: str
    upper: float


@dataclass(frozen=True)
class RoundingBound:
    """How far what runs may be from the exact function of the stored weights, in the Euclidean norm of the output.

    `error` bounds that distance for one input without an entry above `input_bound`, so that two outputs of what runs
    lie at most `upper * distance + 2 * error` apart. Where an operation has no rule it is None, and `reason` says why.
    """

    error: float | None
    input_bound: float
    arithmetic: str
    reason: str = ""

    def __str__(self) -> str:
        if self.error is None:
            return self.reason
        return (
            f"Rounding ({self.arithmetic}): what runs is within {scientific_up(self.error)} of that function, where no "
            f"entry of the input exceeds {self.input_bound:g}"
        )


EVERY_SIZE = "inputs of every size"


class BoundProduct(tuple[LayerBound, ...]):
    """Layers in a row: their bounds multiply."""

    __slots__ = ()

    @property
    def upper(self) -> float:
        return multiply_up(*(layer.upper for layer in self))


@dataclass(frozen=True)
class Certificate:
    """A proof that a network is Lipschitz with constant `upper`, layer by layer.

    `lower` is the largest ratio of distances seen (None if not looked for), so `upper / lower` says how tight it is.
    Where a network was bounded as a graph of operations, the bound of each is that from the input up to there, and
    `valid_for` says for which inputs it was traced. `rounding` bounds what the arithmetic of the network adds, if that
    was asked for.
    """

    upper: float
    layers: tuple[LayerBound, ...]
    lower: float | None = None
    valid_for: str = EVERY_SIZE
    rounding: RoundingBound | None = None

    def to_json(self) -> str:
        """The certificate as a JSON document."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        traced = not self.valid_for.startswith(EVERY_SIZE)
        rows = [("layer", "kind", "bound so far" if traced else "bound", "rule")]
        rows += [(bound.name, bound.kind, printed_up(bound.upper), bound.rule) for bound in self.layers]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]]) for row in rows]
        lines.insert(1, "-" * max(map(len, lines)))
        seen = "not measured" if self.lower is None else f"{self.lower:.9f}"
        inputs = f", for {self.valid_for}" if self.valid_for != EVERY_SIZE else ""
        constant = f"Lipschitz constant <= {printed_up(self.upper)}{inputs}   (largest ratio seen: {seen})"
        return "\n".join([*lines, "", constant, *([str(self.rounding)] if self.rounding else [])])


def printed_up(bound: float) -> str:
    """A bound in print is a bound: 1 + 4e-10 is not 1.000000000."""
    text = f"{bound:.9f}"
    return text if float(text) >= bound else f"{float(text) + 1e-9:.9f}"


def scientific_up(bound: float) -> str:
    """Three digits of a bound that may be small, rounded upward."""
    text = f"{bound:.2e}"
    return text if float(text) >= bound else f"{bound * 1.01:.2e}"


def multiply_up(*factors: float) -> float:
    """BoundProduct of nonnegative numbers, rounded upward."""
    product = 1.0
    for factor in factors:
        if factor != 1.0:
            product = math.nextafter(product * factor, math.inf) if product != 1.0 else factor
    return product


def add_up(*terms: float) -> float:
    """Sum of nonnegative numbers, rounded upward where it is not exact."""
    total = 0.0
    for term in terms:
        rounded = total + term
        kept = rounded - total
        lost = (total - (rounded - kept)) + (term - kept)
        total = math.nextafter(rounded, math.inf) if lost > 0 else rounded
    return total


def root_up(square: float) -> float:
    """Square root of a nonnegative number, rounded upward unless it is exact."""
    root = math.sqrt(square)
    return root if root * root == square and root.is_integer() else math.nextafter(root, math.inf)


def root_sum_of_squares_up(*sides: float) -> float:
    """`sqrt(a² + b² + ...)` of nonnegative numbers, rounded upward: the bound of outputs that are concatenated."""
    largest = max(sides, default=0.0)
    if largest == 0 or not math.isfinite(largest) or sum(side > 0 for side in sides) == 1:
        return largest
    shares = [math.nextafter(side / largest, math.inf) if side != largest else 1.0 for side in sides]
    return multiply_up(largest, root_up(add_up(*(multiply_up(share, share) for share in shares))))
