"""A certificate belongs to one image, and says what can be proven again."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

import lipspline as ls
import sample_files
from lipspline import cli
from lipspline.formats.output import seal, to_json
from lipspline.imaging.denoise import denoise_file
from lipspline.imaging.verify import CheckOutcome, verify, verify_all


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a result of `reconstruct` from each kind of denoiser, made once."""
    folder = tmp_path_factory.mktemp("made")
    source = sample_files.write_npy(folder / "k.npy", sample_files.single_coil())
    net = sample_files.write_denoiser(folder / "net.safetensors")
    for name, model in (("file.npy", net), ("series", net), ("shipped.npy", "lls")):
        words = [
            "lipspline",
            "reconstruct",
            "mri",
            source,
            folder / name,
            "--model",
            model,
            "--max-steps",
            2,
            "--report",
        ]
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
            patch.setattr("sys.argv", [*map(str, words)])
            cli.main()
        assert not stop.value.code
    return folder


@pytest.fixture
def copy(made, tmp_path):
    """The same, to be changed."""
    import shutil

    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def outcomes(path) -> dict[str, CheckOutcome]:
    return {check.name: check.outcome for check in verify(path).checks}


@pytest.mark.parametrize("name", ["file.npy", "series", "shipped.npy"])
def test_a_result_as_it_was_written_holds_in_every_point(name, made):
    assert set(outcomes(made / name).values()) == {CheckOutcome.HOLDS}
    assert verify(made / name).holds


def test_the_bound_is_computed_again_from_the_weights(made, copy):
    claimed = json.loads((made / "shipped.npy.json").read_text())["prior"]["certificate"]
    bound = next(check for check in verify(made / "shipped.npy").checks if check.name == "bound")
    assert f"{claimed:.9f} computed again, {claimed:.9f} claimed" in bound.detail
    document = json.loads((copy / "shipped.npy.json").read_text())
    document["prior"]["certificate"] = 0.5
    (copy / "shipped.npy.json").write_bytes(to_json(seal(document)))
    assert outcomes(copy / "shipped.npy")["bound"] is CheckOutcome.FAILS


def test_an_image_that_does_not_fit_its_measurements_is_said_to_be_doubtful(copy):
    """As it was found when it was made; the certificate is still its own."""
    path = copy / "file.npy.json"
    document = json.loads(path.read_text())
    document["slices"][0]["misfit"] = {"value": 0.25, "noise": 0.003, "explained": False}
    path.write_bytes(to_json(seal(document)))
    found = verify(copy / "file.npy")
    assert outcomes(copy / "file.npy")["data fit"] is CheckOutcome.DOUBTFUL
    assert found.holds
    assert "up to 0.25 of the data" in str(found)
    assert "it does not fit the measurements" in str(found)


def test_a_fit_that_was_doubtful_is_said_to_be(copy):
    path = copy / "file.npy.json"
    document = json.loads(path.read_text())
    document["slices"][0]["misfit"] |= {"value": 0.013, "noise": 0.0056, "explained": True, "verdict": "doubtful"}
    path.write_bytes(to_json(seal(document)))
    found = verify(copy / "file.npy")
    assert outcomes(copy / "file.npy")["data fit"] is CheckOutcome.DOUBTFUL
    assert found.holds
    assert "noise explained only a part of the misfit of 1 of 3 slice(s), up to 0.013 of the data" in str(found)
    del document["slices"][0]["misfit"]["verdict"]  # as earlier versions wrote it
    path.write_bytes(to_json(seal(document)))
    assert outcomes(copy / "file.npy")["data fit"] is CheckOutcome.HOLDS


@pytest.fixture
def own_input(copy):
    """A result whose certificate names the input in the copy."""
    path = copy / "file.npy.json"
    document = json.loads(path.read_text())
    document["inputs"] = {str(copy / Path(name).name): state for name, state in document["inputs"].items()}
    path.write_bytes(to_json(seal(document)))
    assert {Path(name).name for name in document["inputs"]} == {"k.npy", "net.safetensors"}
    return copy


def test_an_input_that_has_changed_is_told_and_the_result_stands(own_input):
    assert outcomes(own_input / "file.npy")["input"] is CheckOutcome.HOLDS
    sample_files.write_npy(own_input / "k.npy", 2 * sample_files.single_coil())  # of the same size
    found = verify(own_input / "file.npy")
    check = next(check for check in found.checks if check.name == "input")
    assert check.outcome is CheckOutcome.CHANGED
    assert check.detail == f"not what it was when it was read: {own_input / 'k.npy'}"
    assert found.holds
    assert "The input is another one now" in str(found)


def test_an_input_that_is_not_here_is_not_checked(own_input):
    (own_input / "k.npy").unlink()
    assert outcomes(own_input / "file.npy")["input"] is CheckOutcome.UNCHECKED
    assert verify(own_input / "file.npy").holds


