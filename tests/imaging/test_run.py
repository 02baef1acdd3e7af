"""The pipeline: what `pnp.fbs` gives slice by slice, kept, continued, and forgotten."""

import json
from dataclasses import replace

import pytest
import torch

import sample_files
from lipspline.formats.volume import Volume
from lipspline.imaging import Iteration, SimulatedMRI, Strength, Undersampling, reconstruct
from lipspline.imaging.finished import Finished
from lipspline.models import load
from lipspline.pnp import fbs
from lipspline.priors import resolve

IMAGES = Volume(torch.from_numpy(sample_files.images()))
ITERATION = Iteration(tol=1e-3, max_steps=5)


@pytest.fixture(scope="module")
def strength(tmp_path_factory) -> Strength:
    path = sample_files.write_denoiser(tmp_path_factory.mktemp("net") / "net.safetensors")
    return Strength(resolve(path), load(path), "net", 0.3, "given")


def scan() -> SimulatedMRI:
    return SimulatedMRI(IMAGES, Undersampling(acceleration=2, center=0.3))


def test_each_slice_is_what_fbs_finds(strength, tmp_path):
    """[eq:pnp_fbs] in the scale of the denoiser, then back in the unit of the images."""
    result, _ = reconstruct(scan(), strength, ITERATION, tmp_path / "parts", {})
    for i, done in enumerate(result.slices):
        problem = scan().problem(i)
        solution = fbs(problem.y, problem.H, strength.denoiser, 0.3, tol=1e-3, max_steps=5, accelerate=True)
        assert torch.equal(done.image, solution.value[0, 0])
        assert done.run.residuals == solution.residuals
        torch.testing.assert_close(result.volume.slices[i], solution.value[0, 0] * problem.scale)
        assert done.quality == problem.quality(solution.value)
        assert done.certificate == solution.certificate


def test_an_interrupted_run_goes_on_where_it_stopped(strength, tmp_path):
    solved: list[int] = []

    def stop(i, progress):
        if progress is None:
            solved.append(i)
            if i == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reconstruct(scan(), strength, ITERATION, tmp_path / "parts", {"a": 1}, watch=stop)
    assert solved == [0, 1]
    calls: list[int] = []
    result, _ = reconstruct(
        scan(), strength, ITERATION, tmp_path / "parts", {"a": 1}, watch=lambda i, p: p and calls.append(i)
    )
    assert set(calls) == {2}
    whole, _ = reconstruct(scan(), strength, ITERATION, tmp_path / "other", {"a": 1})
    assert torch.equal(result.volume.slices, whole.volume.slices)
    assert [s.certificate for s in result.slices] == [s.certificate for s in whole.slices]


def test_slices_of_a_run_with_other_settings_are_not_used(strength, tmp_path):
    _, finished = reconstruct(scan(), strength, ITERATION, tmp_path, {"beta": 0.3})
    assert finished.load(0) is not None
    assert Finished(tmp_path, {"beta": 0.4}).load(0) is None
    assert Finished(tmp_path, {"beta": 0.3}).load(7) is None


def test_a_damaged_part_is_solved_again(strength, tmp_path):
    _, finished = reconstruct(scan(), strength, ITERATION, tmp_path, {})
    part = sorted(tmp_path.iterdir())[1]
    part.write_bytes(part.read_bytes()[:-7] + b"damaged")
    assert finished.load(1) is None
    calls: list[int] = []
    reconstruct(scan(), strength, ITERATION, tmp_path, {}, watch=lambda i, p: p and calls.append(i))
    assert set(calls) == {1}


def test_complex_images_are_kept_with_their_phase(strength, tmp_path):
    from lipspline.formats.kspace import Kspace
    from lipspline.imaging import MeasuredMRI

    kspace = torch.from_numpy(sample_files.single_coil()).unsqueeze(1) * 1j
    measured = MeasuredMRI(Kspace(kspace, torch.ones(sample_files.WIDTH, dtype=torch.bool)))
    result, _ = reconstruct(measured, strength, ITERATION, tmp_path, {})
    assert result.complex_images is not None
    assert result.complex_images.is_complex()
    torch.testing.assert_close(result.volume.slices, result.complex_images.abs())
    phase = (result.complex_images / result.complex_images.abs().clamp_min(1e-6))[:, 8:12, 6:10]
    torch.testing.assert_close(phase, torch.full_like(phase, 1j), atol=0.1, rtol=0)


def test_slices_that_do_not_converge_are_told(strength, tmp_path):
    result, _ = reconstruct(scan(), strength, Iteration(tol=1e-6, max_steps=2), tmp_path, {}, first=10)
    assert [done.number for done in result.unsettled] == [10, 11, 12]
    assert result.document()["converged"] is False
    assert "not converged" in result.document()["slices"][0]["reason"]


def test_the_document_is_json_with_means_over_the_slices(strength, tmp_path):
    result, _ = reconstruct(scan(), strength, ITERATION, tmp_path, {})
    document = json.loads(json.dumps(result.document(), allow_nan=False))
    psnrs = [entry["psnr"] for entry in document["slices"]]
    assert document["mean"]["psnr"] == pytest.approx(sum(psnrs) / 3)
    assert document["guaranteed"] is True
    assert document["lipschitz"] <= 1
    assert document["slices"][1]["certificate"]["guaranteed"] is True


def test_a_denoiser_that_is_not_1_lipschitz_is_refused(strength, tmp_path):
    """The hypothesis of [eq:pnp_fbs] is checked on the very network that would run."""
    from lipspline.certification import declare

    loud = replace(strength, denoiser=declare(lambda x: 2 * x, 2.0, "doubles"))
    with pytest.raises(ValueError, match="Lipschitz with constant 2"):
        reconstruct(scan(), loud, ITERATION, tmp_path / "parts", {})
    assert not (tmp_path / "parts").exists()
