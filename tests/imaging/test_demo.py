"""The demo on small images: everything it promises, in seconds."""

import json

import pytest
import torch
from typer.testing import CliRunner

from lipspline import cli, models
from lipspline.imaging import demo
from lipspline.priors import denoisers

pytest.importorskip("matplotlib")


@pytest.fixture
def shipped(monkeypatch, tmp_path):
    """As if two small denoisers shipped."""
    torch.manual_seed(0)
    files = {(name, 15): tmp_path / f"{name}-15.safetensors" for name in ("lls", "relu")}
    for (name, _), path in files.items():
        models.save(models.denoiser(name, channels=4, depth=2), path, {"noise": 15})
    monkeypatch.setattr(denoisers, "available", lambda: files)
    scans = demo.demo_scans(24)
    monkeypatch.setattr(demo, "demo_scans", lambda: scans)


def test_it_compares_reconstructs_and_writes_a_report(shipped, tmp_path):
    """[eq:pnp_fbs, eq:EstForward]: convergence and stability on both scans."""
    result = CliRunner().invoke(cli.app, ["demo", "--folder", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["report"] == str(tmp_path / "out" / "report.html")
    assert [found["title"][:3] for found in document["comparisons"]] == ["MRI", "Spa"]
    for found in document["comparisons"]:
        assert [method["name"] for method in found["methods"]] == [
            "Minimum with tv",
            "Minimum with ridge-adaptive",
        ]
        assert all(method["guaranteed"] for method in found["methods"])
        assert found["stable"]
        assert found["direct"]["psnr"] > 0
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "Sparse-view CT of the Shepp-Logan phantom" in page
    assert "Stability confirmed" in page


def test_the_table_is_short(shipped, tmp_path):
    result = CliRunner().invoke(cli.app, ["demo", "--folder", str(tmp_path)])
    lines = result.stdout.strip().splitlines()
    assert len(lines) <= 14
    assert sum("PSNR" in line for line in lines) == 6


def test_scans_of_the_full_size_are_those_of_the_images():
    mri, ct = demo.demo_scans().values()
    assert mri.volume.slices.shape == ct.volume.slices.shape == (1, 256, 256)
    assert int(mri.undersampling.of((256, 256)).sum()) == 64


@pytest.mark.parametrize("title", list(demo.demo_scans(48)))
def test_with_the_priors_that_ship_the_last_is_far_above_the_data_alone_and_proven(title):
    """A fifth of the size of the demo."""
    found = demo.compare(title, demo.demo_scans(48)[title], lambda *_: None)
    document = found.document()
    best = document["methods"][-1]
    assert best["psnr"] > document["direct"]["psnr"] + 1
    assert best["guaranteed"]
    assert best["converged"]
    assert document["stable"]
    assert all(estimate.constant is not None for estimate in found.solved[-1].solution.certificate.estimates)