@pytest.mark.parametrize(
    ("prior", "words"), [("ridge", "of the gradient of the energy <="), ("lls", "of the denoiser <=")]
)
def test_what_is_denoised_has_its_input_in_the_certificate_and_its_bound_is_named(prior, words, tmp_path):
    source = tmp_path / "in.npy"
    np.save(source, np.random.default_rng(0).random((32, 32), dtype=np.float32))
    done = denoise_file(source, tmp_path / "out.npy", noise=15, model=prior)
    assert "the result changes at most " in str(done)
    found = {check.name: check for check in verify(tmp_path / "out.npy").checks}
    assert found["input"].outcome is CheckOutcome.HOLDS
    assert f"Lipschitz constant {words}" in found["bound"].detail
    np.save(source, np.zeros((32, 32), np.float32))
    assert outcomes(tmp_path / "out.npy")["input"] is CheckOutcome.CHANGED


def test_a_page_that_was_not_sent_along_is_not_checked(copy):
    (copy / "file.npy.html").unlink()
    assert outcomes(copy / "file.npy")["page"] is CheckOutcome.UNCHECKED
    assert verify(copy / "file.npy").holds


def test_the_certificate_may_be_given_for_its_image(made):
    assert verify(made / "file.npy.json") == verify(made / "file.npy")


def move(folder, old, new):
    (folder / old).rename(folder / new)


RENAMED = {
    "both": (("file.npy", "knee.npy"), ("file.npy.json", "knee.npy.json")),
    "the image only": (("file.npy", "knee.npy"),),
    "the certificate only": (("file.npy.json", "proof.json"),),
    "differently": (("file.npy", "knee.npy"), ("file.npy.json", "proof.json"), ("file.npy.html", "knee.npy.html")),
    "a folder and its certificate": (("series", "knee"), ("series.json", "knee.json")),
    "a folder only": (("series", "knee"),),
}


@pytest.mark.parametrize("which", RENAMED)
def test_a_result_that_was_renamed_is_known_by_its_checksum(which, copy):
    for old, new in RENAMED[which]:
        move(copy, old, new)
    folder = RENAMED[which][0][0].startswith("series")
    image = copy / ("knee" if folder else "knee.npy" if (copy / "knee.npy").exists() else "file.npy")
    found = verify(image)
    assert found.holds, str(found)
    assert outcomes(image)["files"] is CheckOutcome.HOLDS
    assert f"it was written as {'series' if folder else 'file.npy'}" in str(found)
    certificate = next(name for _, name in (*RENAMED[which], (0, "file.npy.json")) if name.endswith(".json"))
    if not folder:
        assert verify(copy / certificate).output == str(image)


def test_a_renamed_result_that_was_changed_fails(copy):
    move(copy, "file.npy", "knee.npy")
    move(copy, "file.npy.json", "knee.npy.json")
    image = np.load(copy / "knee.npy")
    np.save(copy / "knee.npy", image + 1)
    found = verify(copy / "knee.npy")
    assert not found.holds
    assert "knee.npy is not the file that was written as file.npy: its SHA-256 differs" in str(found)


