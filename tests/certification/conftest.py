"""Puts the reference norms of this folder's tests on its path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
