"""The few things that matter here in the XML header of ISMRMRD, which fastMRI files carry too."""

import re
from typing import Any

Triple = tuple[float, float, float]


def space_of_images(xml: str) -> dict[str, Any]:
    """The `reconSpace` of a header: `matrix` (rows, columns) and `voxel` in mm (column, row, slice).

    Example:
        >>> size = "<x>320</x><y>160</y><z>1</z>"
        >>> xml = f"<reconSpace><matrixSize>{size}</matrixSize><fieldOfView_mm>{size}</fieldOfView_mm></reconSpace>"
        >>> space_of_images(xml)
        {'matrix': (320, 160), 'voxel': (1.0, 1.0, 1.0)}
    """
    found = space(xml, "reconSpace")
    if found is None:
        return {}
    matrix, extent = found
    x, y, z = (length / size for length, size in zip(extent, matrix, strict=True))
    return {"matrix": (int(matrix[0]), int(matrix[1])), "voxel": (y, x, z)}


def space(xml: str, name: str) -> tuple[Triple, Triple] | None:
    """Matrix size and field of view in mm, along x (readout), y and z, of `encodedSpace` or `reconSpace`."""
    part = element(xml, name)
    matrix, extent = (_xyz(element(part, tag)) for tag in ("matrixSize", "fieldOfView_mm"))
    if matrix is None or extent is None or min(matrix) < 1 or not 0 < min(extent) <= max(extent) < float("inf"):
        return None
    return matrix, extent


def element(xml: str, *path: str) -> str:
    """What stands inside the first element of this name, and in it the next; empty if there is none.

    Example:
        >>> element("<a><ns:b>7</ns:b></a>", "a", "b")
        '7'
    """
    for name in path:
        part = re.search(rf"<(?:\w+:)?{name}(?:\s[^<>]*)?>(.*?)</(?:\w+:)?{name}>", xml, re.DOTALL)
        xml = part.group(1).strip() if part else ""
    return xml


def _xyz(xml: str) -> Triple | None:
    try:
        x, y, z = (float(element(xml, axis)) for axis in "xyz")
    except ValueError:
        return None
    return x, y, z
