"""Networks in files: what was written comes back, and damaged files are refused in one sentence."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lipspline import plain, sparsify
from lipspline.models import load, save
from lipspline.networks import mlp
from lipspline.networks.files import checksum
from lipspline.nn import FoldedSpline
from networks.small_networks import small_denoiser, trained

ACTIVATIONS = ["relu", "av", "prelu", "gs", "hh", "lls"]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_file_gives_back_the_network(tmp_path: Path, activation: str):
    """Same outputs, certificate computed again, provenance as written."""
    model = small_denoiser(activation, padding_mode="circular")
    promised = save(model, tmp_path / "net.safetensors", {"data": "none", "epochs": 3})
    again = load(tmp_path / "net.safetensors")
    x = torch.rand(2, 1, 9, 9)
    torch.testing.assert_close(again(x), model(x), atol=2e-6, rtol=2e-6)
    assert again.certificate is not None
    assert again.certificate.upper == pytest.approx(promised.upper, rel=1e-9)
    assert again.certificate.upper <= 1
    assert promised.upper <= 1
    assert again.provenance == {"data": "none", "epochs": 3}
    assert again.config == model.config
    assert not again.training


def test_dense_networks_and_options_survive(tmp_path: Path):
    """Splines with another grid, shared, in a dense network."""
    options = {"regions": 9, "radius": 0.5, "shared": True, "init": "abs", "slope": (-0.5, 1.0)}
    model = trained(mlp(3, 2, width=6, activation_options=options))
    save(model, tmp_path / "net.safetensors")
    x = torch.randn(7, 3)
    torch.testing.assert_close(load(tmp_path / "net.safetensors")(x), model(x), atol=2e-6, rtol=2e-6)


def test_a_network_that_was_read_can_be_written_again(tmp_path: Path):
    """Plain layers are saved as they are: bit for bit."""
    save(small_denoiser(), tmp_path / "one.safetensors")
    again = load(tmp_path / "one.safetensors")
    save(again, tmp_path / "two.safetensors")
    x = torch.rand(1, 1, 8, 8)
    assert torch.equal(load(tmp_path / "two.safetensors")(x), again(x))


def test_the_file_holds_no_code_and_says_what_it_is(tmp_path: Path):
    """safetensors with JSON metadata, readable by anyone."""
    model = small_denoiser()
    certificate = save(model, tmp_path / "net.safetensors")
    with safe_open(tmp_path / "net.safetensors", framework="pt") as file:
        metadata = file.metadata()
        assert set(file.keys()) == set(plain(model).state_dict())
    assert metadata["format"] == "lipspline/1"
    assert json.loads(metadata["config"])["kind"] == "denoiser"
    assert json.loads(metadata["certificate"])["upper"] == certificate.upper
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, no_space: Callable[[str], None]):
    """The file appears whole or not at all."""
    path = tmp_path / "net.safetensors"
    save(small_denoiser(), path)
    before = path.read_bytes()
    no_space(path.name)
    with pytest.raises(OSError, match="No space left"):
        save(small_denoiser("relu"), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["net.safetensors"]


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118


def rewritten(path: Path, change: Callable[[dict, dict], None], honest_checksum: bool) -> None:
    """Write the file again with some change, and, for the cunning, a checksum that fits it."""
    tensors, metadata = read(path)
    change(tensors, metadata)
    if honest_checksum:
        metadata["sha256"] = checksum(tensors)
    save_file(tensors, path, metadata)


def steeper(tensors: dict, metadata: dict) -> None:
    tensors["0.weight"] = 1.5 * tensors["0.weight"]


def without_a_tensor(tensors: dict, metadata: dict) -> None:
    del tensors["0.weight"]


def with_another_tensor(tensors: dict, metadata: dict) -> None:
    tensors["9.weight"] = torch.ones(1)


def with_a_wrong_shape(tensors: dict, metadata: dict) -> None:
    tensors["0.weight"] = tensors["0.weight"][..., :2].contiguous()


def with_nan(tensors: dict, metadata: dict) -> None:
    tensors["0.bias"] = torch.full_like(tensors["0.bias"], torch.nan)


def with_integers(tensors: dict, metadata: dict) -> None:
    tensors["0.weight"] = tensors["0.weight"].to(torch.int64)


def with_steep_slopes(tensors: dict, metadata: dict) -> None:
    tensors["1.slopes"] = 7 * tensors["1.slopes"]


def with_a_negative_scale(tensors: dict, metadata: dict) -> None:
    tensors["1.scale"] = -tensors["1.scale"]


DAMAGE = [
    (steeper, False, "was changed after it was written: its checksum does not match."),
    (steeper, True, "promises the Lipschitz constant"),
    (with_steep_slopes, True, "promises the Lipschitz constant"),
    (without_a_tensor, False, "checksum does not match"),
    (without_a_tensor, True, "tensor '0.weight' should have shape (4, 1, 3, 3), but has None."),
    (with_another_tensor, True, "tensor '9.weight' should have shape None, but has (1,)."),
    (with_a_wrong_shape, True, "tensor '0.weight' should have shape (4, 1, 3, 3), but has (4, 1, 3, 2)."),
    (with_nan, True, "Parameter '0.bias' has 4 NaN or infinite value(s) of 4."),
    (with_a_negative_scale, True, "The scales of a FoldedSpline must be positive"),
    (with_integers, True, "tensor '0.weight' should have shape (4, 1, 3, 3), but has (4, 1, 3, 3) of integers."),
]  # fmt: skip


@pytest.mark.parametrize(("change", "honest_checksum", "message"), DAMAGE)
def test_tampered_tensors_are_refused(tmp_path: Path, change, honest_checksum: bool, message: str):
    """By the checksum, and if that was adapted, by shapes and by the certificate that is computed again."""
    path = tmp_path / "net.safetensors"
    save(small_denoiser(), path)
    rewritten(path, change, honest_checksum)
    with pytest.raises(ValueError, match=re.escape(message)):
        load(path)


METADATA = [
    ({"format": "pt"}, "is not a lipspline network: its format is 'pt', not 'lipspline/1'."),
    ({"config": "{"}, "has damaged metadata"),
    ({"config": "[]"}, "has damaged metadata"),
    ({"config": '{"kind": "unet"}'}, "kind must be one of 'denoiser', 'mlp', but is 'unet'."),
    ({"config": '{"kind": "denoiser", "widht": 3}'}, "has damaged metadata"),
    ({"config": None}, "has damaged metadata"),
    ({"certificate": None}, "has damaged metadata"),
    ({"certificate": "{}"}, "has damaged metadata"),
    ({"certificate": '{"upper": 0.5}'}, "promises the Lipschitz constant 0.5, but its layers only prove"),
    ({"sha256": None}, "checksum does not match"),
]


@pytest.mark.parametrize(("changes", "message"), METADATA)
def test_tampered_metadata_is_refused(tmp_path: Path, changes: dict[str, str | None], message: str):
    """One sentence, whatever is wrong with it."""
    path = tmp_path / "net.safetensors"
    save(small_denoiser(), path)
    tensors, metadata = read(path)
    metadata = {key: value for key, value in {**metadata, **changes}.items() if value is not None}
    save_file(tensors, path, metadata)
    with pytest.raises(ValueError, match=re.escape(message)):
        load(path)


@pytest.mark.parametrize("kept", [0, 5, 100, 2000])
def test_truncated_files_are_refused(tmp_path: Path, kept: int):
    """Not a crash, and not a network of zeros."""
    path = tmp_path / "net.safetensors"
    save(small_denoiser(), path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"is not a safetensors file, or is truncated"):
        load(path)


def test_files_that_are_something_else_are_refused(tmp_path: Path):
    """A pickle, a text, nothing, a folder: nothing is ever unpickled."""
    torch.save({"weight": torch.ones(2)}, tmp_path / "net.pt")
    (tmp_path / "net.txt").write_text("weights")
    for name in ("net.pt", "net.txt"):
        with pytest.raises(ValueError, match=r"is not a safetensors file, or is truncated"):
            load(tmp_path / name)
    for name in ("absent", ""):
        with pytest.raises(ValueError, match=r"^There is no file "):
            load(tmp_path / name)


def test_only_networks_that_can_be_built_again_are_written(tmp_path: Path):
    """Any module can be certified, but a file needs a configuration."""
    wanted = "save writes networks made by models.denoiser or models.mlp, but got a Linear."
    with pytest.raises(ValueError, match="^" + re.escape(wanted)):
        save(nn.Linear(2, 2), tmp_path / "net.safetensors")  # pyright: ignore[reportArgumentType]


def test_a_network_that_started_from_a_callable_can_be_written(tmp_path: Path):
    """What the splines started as does not matter for what they are."""
    model = trained(mlp(2, 2, width=4, depth=2, activation_options={"init": torch.sin, "radius": 1.0}))
    save(model, tmp_path / "net.safetensors")
    x = torch.randn(3, 2)
    torch.testing.assert_close(load(tmp_path / "net.safetensors")(x), model(x), atol=2e-6, rtol=2e-6)


def test_folded_splines_in_a_file_are_continuous(tmp_path: Path):
    """[sec:deepspline]: what is read is continuous by construction, whatever slopes the file holds."""
    save(small_denoiser(), tmp_path / "net.safetensors")
    spline = load(tmp_path / "net.safetensors")[1]
    assert isinstance(spline, FoldedSpline)
    x = torch.linspace(-0.3, 0.3, 60001, dtype=torch.float64)[:, None].expand(-1, 4)
    ratios = (spline.double()(x).diff(dim=0) / x.diff(dim=0)).abs()
    assert float(ratios.max()) <= float(spline.slopes.abs().max()) * (1 + 1e-6)


def test_a_network_whose_layers_were_replaced_is_not_written(tmp_path):
    network = mlp(2, 1, width=4, depth=2)
    sparse, _ = sparsify(network, inputs=torch.randn(5, 2))
    with pytest.raises(ValueError, match="no longer fits it: a layer was replaced"):
        save(sparse, tmp_path / "sparse.safetensors")
    assert not (tmp_path / "sparse.safetensors").exists()
