"""Every script beside the pages finds what it imports from the library."""

import importlib.util
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_can_be_imported(path, monkeypatch):
    """What they do runs under `__main__` only; most are run by hand, after results have changed."""
    monkeypatch.syspath_prepend(str(DOCS))
    before = set(sys.modules)
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(DOCS)):
            del sys.modules[name]
