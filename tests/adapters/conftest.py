"""Lends this folder's tests the list of operators that all laws are tried on."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "operators"))