def test_an_image_with_the_certificate_of_another_is_told_which_is_its_own(copy):
    move(copy, "file.npy", "spare.npy")
    move(copy, "shipped.npy", "file.npy")
    found = verify(copy / "file.npy")
    assert not found.holds
    assert "shipped.npy.json is the certificate of file.npy" in str(found)
    (copy / "shipped.npy.json").unlink()
    (copy / "file.npy.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"no other file beside it is one of this image.* put both into one"):
        verify(copy / "file.npy")


def test_several_are_checked_at_once_and_each_once(copy, monkeypatch, capsys):
    (copy / "notes.txt").write_text("nothing")
    everything = sorted(copy.iterdir())
    names = [Path(one.output).name for one in verify_all([*everything, copy / "file.npy"])]
    assert sorted(names) == ["file.npy", "k.npy", "net.safetensors", "notes.txt", "series", "shipped.npy"]
    for words, code in (("'file.npy' 'series'", 0), ("'*.npy'", 1)):
        arguments = [str(copy / word.strip("'")) for word in words.split()]
        monkeypatch.setattr("sys.argv", ["lipspline", "verify", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert (stop.value.code or 0) == code
        out = capsys.readouterr().out
        assert ("2 results, 2 of them with a certificate that holds." in out) == (code == 0)
        assert (f"3 results, 2 of them with a certificate that holds; not: {copy / 'k.npy'}." in out) == (code == 1)
    monkeypatch.setattr("sys.argv", ["lipspline", "verify", str(copy / "file.npy"), str(copy / "series"), "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    document = json.loads(capsys.readouterr().out)
    assert document["holds"]
    assert [Path(one["output"]).name for one in document["results"]] == ["file.npy", "series"]


def other_pixel(folder):
    image = np.load(folder / "file.npy")
    image[0, 0, 0] += 1
    np.save(folder / "file.npy", image)


DAMAGES = {
    "a pixel": (other_pixel, "file.npy", "files"),
    "no image": (lambda folder: (folder / "file.npy").unlink(), "file.npy", "files"),
    "another image": (lambda folder: (folder / "shipped.npy").replace(folder / "file.npy"), "file.npy", "files"),
    "another certificate": (
        lambda folder: (folder / "shipped.npy.json").replace(folder / "file.npy.json"),
        "file.npy",
        "files",
    ),
    "a page": (lambda folder: (folder / "file.npy.html").write_text("better"), "file.npy", "files"),
    "a slice more": (lambda folder: (folder / "series" / "0004.dcm").touch(), "series", "files"),
    "a slice less": (lambda folder: (folder / "series" / "0002.dcm").unlink(), "series", "files"),
    "a number": (
        lambda folder: (folder / "file.npy.json").write_text(
            (folder / "file.npy.json").read_text().replace('"guaranteed": true', '"guaranteed": false')
        ),
        "file.npy",
        "certificate",
    ),
    "no JSON": (lambda folder: (folder / "file.npy.json").write_text("{"), "file.npy", "certificate"),
    "interrupted": (lambda folder: (folder / "file.npy.parts").mkdir(), "file.npy", "finished"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_seen(damage, copy):
    harm, name, check = DAMAGES[damage]
    harm(copy)
    assert outcomes(copy / name)[check] is CheckOutcome.FAILS
    assert not verify(copy / name).holds


def test_weights_that_have_changed_or_gone_are_told_and_not_believed(copy):
    document = json.loads((copy / "file.npy.json").read_text())
    for source in ("nothing.safetensors", "relu"):
        document["prior"]["source"] = source
        (copy / "file.npy.json").write_bytes(to_json(seal(document)))
        assert outcomes(copy / "file.npy")["bound"] is CheckOutcome.UNCHECKED
    assert verify(copy / "file.npy").holds


def test_the_command_ends_with_0_or_1_and_prints_json(copy, monkeypatch, capsys):
    for expected in (0, 1):
        monkeypatch.setattr("sys.argv", ["lipspline", "verify", str(copy / "file.npy"), "--json"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert (stop.value.code or 0) == expected
        assert json.loads(capsys.readouterr().out)["holds"] is (expected == 0)
        (copy / "file.npy").write_text("other")
    monkeypatch.setattr("sys.argv", ["lipspline", "verify", str(copy / "nothing.npy")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "There is no certificate" in capsys.readouterr().err


VALUES = (
    None,
    True,
    -1,
    1e308,
    "x",
    "../../x",
    "a\0b",
    "y" * 5000,
    [],
    {},
    [[]],
    {"certificate": {}},
    [5],
    {"": {"": 0}},
)


def _changed(document, random):
    """The document with something else in one place."""
    parent, key = document, random.choice(("files", "prior", "versions", "slices", "guaranteed"))
    while isinstance(parent[key], (dict, list)) and parent[key] and random.random() < 0.7:
        parent = parent[key]
        key = random.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    if random.random() < 0.2 and isinstance(parent, dict):
        parent.pop(key)
    else:
        parent[key] = random.choice(VALUES)
    return document


def test_whatever_a_certificate_holds_there_is_an_answer(copy):
    """Whoever writes a certificate can write its checksum, too: 100 with something odd in one place."""
    path, random = copy / "file.npy.json", Random(0)
    original = path.read_text()
    failed = 0
    for _ in range(100):
        path.write_bytes(to_json(seal(_changed(json.loads(original), random))))
        found = verify(copy / "file.npy")
        failed += not found.holds
        assert len(str(found)) < 20_000
        assert json.dumps(found.document())
    assert 20 < failed < 100  # some fields are only words


def test_a_pair_of_bart_is_verified_by_either_name_and_renamed(tmp_path):
    done = ls.reconstruct(sample_files.single_coil(), prior="tv", max_steps=3)
    done.save(tmp_path / "o.cfl")
    assert verify(tmp_path / "o.cfl").holds
    assert verify(tmp_path / "o.hdr").holds
    for ending in (".cfl", ".hdr", ".cfl.json"):
        (tmp_path / f"o{ending}").rename(tmp_path / f"n{ending}")
    assert verify(tmp_path / "n.cfl").holds
    (tmp_path / "n.hdr").write_text("# Dimensions\n1 1\n")
    assert not verify(tmp_path / "n.cfl").holds
