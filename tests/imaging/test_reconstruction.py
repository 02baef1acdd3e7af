"""`ls.reconstruct`: what `pnp.fbs` gives slice by slice, kept, continued, saved; the command line gives the same."""

import json
import os
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import lipspline as ls
import sample_files
from lipspline import cli
from lipspline.formats.builtin import shepp_logan
from lipspline.imaging import Reconstruction, ScannerCT, ScannerMRI, coils, mri, reconstruction
from lipspline.imaging.cache import SliceCache
from lipspline.imaging.held_out import held_out
from lipspline.imaging.reconstruction import carry_out
from lipspline.imaging.request import Request
from lipspline.imaging.verify import verify
from lipspline.models import load
from lipspline.pnp import fbs
from lipspline.report import Agreement

THINNED = ScannerMRI(acceleration=2, center=0.3, simulate=True)
ITERATION = {"tol": 1e-3, "max_steps": 5}


@pytest.fixture(scope="module")
def net(tmp_path_factory) -> str:
    return str(sample_files.write_denoiser(tmp_path_factory.mktemp("net") / "net.safetensors"))


@pytest.fixture
def run(net):
    """`ls.reconstruct` of three images, simulated."""

    def call(data=None, **options) -> Reconstruction:
        data = sample_files.images() if data is None else data
        return ls.reconstruct(data, **{"acquisition": THINNED, "prior": net, "beta": 0.3, **ITERATION, **options})

    return call


def calls_of(run, **options) -> set[int]:
    """The slices that were solved, not found in the cache."""
    calls: list[int] = []
    run(**options, watch=lambda i, progress: progress and calls.append(i))
    return set(calls)


def test_each_slice_is_what_fbs_finds(run, net):
    """[eq:pnp_fbs] in the scale of the denoiser, then back in the unit of the images."""
    result, network = run(), load(net)
    network.grey_values = (0.0, 1.0)
    for i, done in enumerate(result.slices):
        problem = result.scan.problem(i)
        solution = fbs(problem.y, problem.H, network, 0.3, tol=1e-3, max_steps=5, accelerate=True)
        assert torch.equal(done.image, solution.value[0, 0])
        assert done.run.residuals == solution.residuals
        torch.testing.assert_close(result.images[i], solution.value[0, 0] * problem.scale)
        assert done.quality == problem.quality(solution.value)
        assert done.certificate == solution.certificate
        residual = torch.linalg.vector_norm(problem.H.forward(solution.value) - problem.y)
        assert done.misfit.value == pytest.approx(float(residual / torch.linalg.vector_norm(problem.y)))


