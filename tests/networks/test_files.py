"""Networks in files: what was written comes back, and damaged files are refused in one sentence."""

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lipspline import plain, sparsify
from lipspline._infra.files import checksum
from lipspline.models import Network, load, save
from lipspline.networks import denoiser, files, mlp
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
    assert metadata["format"] == "lipspline/2"
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
        metadata["sha256"] = files._seal(tensors, metadata)
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
    (without_a_tensor, True, "tensor '0.weight' should have shape (4, 1, 3, 3), but has None."),
    (with_another_tensor, True, "tensor '9.weight' should have shape None, but has (1,)."),
    (with_a_wrong_shape, True, "tensor '0.weight' should have shape (4, 1, 3, 3), but has (4, 1, 3, 2)."),
    (with_nan, True, "Layer '0' (Conv2d): Parameter 'bias' has 4 NaN or infinite value(s) of 4."),
    (with_a_negative_scale, True, "The scales of a FoldedSpline must be positive"),
    (with_integers, True, "tensor '0.weight' should have shape (4, 1, 3, 3), but has (4, 1, 3, 3) of type I64."),
]  # fmt: skip


@pytest.mark.parametrize(("change", "honest_checksum", "message"), DAMAGE)
def test_tampered_tensors_are_refused(tmp_path: Path, change, honest_checksum: bool, message: str):
    """By the checksum, and if that was adapted, by shapes and by the certificate that is computed again."""
    path = tmp_path / "net.safetensors"
    save(small_denoiser(), path)
    rewritten(path, change, honest_checksum)
    with pytest.raises(ValueError, match=re.escape(message)):
        load(path)


CONFIG = {"kind": "denoiser", "activation": "lls", "channels": 4, "depth": 3}


def config(**changes: object) -> dict[str, str]:
    return {"config": json.dumps({**CONFIG, **changes})}


METADATA = [
    ({"format": "pt"}, "is not a lipspline network: its format is 'pt', not 'lipspline/2'."),
    ({"format": "lipspline/3"}, "is not a lipspline network: its format is 'lipspline/3', not 'lipspline/2'."),
    ({"config": "{"}, "has damaged metadata: config is not valid JSON"),
    ({"config": "[]"}, "has damaged metadata: config must be an object, but is []."),
    ({"config": None}, "has damaged metadata: the field 'config' is missing."),
    ({"config": '{"kind": "mlp", "kind": "denoiser"}'}, "config is not valid JSON (a name occurs twice)."),
    ({"config": "[" * 10**5 + "]" * 10**5}, "config is nested too deeply."),
    ({"config": "{}"}, "kind must be one of 'denoiser', 'mlp', but is None."),
    (config(kind="unet"), "kind must be one of 'denoiser', 'mlp', but is 'unet'."),
    (config(kind="mlp"), "config has an unknown field 'channels'."),
    ({"config": '{"kind": "mlp", "width": 4}'}, "config has no n_in."),
    (config(widht=3), "config has an unknown field 'widht'."),
    (config(depth=10**7), "depth 10000000 exceeds the number of the tensors in the file, 12."),
    (config(depth=2.0), "depth must be an integer, but is 2.0."),
    (config(depth=True), "depth must be an integer, but is True."),
    (config(depth=0), "depth must be at least 1, but is 0."),
    (config(channels=10**12), "channels 1000000000000 exceeds the sizes of the tensors in the file, 50."),
    (config(kernel=10**9), "kernel 1000000000 exceeds the sizes of the tensors in the file, 50."),
    (config(colors=None), "colors must be an integer, but is None."),
    (config(colors=3), "does not fit its configuration: tensor '0.weight' should have shape (4, 3, 3, 3)"),
    (config(padding_mode="reflect"), "padding_mode must be one of 'zeros', 'circular', but is 'reflect'."),
    (config(constraint="orthonormal"), "constraint must be one of 'orthogonal', 'spectral', but is 'orthonormal'."),
    (config(method="svd"), "method must be one of"),
    (config(init=["orthogonal"]), "init must be one of"),
    (config(activation="gelu"), "activation must be one of"),
    (config(activation_options=[1]), "activation_options must be an object, but is [1]."),
    (config(activation_options={"regions": 10**10}), "regions 10000000000 exceeds the sizes of the tensors"),
    (config(activation_options={"radius": 0}), "radius must be a positive finite number, but is 0."),
    (config(activation_options={"radius": 10**400}), "radius must be a positive finite number, but is 1000"),
    (config(activation_options={"slope": 1}), "slope must be a pair (low, high), but is 1."),
    (config(activation_options={"shared": "yes"}), "shared must be true or false, but is 'yes'."),
    (config(activation_options={"channel_dim": 7}), "channel_dim must be 1 or -1, but is 7."),
    (config(activation_options={"size": 2}), "activation_options has an unknown field 'size'."),
    (config(averaged=1.5), "averaged must not exceed 1."),
    (config(averaged=0), "averaged must be a positive finite number, but is 0."),
    ({"certificate": None}, "has damaged metadata: the field 'certificate' is missing."),
    ({"certificate": "{}"}, "has damaged metadata: certificate has no upper bound."),
    ({"certificate": "0.5"}, "has damaged metadata: certificate must be an object, but is 0.5."),
    ({"certificate": '{"upper": "1"}'}, "the upper bound of the certificate must be a positive finite number"),
    ({"certificate": '{"upper": Infinity}'}, "the upper bound of the certificate must be a positive finite number"),
    ({"certificate": '{"upper": 0.5}'}, "promises the Lipschitz constant 0.5, but its layers only prove"),
    ({"provenance": None}, "has damaged metadata: the field 'provenance' is missing."),
    ({"provenance": "null"}, "provenance must be an object, but is None."),
    ({"provenance": "[1, 2]"}, "provenance must be an object, but is [1, 2]."),
    ({"provenance": '{"noise": 0}'}, "noise must be a positive finite number, but is 0."),
    ({"provenance": '{"noise": NaN}'}, "noise must be a positive finite number, but is nan."),
    ({"provenance": '{"noise": true}'}, "noise must be a positive finite number, but is True."),
    ({"provenance": '{"trained": {"noise": "15"}}'}, "noise must be a positive finite number, but is '15'."),
    ({"provenance": '{"a": ' + "[" * 40 + "]" * 40 + "}"}, "provenance is nested more than 32 levels deep."),
]


