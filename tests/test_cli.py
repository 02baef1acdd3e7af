"""The command line: one sentence and exit code 2 for an error, one JSON document where it is asked for."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import sample_files
from lipspline import cli, models


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "net.safetensors"
    models.save(models.mlp(2, 1, width=4, depth=2), path)
    return path


def run(*arguments, monkeypatch, capsys):
    """Run `main` as a shell would; returns exit code, stdout and stderr."""
    monkeypatch.setattr("sys.argv", ["lipspline", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    streams = capsys.readouterr()
    return stop.value.code or 0, streams.out, streams.err


def test_certify_prints_the_table_and_succeeds(weights, monkeypatch, capsys):
    code, out, _ = run("certify", weights, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert "Lipschitz constant <=" in out


def test_certify_fails_where_the_asked_constant_is_not_proved(weights, monkeypatch, capsys):
    code, _, err = run("certify", weights, "--lipschitz", "0.5", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 1
    assert "exceeds 0.5" in err


def test_certify_writes_one_json_document(weights):
    result = CliRunner().invoke(cli.app, ["certify", str(weights), "--json"])
    assert json.loads(result.stdout)["upper"] <= 1


@pytest.mark.parametrize("content", [b"", b"not a network", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_file_that_is_no_network_gives_one_sentence(content, tmp_path, monkeypatch, capsys):
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    code, out, err = run("certify", path, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert out == ""
    assert "odd.safetensors" in err.replace("\n", "")
    assert "Traceback" not in err


def test_a_missing_file_gives_one_sentence(tmp_path, monkeypatch, capsys):
    code, _, err = run("certify", tmp_path / "nothing", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert "There is no file" in err


def test_an_unknown_suite_is_named(monkeypatch, capsys):
    code, _, err = run("bench", "activatoins", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 2
    assert "'activations'" in err


def test_the_version_says_which_kernels_run():
    assert "kernels:" in CliRunner().invoke(cli.app, ["--version"]).stdout


def test_ctrl_c_ends_with_a_sentence_and_130(tmp_path):
    """A training that has begun: one log line is there."""
    command = [sys.executable, "-m", "lipspline", "reproduce", "fig-1d", "--workers", "1", "--threads", "1"]
    process = subprocess.Popen([*command, "--out", tmp_path], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/*/log.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "lipspline: interrupted. The same command goes on" in errors
    assert "Traceback" not in errors


def test_ctrl_c_says_which_slices_are_kept_and_how_to_go_on(tmp_path):
    source = sample_files.write_npy(tmp_path / "k.npy", np.tile(sample_files.single_coil(), (20, 1, 1)))
    command = [sys.executable, "-m", "lipspline", "reconstruct", "mri", source, tmp_path / "out.npy"]
    options = ["--prior", "tv", "--tol", "1e-7", "--max-steps", "300", "--threads", "1"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    parts, deadline = tmp_path / "out.npy.parts", time.monotonic() + 120
    while not (parts / "slice-00001.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    done = len(list(parts.glob("slice-*")))
    assert process.returncode == 130
    assert 2 <= done < 60
    assert f"{done} of 60 slice(s) are finished (number 0" in errors
    assert f"kept in {parts}. The same command does the others and writes {tmp_path / 'out.npy'}" in errors


@pytest.mark.parametrize("kind", ["mri", "ct"])
def test_the_options_of_reconstruct_are_in_groups(kind):
    text = CliRunner().invoke(cli.app, ["reconstruct", kind, "--help"], env={"COLUMNS": "120"}).stdout
    own = "Coils and phase" if kind == "mri" else "Geometry"
    groups = ["Options", "What was measured", own, "What is known about the image", "Output", "Computing"]
    places = [text.index(f"─ {name} ─") for name in groups]
    assert places == sorted(places)
    assert text[places[0] : places[1]].count("│ --") == 1, "only --help has no group"


def test_bench_names_its_suites_in_the_help():
    from lipspline.benchmarks.suites import SUITES

    text = CliRunner().invoke(cli.app, ["bench", "--help"], env={"COLUMNS": "200"}).stdout
    assert [name for name in SUITES if name not in text] == []