def test_three_lines_of_python_give_what_the_command_gives_bit_for_bit(net, tmp_path, monkeypatch):
    source = sample_files.write_npy(tmp_path / "k.npy", sample_files.multi_coil())
    words = ["reconstruct", "mri", source, tmp_path / "a.nii.gz", "--prior", net, "--max-steps", 5]
    monkeypatch.setattr("sys.argv", ["lipspline", *map(str, words), "--acceleration", "1.5", "--center", "0.5"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    options = {"acquisition": ScannerMRI(acceleration=1.5, center=0.5), "prior": net, "max_steps": 5}
    ls.reconstruct(source, **options).save(tmp_path / "b.nii.gz")
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()
    result = ls.reconstruct(sample_files.multi_coil(), **options)
    ls.reconstruct(torch.from_numpy(sample_files.multi_coil()), **options).save(tmp_path / "c.nii.gz", report=True)
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "c.nii.gz").read_bytes()
    documents = [json.loads((tmp_path / f"{name}.nii.gz.json").read_text()) for name in "abc"]
    assert documents[0]["options"] == documents[1]["options"]
    assert verify(tmp_path / "c.nii.gz").holds
    assert result.report(tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_sinograms_can_be_arrays_too(net):
    result = ls.reconstruct(sample_files.sinograms(), acquisition=ScannerCT(size=16), prior=net, **ITERATION)
    assert np.corrcoef(result.images.ravel(), sample_files.images()[:, 2:18].ravel())[0, 1] > 0.9
    one = ls.reconstruct(sample_files.sinograms()[1], acquisition="ct", prior=net, **ITERATION)
    assert one.images.shape == (1, 23, 23)


def test_a_contraction_bounds_how_far_images_move(run, net):
    plain, shrunk = (run(contraction=K).slices[0] for K in (1.0, 0.9))
    problem = run().scan.problem(0)
    same = fbs(problem.y, problem.H, load(net), 0.3, tol=1e-3, max_steps=5, accelerate=True, contraction=0.9)
    assert torch.equal(shrunk.image, same.value[0, 0])
    assert plain.certificate.image_stability is None
    assert shrunk.certificate.image_stability == same.certificate.image_stability is not None


def test_strength_is_relative_to_automatic(run):
    options = {"beta": "auto", "noise": 15, "acquisition": replace(THINNED, data_noise=0.05)}
    weak, usual, same, strong = (run(**options, strength=s) for s in (0.5, "auto", 1.0, 2.0))
    assert usual.strength.weight == same.strength.weight
    assert (weak.strength.weight, strong.strength.weight) == pytest.approx(
        (usual.strength.weight / 2, usual.strength.weight * 2)
    )


def test_the_problem_of_each_slice_is_built_once_and_its_maps_are_estimated_once(net, monkeypatch):
    built, estimated = [], []
    problem, espirit = mri.MeasuredMRI.problem, coils.espirit
    monkeypatch.setattr(mri.MeasuredMRI, "problem", lambda self, i: (built.append(i), problem(self, i))[1])
    monkeypatch.setattr(coils, "espirit", lambda *a, **o: (estimated.append(1), espirit(*a, **o))[1])
    ls.reconstruct(sample_files.multi_coil(), prior=net, **ITERATION)
    assert sorted(built) == [0, 1, 2]
    assert len(estimated) == 3


# The cache


def test_an_interrupted_run_goes_on_where_it_stopped(run, tmp_path):
    solved: list[int] = []

    def stop(i, progress):
        if progress is None:
            solved.append(i)
            if i == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(cache=tmp_path / "parts", watch=stop)
    assert solved == [0, 1]
    assert calls_of(run, cache=tmp_path / "parts") == {2}
    result, whole = run(cache=tmp_path / "parts"), run()
    assert torch.equal(result.images, whole.images)
    assert [s.certificate for s in result.slices] == [s.certificate for s in whole.slices]
    assert [s.misfit for s in result.slices] == [s.misfit for s in whole.slices]


@pytest.mark.parametrize(
    "change",
    [
        {"beta": 0.4},
        {"tol": 1e-2},
        {"max_steps": 4},
        {"accelerate": False},
        {"acquisition": replace(THINNED, seed=1)},
        {"data": sample_files.images() * 2},
        {"slices": slice(1, 3)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_slices_of_another_request_are_not_used(run, tmp_path, change):
    run(cache=tmp_path)
    assert calls_of(run, cache=tmp_path) == set()
    assert len(calls_of(run, cache=tmp_path, **change)) == (2 if "slices" in change else 3)


def test_a_damaged_slice_is_solved_again(run, tmp_path):
    run(cache=tmp_path)
    part = sorted(tmp_path.iterdir())[1]
    part.write_bytes(part.read_bytes()[:-7] + b"damaged")
    assert calls_of(run, cache=tmp_path) == {1}


def test_a_slice_comes_back_as_it_was_kept(run, tmp_path):
    done, kept = run().slices[0], SliceCache(tmp_path, {"a": 1})
    kept.keep(done)
    found = kept.load(0)
    assert found is not None
    assert found.document() == done.document()
    assert SliceCache(tmp_path, {"a": 2}).load(0) is None
    assert kept.load(7) is None


def test_complex_images_are_kept_with_their_phase(net, tmp_path):
    result = ls.reconstruct(sample_files.single_coil() * 1j, prior=net, beta=0.3, **ITERATION, cache=tmp_path)
    again = ls.reconstruct(sample_files.single_coil() * 1j, prior=net, beta=0.3, **ITERATION, cache=tmp_path)
    assert torch.equal(result.images, again.images)
    torch.testing.assert_close(result.volume.slices, result.images.abs())
    phase = (result.images / result.images.abs().clamp_min(1e-6))[:, 8:12, 6:10]
    torch.testing.assert_close(phase, torch.full_like(phase, 1j), atol=0.1, rtol=0)


# What is said


def test_slices_that_do_not_converge_are_told(run):
    images = np.concatenate([np.ones_like(sample_files.images()), sample_files.images()])
    result = run(images, tol=1e-6, max_steps=2, slices=slice(3, 6))
    assert [done.number for done in result.unsettled] == [3, 4, 5]
    assert result.document()["converged"] is False
    assert "not converged" in result.document()["slices"][0]["reason"]


def test_the_document_is_json_with_means_over_the_slices(run):
    document = json.loads(json.dumps(run().document(), allow_nan=False))
    psnrs = [entry["psnr"] for entry in document["slices"]]
    assert document["mean"]["psnr"] == pytest.approx(sum(psnrs) / 3)
    assert document["guaranteed"] is True
    assert document["lipschitz"] <= 1
    assert document["slices"][1]["certificate"]["guaranteed"] is True
    assert document["slices"][1]["misfit"].keys() == {
        "value",
        "noise",
        "estimated",
        "common",
        "explained",
        "verdict",
    }


def test_a_geometry_that_does_not_fit_the_data_is_told():
    """A whole turn taken for half a turn: the misfit says so, whatever the certificate says."""
    turn = torch.arange(40) * 2 * torch.pi / 40
    geometry = ls.operators.ParallelBeamCT(48, turn, 70, spacing=1.0)
    sinogram = geometry.forward(shepp_logan(48)[None, None])[0, 0]
    sinogram += 0.02 * torch.randn(sinogram.shape, generator=torch.Generator().manual_seed(0))
    options = {"prior": "lls", "tol": 1e-3, "max_steps": 100}
    right = ls.reconstruct(sinogram, acquisition=ScannerCT(size=48, spacing=1.0, angles=turn), **options)
    wrong = ls.reconstruct(sinogram, acquisition=ScannerCT(size=48, spacing=1.0, arc=180), **options)
    assert (len(right.fitting(Agreement.UNEXPLAINED)), len(wrong.fitting(Agreement.UNEXPLAINED))) == (0, 1)
    assert wrong.slices[0].misfit.value > 5 * right.slices[0].misfit.value
    assert wrong.document()["misfit_explained"] is False


def test_a_small_error_of_the_geometry_makes_the_fit_doubtful():
    """The axis off by a third of a detector: noise could nearly be as large as the misfit, but not as even."""
    geometry = ls.operators.ParallelBeamCT(48, 90, 70, spacing=1.0)
    smooth = torch.nn.functional.avg_pool2d(shepp_logan(48)[None, None], 7, 1, 3)
    sinogram = geometry.forward(smooth)[0, 0]
    sinogram += 0.02 * torch.randn(sinogram.shape, generator=torch.Generator().manual_seed(0))
    found = {}
    for axis in (34.5, 34.8):
        scanner = ScannerCT(size=48, spacing=1.0, axis=axis)
        found[axis] = ls.reconstruct(sinogram, acquisition=scanner, prior="tv", tol=1e-3, max_steps=300)
    right, wrong = (found[axis].slices[0].misfit for axis in (34.5, 34.8))
    assert (right.fit, wrong.fit) == (Agreement.EXPLAINED, Agreement.DOUBTFUL)
    assert wrong.common > 0.5 > 0.3 > right.common
    document = found[34.8].document()
    assert (document["misfit_explained"], document["misfit_doubtful"]) == (True, True)
    assert document["slices"][0]["misfit"]["verdict"] == "doubtful"
    assert found[34.5].document()["misfit_doubtful"] is False


def test_a_denoiser_that_is_not_1_lipschitz_is_refused(run, tmp_path, monkeypatch):
    """The hypothesis of [eq:pnp_fbs] is checked on the very network that would run."""
    from lipspline.certification import declare

    choose = reconstruction.choose
    loud = declare(lambda x: 2 * x, 2.0, "doubles")
    monkeypatch.setattr(reconstruction, "choose", lambda *a, **k: replace(choose(*a, **k), served=loud))
    with pytest.raises(ValueError, match="Lipschitz with constant 2"):
        run(cache=tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


def test_saving_obeys_the_rules_of_outputs(run, tmp_path, monkeypatch):
    source = sample_files.write_npy(tmp_path / "v.npy", sample_files.images())
    result = run(source)
    with pytest.raises(ValueError, match="is the input"):
        result.save(source, force=True)
    result.save(tmp_path / "o.npy")
    with pytest.raises(FileExistsError, match="force=True"):
        result.save(tmp_path / "o.npy")
    assert result.save(tmp_path / "o.npy", force=True)["files"].keys() == {"o.npy"}
    assert sorted(os.listdir(tmp_path)) == ["o.npy", "o.npy.json", "v.npy"]


def test_carry_out_takes_a_scan_that_was_read_already(net):
    request = Request(data=sample_files.images(), acquisition=THINNED, prior=net, **ITERATION)
    scan = THINNED.scan(sample_files.images())
    assert torch.equal(carry_out(request, scan).images, carry_out(request).images)


def test_other_priors_are_compared_on_the_middle_slice(tmp_path):
    square = torch.zeros(3, 32, 32)
    square[:, 8:24, 10:22] = 1
    half = ScannerMRI(acceleration=2, center=0.2, simulate=True)
    done = ls.reconstruct(square, acquisition=half, prior="tv", compare=["wavelet", "ridge"], max_steps=5)
    alone = ls.reconstruct(square, acquisition=half, prior="wavelet", max_steps=5)
    assert [rival.strength.prior.name for rival in done.rivals] == ["wavelet", "ridge"]
    assert {rival.done.number for rival in done.rivals} == {1}
    assert torch.equal(done.rivals[0].done.image, alone.slices[1].image)
    assert [entry["prior"] for entry in done.document()["compared"]] == [r.strength.name for r in done.rivals]
    page = done.page().decode()
    assert page.count("Minimum with wavelet") >= 1


def test_priors_are_compared_by_measurements_that_are_held_out():
    """The errors are those of images that have not seen them; without a comparison nothing is held out."""
    square = torch.zeros(1, 48, 96)
    square[:, 12:36, 16:32] = 1
    half = ScannerMRI(acceleration=2, center=0.1, simulate=True)
    done = ls.reconstruct(square, acquisition=half, prior="tv", compare=["lls"], max_steps=60)
    document = done.document()
    assert done.page().decode().count('data-number="held_out"') == 2
    assert document["compared"][0]["held_out"] == asdict(done.rivals[0].held_out)
    assert document["held_out"] == asdict(done.held_out)
    problem = done.scan.problem(0)
    kept = held_out(problem)
    missing = problem.y * ~kept
    seen = float(((problem.H.forward(done.slices[0].image[None, None]) - problem.y) * ~kept).norm() / missing.norm())
    for error in (done.held_out, done.rivals[0].held_out):
        assert error.value > max(seen, 0.8 * error.noise)
    assert done.held_out.value < done.rivals[0].held_out.value  # a square is what total variation is made for
    alone = ls.reconstruct(square, acquisition=half, prior="tv", max_steps=5)
    assert alone.held_out is None
    assert "held_out" not in alone.document()
    with pytest.raises(ValueError, match="prior must be one of"):
        ls.reconstruct(square, acquisition=half, compare=["nothing"])


@pytest.mark.parametrize("prior", ["tv", "wavelet", "ridge", "ridge-weak", "ridge-adaptive"])
def test_every_energy_is_saved_and_verified(prior, tmp_path):
    square = torch.zeros(1, 32, 32)
    square[:, 8:24, 10:22] = 1
    half = ScannerMRI(acceleration=2, center=0.2, simulate=True)
    done = ls.reconstruct(square, acquisition=half, prior=prior, max_steps=5)
    document = done.save(tmp_path / "image.npy")
    assert json.loads((tmp_path / "image.npy.json").read_text())["lipschitz"] == document["lipschitz"]
    assert (document["lipschitz"] is None) == (prior in ("tv", "wavelet"))
    assert verify(tmp_path / "image.npy").holds