@pytest.mark.parametrize(("changes", "message"), METADATA, ids=range(len(METADATA)))
def test_metadata_outside_the_schema_is_refused_though_its_checksum_fits(tmp_path: Path, changes, message: str):
    """One sentence, at once, whatever is wrong with it."""
    path = tmp_path / "net.safetensors"
    save(small_denoiser(), path)
    tensors, metadata = read(path)
    metadata = {key: value for key, value in {**metadata, **changes}.items() if value is not None}
    metadata["sha256"] = files._seal(tensors, metadata)
    save_file(tensors, path, metadata)
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        load(path)
    assert len(str(refusal.value)) < 400 + len(str(path))


@pytest.mark.parametrize(
    "changes",
    [
        config(padding_mode="circular"),
        {"certificate": '{"upper": 2.0}'},
        {"provenance": '{"noise": 5}'},
        {"sha256": None},
        {"sha256": "0" * 64},
        {"licence": "mine"},
        {"format": "lipspline/1"},
    ],
)
def test_any_change_of_the_metadata_breaks_the_checksum(tmp_path: Path, changes: dict[str, str | None]):
    """Also one that fits the tensors: padding, the promise, the noise level."""
    path = tmp_path / "net.safetensors"
    save(small_denoiser(), path, {"noise": 15})
    tensors, metadata = read(path)
    metadata = {key: value for key, value in {**metadata, **changes}.items() if value is not None}
    save_file(tensors, path, metadata)
    with pytest.raises(ValueError, match=r"was changed after it was written: its checksum does not match\.$"):
        load(path)


