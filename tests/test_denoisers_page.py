"""The page on denoisers shows what ships, and trained denoisers become shipped ones by one command."""

import importlib.util
import runpy
from pathlib import Path

import pytest

from lipspline.models import load, save
from lipspline.networks import denoiser

DOCS = Path(__file__).resolve().parent.parent / "docs"
TOLD = {
    "noise": 15, "run": "mine-laptop", "trained": {}, "seed": 0, "data": "", "licence": "", "scores": {},
    "validation": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def publish():
    spec = importlib.util.spec_from_file_location("publish_denoiser", DOCS / "publish_denoiser.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.publish


@pytest.mark.parametrize("name", ["denoiser_tables.py", "denoiser_rivals.py"])
def test_the_tables_of_the_page_show_the_shipped_weights_and_what_was_measured(name):
    script = runpy.run_path(str(DOCS / name))
    assert script["PAGE"].read_text() == script["filled"](), f"Run python docs/{name}."


def test_a_trained_denoiser_is_published_under_its_activation_and_noise(tmp_path, publish):
    save(denoiser(channels=4, depth=2), tmp_path / "model.safetensors", TOLD)
    target = publish(tmp_path / "model.safetensors", tmp_path / "weights")
    assert target == tmp_path / "weights" / "lls-15.safetensors"
    assert load(target).provenance == TOLD


def test_a_denoiser_that_does_not_say_where_it_comes_from_is_not_published(tmp_path, publish):
    save(denoiser(channels=4, depth=2), tmp_path / "model.safetensors", {"noise": 15})
    with pytest.raises(ValueError, match=r"does not tell its run, trained, .* Train it with `lipspline train RECIPE`"):
        publish(tmp_path / "model.safetensors", tmp_path)
