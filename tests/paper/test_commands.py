"""The commands `train` and `reproduce`: one document on stdout, one sentence on stderr."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from lipspline import cli
from lipspline.paper.recipe import shipped


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A recipe of one's own with two networks and a handful of steps, in the current folder."""
    text = shipped()["fig-1d"].read_text()
    text = text.replace('constraints = ["orthonormal", "spectral"]', 'constraints = ["spectral"]')
    head, rest = text.split("[base.networks.av]")
    tail = rest.split("[base.networks.lls-new]")[1]
    (tmp_path / "tiny.toml").write_text(head + "[base.networks.lls-new]" + tail.replace("points = 50", "points = 20"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def test_train_trains_one_job_and_says_where_it_is(tiny):
    command = ["train", "tiny.toml", "--scale", "smoke", "--job", "lls-new-spectral-f1", "--json"]
    document = json.loads(CliRunner().invoke(cli.app, command).stdout)
    assert document["job"] == "lls-new-spectral-f1"
    assert (tiny / document["folder"] / "median-0.safetensors").is_file()


@pytest.mark.parametrize(("job", "images"), [("lls-new-spectral-f1", ["activations"]), ("relu-spectral-f1", [])])
def test_train_can_be_watched_with_tensorboard_where_it_is_installed(tiny, job, images):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    command = ["train", "tiny.toml", "--scale", "smoke", "--job", job, "--json"]
    folder = tiny / json.loads(CliRunner().invoke(cli.app, command).stdout)["folder"]
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
        ("reproduce wgan-mnist --scale smoke --data nowhere", "The data folder nowhere (data) does not exist"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(command, sentence, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["lipspline", *command.split()])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_the_list_is_there_without_a_recipe():
    listing = json.loads(CliRunner().invoke(cli.app, ["reproduce", "--json"]).stdout)
    assert {"fig-1d", "w1-mixtures", "w1-mnist", "wgan-mnist"} <= listing.keys()