def test_files_of_the_first_format_are_still_read(tmp_path: Path):
    """Their checksum covers the tensors only."""
    path = tmp_path / "net.safetensors"
    model = small_denoiser()
    save(model, path, {"noise": 15})
    tensors, metadata = read(path)
    save_file(tensors, path, {**metadata, "format": "lipspline/1", "sha256": checksum(tensors)})
    x = torch.rand(1, 1, 8, 8)
    torch.testing.assert_close(load(path)(x), model(x), atol=2e-6, rtol=2e-6)
    tensors["0.bias"] = tensors["0.bias"] + 1
    save_file(tensors, path, {**metadata, "format": "lipspline/1", "sha256": checksum(read(path)[0])})
    with pytest.raises(ValueError, match="checksum does not match"):
        load(path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_networks_in_other_precisions_come_back_in_them(tmp_path: Path, dtype: torch.dtype):
    model = plain(small_denoiser()).to(dtype)
    assert isinstance(model, Network)
    save(model, tmp_path / "net.safetensors")
    again = load(tmp_path / "net.safetensors")
    assert {tensor.dtype for tensor in again.state_dict().values()} == {dtype}
    x = torch.rand(1, 1, 8, 8, dtype=dtype)
    assert torch.equal(again(x), model(x))


def test_numbers_of_strange_or_several_types_are_refused(tmp_path: Path):
    path = tmp_path / "net.safetensors"
    save(small_denoiser(), path)
    tensors, metadata = read(path)
    for dtype, message in [
        (torch.float8_e4m3fn, "should have shape (4, 1, 3, 3), but has (4, 1, 3, 3) of type F8_E4M3."),
        (torch.float64, "mixes numbers of several types: F32, F64."),
        (torch.complex64, "of type C64."),
        (torch.bool, "of type BOOL."),
    ]:
        changed = {**tensors, "0.weight": tensors["0.weight"].to(dtype)}
        save_file(changed, path, {**metadata, "sha256": files._seal(changed, metadata)})
        with pytest.raises(ValueError, match=re.escape(message)):
            load(path)


def test_colour_and_one_layer_networks_come_back(tmp_path: Path):
    for model in (small_denoiser(colors=3), denoiser(depth=1), mlp(2, 3, depth=1, width=99)):
        save(model, tmp_path / "net.safetensors")
        x = torch.rand(2, 3, 8, 8) if model.config.get("colors") == 3 else torch.rand(2, 1, 8, 8)
        x = torch.rand(2, 2) if model.config["kind"] == "mlp" else x
        torch.testing.assert_close(load(tmp_path / "net.safetensors")(x), model(x), atol=2e-6, rtol=2e-6)


# A hunt: valid files with mutated metadata

STRANGE = [
    *(None, True, False, 0, -1, 1, 2, 3, 4, 7, 50, 10**7, 10**30, -(10**30), 0.5, -0.0, 1e308, math.nan, math.inf),
    *(
        "",
        "lls",
        "gs",
        "zeros",
        "x" * 5000,
        "\x00",
        "\ud800",
        [],
        [[]],
        [1],
        [-1, 1],
        [1, -1],
        {},
        {"a": {}},
        [None] * 9,
    ),
]


def mutated(metadata: dict[str, str], random: Random) -> dict[str, str]:
    """Metadata with one to three changes: values, names, types, text, nesting."""
    for _ in range(random.randint(1, 3)):
        field = random.choice([*metadata, "config", "config", "provenance"])
        text = metadata.get(field, "{}")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        match random.randrange(6):
            case 0:
                text = (
                    "".join(random.sample(text, len(text))) if random.random() < 0.2 else text[: random.randrange(99)]
                )
            case 1:
                text = json.dumps(random.choice(STRANGE))
            case 2:
                text = text.replace(random.choice('",:0123456789tfn[]{}'), random.choice('",:019eE-[]{}'), 1)
            case 3:
                text = "[" * (n := random.choice([3, 40, 5000])) + text + "]" * n
            case _ if isinstance(value, dict) and value:
                owner = value
                while (
                    isinstance(owner.get(name := random.choice([*owner])), dict)
                    and owner[name]
                    and random.random() < 0.7
                ):
                    owner = owner[name]
                owner[random.choice([name, name, name, "new", "noise", "averaged"])] = random.choice(STRANGE)
                text = json.dumps(value)
        metadata = {**metadata, field: text}
    return metadata


def hunt(tmp_path: Path, count: int, seed: int) -> int:
    """Read mutated files; returns how many still hold a network. Anything but a network or a ValueError fails."""
    random, accepted, longest = Random(seed), 0, 0
    sources = []
    for i, model in enumerate((small_denoiser(), small_denoiser("gs"), trained(mlp(2, 3, width=4, depth=3)))):
        save(model, tmp_path / f"{i}.safetensors", {"noise": 15, "trained": {"noise": 15, "images": [1, 2]}})
        sources.append(read(tmp_path / f"{i}.safetensors"))
    path = tmp_path / "mutant.safetensors"
    for _ in range(count):
        tensors, metadata = random.choice(sources)
        metadata = mutated(metadata, random)
        try:
            metadata["sha256"] = files._seal(tensors, metadata)
            save_file(tensors, path, metadata)
        except UnicodeEncodeError:
            continue
        start = time.perf_counter()
        try:
            accepted += load(path).certificate is not None
        except ValueError as error:
            longest = max(longest, len(str(error)))
        assert time.perf_counter() - start < 20
    assert longest < 2000
    return accepted


def test_mutated_metadata_gives_a_network_or_one_sentence(tmp_path: Path):
    assert 0 < hunt(tmp_path, 300, seed=0) < 150


@pytest.mark.slow
def test_mutated_metadata_gives_a_network_or_one_sentence_ten_thousand_times(tmp_path: Path):
    assert 0 < hunt(tmp_path, 10_000, seed=1) < 5000


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
