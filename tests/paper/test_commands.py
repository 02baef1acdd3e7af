"""The commands `train` and `reproduce`: one document on stdout, one sentence on stderr."""

import json
import re
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from typer.testing import CliRunner

from lipspline import cli
from lipspline.paper.recipe import shipped
from lipspline.training import own_images


def write_tiny(folder):
    """A recipe of one's own with two small networks and a handful of steps."""
    text = shipped()["fig-1d"].read_text()
    text = text.replace('constraints = ["orthonormal", "spectral"]', 'constraints = ["spectral"]')
    head, rest = text.split("[base.networks.av]")
    tail = rest.split("[base.networks.lls-new]")[1]
    text = (head + "[base.networks.lls-new]" + tail).replace("points = 50", "points = 20")
    text = re.sub(r"\nnetworks = .*", "\nnetworks = { relu = { depth = 2, width = 5 }, lls-new = { depth = 2 } }", text)
    (folder / "tiny.toml").write_text(text)
    return folder


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The current folder, with that recipe in it."""
    monkeypatch.chdir(tmp_path)
    return write_tiny(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What `train` says of a job, and the folder that it names."""
    with pytest.MonkeyPatch.context() as patch:
        folder = write_tiny(tmp_path_factory.mktemp("trained"))
        patch.chdir(folder)
        command = ["train", "tiny.toml", "--scale", "smoke", "--job", "lls-new-spectral-f1", "--json"]
        document = json.loads(CliRunner().invoke(cli.app, command).stdout)
        return document, folder / document["folder"]


def test_reproduce_prints_one_document_and_writes_results_and_figures(tiny):
    """In processes of its own, two of which share the jobs."""
    command = ["reproduce", "tiny.toml", "--scale", "smoke", "--json", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "lipspline", *command], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document["jobs"]) == {"relu-spectral-f1", "lls-new-spectral-f1"}
    assert json.loads((tiny / "results" / "tiny-smoke.json").read_text()) == document
    assert (tiny / "results" / "figures" / "tiny-smoke-performance.png").is_file()


def test_train_trains_one_job_and_says_where_it_is(trained):
    document, folder = trained
    assert document["job"] == "lls-new-spectral-f1"
    assert (folder / "median-0.safetensors").is_file()


def test_train_can_be_watched_with_tensorboard_where_it_is_installed(trained, tiny):
    """The activations too, where they are learned."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    command = ["train", "tiny.toml", "--scale", "smoke", "--job", "relu-spectral-f1", "--json"]
    others = tiny / json.loads(CliRunner().invoke(cli.app, command).stdout)["folder"]
    for folder, images in ((trained[1], ["activations"]), (others, [])):
        tags = accumulator.EventAccumulator(str(folder / "tensorboard")).Reload().Tags()
        assert {"loss/model", "lr", "mse"} <= set(tags["scalars"])
        assert tags["images"] == images


def test_a_tensorboard_that_is_broken_does_not_stop_a_training(tiny, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    command = ["train", "tiny.toml", "--scale", "smoke", "--job", "relu-spectral-f1", "--json"]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 0
    assert not (tiny / json.loads(result.stdout)["folder"] / "tensorboard").exists()
    assert "TensorBoard needs torch" in caplog.text


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("reproduce fig1d", "There is no recipe 'fig1d'; did you mean 'fig-1d'?"),
        ("reproduce none.toml", "There is no file none.toml."),
        ("train tiny.toml --scale smoke", "has 2 trainings and it does not say which"),
        ("reproduce fig-1d --scale big", "scale must be one of"),
        ("train denoiser-lls-5", "takes about 75 min on two cores. To start it, name the scale: --scale laptop."),
        ("reproduce table-ct", "table-ct at the scale laptop takes about 110 min on two cores. To start it, name"),
        ("train tiny.toml --noise 5", "tiny.toml is a recipe, not a folder: --noise has no meaning for it."),
        ("train . --scale paper", ". is a folder of images: --scale has no meaning for it."),
        ("train . ", "needs the noise level and the file to write: --noise 15 --out my.safetensors."),
        ("train photos/ --noise 5", "There is no folder photos/."),
        ("train photos --noise 5", "photos is neither a folder nor a recipe."),
        ("train . --noise 5", "needs the noise level and the file to write: --out my.safetensors."),
        ("train . --noise 5 --out my.safetensors", "The folder . holds no image."),
        ("reproduce wgan-mnist --scale smoke --data nowhere", "The data folder nowhere (data) does not exist"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(command, sentence, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["lipspline", *command.split()])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_what_a_recipe_finally_is_can_be_shown():
    text = CliRunner().invoke(cli.app, ["train", "denoiser-lls-5", "--show"]).stdout
    assert tomllib.loads(text)["laptop"]["training"]["lr"] == 1.5e-3
    document = CliRunner().invoke(cli.app, ["train", "denoiser-lls-5", "--show", "--json"]).stdout
    assert json.loads(document) == tomllib.loads(text)


def test_a_folder_of_images_becomes_a_denoiser(tmp_path, monkeypatch):
    for name, value in {"CHANNELS": 4, "DEPTH": 2, "BATCH": 2}.items():
        monkeypatch.setattr(own_images, name, value)
    pixels = np.random.default_rng(0)
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", pixels.integers(0, 256, (64, 64), dtype=np.uint8))
    out = tmp_path / "my.safetensors"
    command = ["train", str(tmp_path), "--noise", "10", "--out", str(out), "--steps", "2", "--json"]
    for _ in range(2):  # the second time it is finished
        done = CliRunner().invoke(cli.app, command)
        assert done.exit_code == 0, done.stderr
        document = json.loads(done.stdout)
        assert (document["noise"], document["range"], document["file"]) == (10, [0, 1], str(out))
        assert document["certificate"] <= 1


def test_the_list_is_there_without_a_recipe():
    listing = json.loads(CliRunner().invoke(cli.app, ["reproduce", "--json"]).stdout)
    assert {"fig-1d", "w1-mixtures", "w1-mnist", "wgan-mnist"} <= listing.keys()


def test_two_trainings_of_one_job_do_not_meet(tiny):
    """The second is told about the first; afterwards no lock is left."""
    from lipspline._infra.files import locked

    command = ["train", "tiny.toml", "--scale", "smoke", "--job", "relu-spectral-f1", "--json"]
    lock = tiny / "runs" / "tiny-smoke" / "relu-spectral-f1.lock"
    with locked(lock, "it"):
        result = CliRunner().invoke(cli.app, command)
        assert "is being written by another lipspline, process" in str(result.exception)
    assert CliRunner().invoke(cli.app, command).exit_code == 0
    assert not lock.exists()


def test_a_training_that_was_too_short_to_denoise_says_so(tmp_path, monkeypatch):
    for name, value in {"CHANNELS": 4, "DEPTH": 2, "BATCH": 2}.items():
        monkeypatch.setattr(own_images, name, value)
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full((64, 64), 60 * number + 60, np.uint8))
    out = tmp_path / "my.safetensors"
    command = ["train", str(tmp_path), "--noise", "1", "--out", str(out), "--steps", "1"]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0, done.stderr
    assert "It makes noisy images worse: train longer, with another name and more steps than 1." in done.stdout
    assert "Use it" not in done.stdout
    assert json.loads(CliRunner().invoke(cli.app, [*command, "--json"]).stdout)["denoises"] is False
