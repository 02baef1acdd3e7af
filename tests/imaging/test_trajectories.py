"""MRI on trajectories, from files to certified images."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import lipspline as ls
import sample_files
from lipspline import cli
from lipspline.formats import builtin
from lipspline.formats.kspace import Kspace
from lipspline.formats.volume import Volume
from lipspline.imaging.held_out import held_out
from lipspline.imaging.trajectories import (
    RadialMRI,
    TrajectoryMRI,
    along_spokes,
    covered,
    gridded_middle,
    piece,
    radial_points,
)
from lipspline.operators import NonCartesianMRI, density_compensation, radial_trajectory, simulated_maps
from lipspline.operators.mri import centred_fft, centred_ifft

pytest.importorskip("finufft")
SIZE = 64


def head(size: int = SIZE) -> torch.Tensor:
    small = torch.nn.functional.interpolate(builtin.head()[None, None], (size, size), mode="area")[0, 0]
    return small / small.max()


def measured(coils: int = 4, spokes: int = 48, noise: float = 0.002) -> tuple[Kspace, torch.Tensor]:
    """Fully measured Cartesian k-space of a head with a phase, and its coil maps."""
    rows = torch.linspace(-1, 1, SIZE)
    image = head() * torch.polar(torch.ones(SIZE, SIZE), 0.8 * rows[:, None] + 0.5 * rows)
    maps = simulated_maps(coils, (SIZE, SIZE))
    stream = torch.Generator().manual_seed(0)
    data = centred_fft(maps * image)
    data = data + noise * torch.randn(data.shape, dtype=data.dtype, generator=stream)
    return Kspace(data[None], torch.ones(SIZE, dtype=torch.bool)), maps


def test_the_density_of_radial_lines_is_their_distance():
    points = radial_trajectory(64, SIZE, golden=False)
    density, radius = density_compensation(points, (SIZE, SIZE)), points.norm(dim=-1)
    inner = (radius > 3) & (radius < 16)  # where lines lie closer than the points of a grid
    ratio = density[inner] / (radius[inner] * torch.pi / 64)
    assert 0.9 < float(ratio.mean()) < 1.1
    assert float(ratio.std()) < 0.15


def test_enough_lines_give_the_image_by_gridding():
    problem = RadialMRI(Volume(head()[None]), 200, noise=0.0).problem(0)
    axis = torch.arange(SIZE) - SIZE // 2
    disc = axis[:, None] ** 2 + axis**2 <= (SIZE // 2) ** 2  # what radial lines reach
    seen = centred_ifft(centred_fft(head().to(torch.complex64)) * disc).real
    assert float((problem.direct[0, 0] - seen).norm() / seen.norm()) < 0.02


def test_the_middle_on_a_grid_is_that_of_cartesian_kspace():
    kspace, _ = measured(noise=0.0)
    found = along_spokes(kspace, 48)
    grid = gridded_middle(
        found.data[0], found.trajectory, (SIZE, SIZE), density_compensation(found.trajectory, (SIZE, SIZE))
    )
    inside = grid[0] != 0
    assert int(inside.sum()) == covered(found.trajectory, 24) ** 2 >= 20**2
    assert float((grid - kspace.data[0])[:, inside].norm() / kspace.data[0][:, inside].norm()) < 0.01


def test_few_lines_cover_little_of_the_grid():
    assert covered(radial_points(12, (SIZE, SIZE)), 24) < covered(radial_points(48, (SIZE, SIZE)), 24) == 24
    assert covered(radial_points(48, (SIZE, SIZE)) + 60, 24) == 0


def test_whole_lines_are_held_out_and_parts_of_long_ones():
    problem = RadialMRI(Volume(head()[None]), 48).problem(0)
    kept = held_out(problem)
    assert kept is not None
    lines = kept[0, 0].view(48, 2 * SIZE)
    assert torch.equal(lines.all(dim=1), lines.any(dim=1))
    assert 6 <= int((~lines.all(dim=1)).sum()) <= 8
    assert piece(4, 256) < 256


@pytest.mark.parametrize("coils", ["espirit", "given"])
def test_measured_coils_give_an_image_better_than_gridding(coils):
    kspace, maps = measured()
    spread = along_spokes(kspace, 32)
    problem = TrajectoryMRI(spread, "espirit" if coils == "espirit" else maps[None]).problem(0)
    found = ls.reconstruct(
        spread.data,
        acquisition=ls.ScannerMRI(trajectory=spread.trajectory, size=SIZE, coils=coils if coils == "espirit" else maps),
        max_steps=200,
    )
    solved = found.slices[0]
    assert found.document()["guaranteed"]
    assert solved.misfit.explained
    truth = problem.truth
    assert truth is not None

    def error(image: torch.Tensor) -> float:
        return float((image.abs() - truth).norm() / truth.norm())

    assert error(solved.image) < 0.5 * error(problem.image(problem.direct))
    lower, upper = problem.H.norm_bounds()
    assert lower <= upper


def test_it_is_on_a_grid_what_cartesian_kspace_gives():
    """All points of a grid as a trajectory: density 1, so the same data term, and the same gridded image."""
    kspace, maps = measured(2)
    axis = torch.arange(SIZE, dtype=torch.float64) - SIZE // 2
    points = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1)
    acquisition = ls.ScannerMRI(trajectory=points, size=SIZE, coils=maps, phase="none", whiten="none")
    spread = acquisition.scan(kspace.data).problem(0)
    plain = ls.ScannerMRI(coils=maps, phase="none", whiten="none").scan(kspace.data).problem(0)
    error = (spread.direct * spread.scale - plain.direct * plain.scale).norm() / (plain.direct * plain.scale).norm()
    assert float(error) < 2e-3
    assert isinstance(spread.H, NonCartesianMRI)


def test_files_of_all_formats_give_the_image_of_the_array(tmp_path):
    data, points, maps = sample_files.on_spirals(), sample_files.spiral(), sample_files.coil_maps()
    common = {"coils": maps, "whiten": "none"}
    options = {"max_steps": 20, "strength": 1.0, "slices": slice(1, 2)}
    npz = sample_files.write_npz(tmp_path / "k.npz", kspace=data, trajectory=points, size=np.array([20, 16]))
    raw = sample_files.write_spirals(tmp_path / "k.h5", per_pixel=True)
    images = [ls.reconstruct(path, acquisition=ls.ScannerMRI(**common), **options).images for path in (npz, raw)]
    torch.testing.assert_close(
        images[1], images[0][:, 5:15], atol=1e-4, rtol=1e-4
    )  # half of the field of view is wanted


def test_other_options_are_refused():
    kspace, _ = measured()
    spread = along_spokes(kspace, 32)
    with pytest.raises(ValueError, match="without gaps"):
        along_spokes(Kspace(kspace.data, torch.arange(SIZE) % 2 == 0), 32)
    with pytest.raises(ValueError, match="size= is for k-space on a trajectory"):
        ls.ScannerMRI(size=64).scan(kspace.data)
    with pytest.raises(ValueError, match="all say what is measured"):
        ls.ScannerMRI(trajectory=spread.trajectory, spokes=3)


def test_the_conjugate_of_conjugated_data_gives_the_same_image():
    kspace, maps = measured(2)
    plain = ls.ScannerMRI(acceleration=2, center=0.2, coils=maps).scan(kspace.data).problem(0)
    turned = ls.ScannerMRI(acceleration=2, center=0.2, coils=maps, conjugate=True).scan(kspace.data.conj()).problem(0)
    torch.testing.assert_close(turned.direct, plain.direct)


def test_the_command_reads_bart_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kspace, _ = measured(2)
    spread = along_spokes(kspace, 40)
    stored = spread.data[0].permute(2, 1, 0).numpy()
    sample_files.write_cfl(tmp_path / "k.cfl", stored[None])
    points = torch.cat([spread.trajectory, torch.zeros(40, 2 * SIZE, 1)], dim=-1)
    sample_files.write_cfl(tmp_path / "t.cfl", points.permute(2, 1, 0).numpy())
    command = ["reconstruct", "mri", "k.cfl", "out.npy", "--trajectory", "t.cfl", "--max-steps", "3", "--json"]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["guaranteed"]
    assert "40 readouts of 128 samples" in document["scan"]
    assert np.load(tmp_path / "out.npy").shape == (1, SIZE, SIZE)
    assert "trajectory" in CliRunner().invoke(cli.app, ["inspect", "k.cfl"]).stdout


@pytest.mark.slow
@pytest.mark.parametrize("spokes", [32, 64])
def test_the_bounds_are_close_at_256(spokes):
    points = radial_points(spokes, (256, 256))
    H = NonCartesianMRI(points, (256, 256), weights=density_compensation(points, (256, 256)).sqrt())
    lower, upper = H.norm_bounds()
    assert lower <= upper <= 1.05 * lower
