"""The scripts that make the site, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def load(name: str) -> ModuleType:
    """The module of a script in docs/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def gallery_cells() -> ModuleType:
    """Runs the scripts of the gallery."""
    return load("gallery_cells")


@pytest.fixture(scope="session")
def results_page() -> ModuleType:
    """Writes the page of results."""
    return load("results_page")
