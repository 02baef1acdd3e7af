"""Every recipe loads at every scale; the paper scale is the published protocol; mistakes are one sentence.

A recipe that extends another is that one with its own values merged into it.
"""

from dataclasses import replace

import pytest

from lipspline.paper import fitting
from lipspline.paper.networks import NetworkSpec
from lipspline.paper.recipe import SCALES, listing, listing_text, load, shipped, templates, whole_text

RECIPES = tuple(shipped())


def test_the_recipes_of_the_expressivity_section_are_shipped():
    assert {"fig-1d", "w1-mixtures", "w1-mnist", "wgan-mnist"} <= set(RECIPES)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_loads_at_every_scale_and_has_jobs_with_names_of_their_own(name, scale):
    recipe = load(name, scale)
    jobs = recipe.experiment.jobs(recipe.settings)
    names = [job.name for job in jobs]
    assert len(set(names)) == len(names) > 0
    assert all(job.steps >= 1 or job.spec.start is not None for job in jobs)
    if scale == "paper":
        assert recipe.differs == {}
    else:  # table-regions looks at the networks of table-denoising, and it is those that differ
        assert recipe.differs or (name, scale) == ("table-regions", "laptop")


def test_the_paper_scale_of_the_fits_is_the_published_protocol():
    """[fig:1d_performances]"""
    settings = load("fig-1d").settings
    protocol = settings.protocol
    assert (protocol.seeds, protocol.epochs, protocol.batch) == (25, 1000, 10)
    assert (protocol.points, protocol.test_points, protocol.init) == (1000, 10000, "kaiming")
    sizes = {name: (spec.depth, spec.width) for name, spec in settings.networks.items()}
    small = {"av": (8, 20), "prelu": (8, 20), "hh": (8, 20), "gs": (7, 20), "lls-new": (4, 10), "lls-old": (4, 10)}
    assert sizes == {"relu": (10, 50), **small}
    assert settings.networks["gs"].options == {"size": 5}
    assert settings.networks["prelu"].options == {"init": "abs"}
    assert settings.networks["lls-new"].options == {"radius": 0.5, "regions": 100, "init": "relu"}
    assert settings.networks["lls-new"].tv2_weight == 1e-7
    assert settings.networks["lls-new"].lr == dict.fromkeys(("f1", "f2", "f3"), 2e-3)
    assert settings.networks["hh"].lr == {"f1": 4e-3, "f2": 4e-3, "f3": 1e-3}
    panels = [(job.network, job.constraint, function) for job in fitting.jobs(settings) for function in job.functions]
    assert len(panels) == len(set(panels)) == 42


def test_the_paper_scale_of_the_mixtures_is_the_published_protocol():
    """[tab:wasserstein_bigaussian]"""
    recipe = load("w1-mixtures")
    settings, training = recipe.settings, recipe.settings.training
    assert settings.dimensions == (5, 10, 20)
    assert (training.steps, training.lr, training.batch, training.schedule) == (10000, 5e-3, 4096, "constant")
    assert (settings.estimate.samples, settings.estimate.runs) == (100_000, 5)
    specs = {
        (job.pair.dimension, job.network): job.spec
        for job in recipe.experiment.jobs(settings)
        if job.pair.kind == "mixture" and not job.discrete
    }
    sizes = {name: (spec.depth, spec.width) for (_, name), spec in specs.items()}
    assert sizes == {"relu": (30, 1024)} | dict.fromkeys(("av", "prelu", "gs", "hh", "lls"), (10, 2048))
    assert specs[5, "lls"].options == {"regions": 50, "radius": 1.0, "init": "relu"}
    assert specs[10, "lls"].options == {"regions": 100, "radius": 5.0, "init": "relu"}
    assert specs[20, "lls"].options == {"regions": 100, "radius": 10.0, "init": "maxmin"}
    assert [specs[n, "gs"].options["size"] for n in (5, 10, 20)] == [2, 4, 2]
    assert [specs[n, "prelu"].options["init"] for n in (5, 10, 20)] == ["relu", "relu", "maxmin"]
    assert specs[20, "lls"].tv2_weight == 1e-10


def test_the_paper_scale_of_the_digits_is_the_published_protocol():
    """[tab:wasserstein_results, tab:inception_scores]"""
    recipe = load("w1-mnist")
    settings = recipe.settings
    assert (settings.depths, settings.runs, settings.epochs, settings.lr) == ((3, 5, 7), 5, 2000, 2e-3)
    assert (settings.images, settings.test_images) == (54000, 10000)
    specs = {(job.spec.depth, job.network): job.spec for job in recipe.experiment.jobs(settings)}
    assert {spec.width for spec in specs.values()} == {1024}
    assert [specs[depth, "gs"].options["size"] for depth in (3, 5, 7)] == [8, 2, 2]
    assert [specs[depth, "lls"].options["init"] for depth in (3, 5, 7)] == ["abs", "maxmin", "maxmin"]
    assert specs[5, "lls"].options | {"init": ""} == {"regions": 20, "radius": 0.15, "init": ""}
    gan = load("wgan-mnist").settings
    assert (gan.critic.fine, gan.critic.coarse, gan.critic.width) == (64, 128, 1024)
    assert gan.networks["lls"].options == {"regions": 20, "radius": 0.1, "init": "abs"}
    assert gan.networks["lls"].tv2_weight == 1e-6


def test_the_published_numbers_are_at_hand():
    expect = load("w1-mixtures", "smoke").expect
    assert expect.tables["mixtures"]["20"]["gs"] == (13.251, 0.012)
    assert load("wgan-mnist").expect.tables["scores"]["score"]["lls"] == (2.38,)


@pytest.fixture
def variant(tmp_path):
    """Write a variant of the shipped fig-1d recipe, and return its path."""

    def write(old: str, new: str):
        text = shipped()["fig-1d"].read_text()
        assert text.count(old) == 1
        path = tmp_path / "mine.toml"
        path.write_text(text.replace(old, new))
        return path

    return write


def test_a_recipe_of_ones_own_is_a_file(variant):
    recipe = load(variant("seeds = 10\n", "seeds = 3\n"), "laptop")
    assert (recipe.name, recipe.settings.protocol.seeds) == ("mine", 3)
    assert recipe.differs["protocol.seeds"] == (3, 25)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("seeds = 10\n", "sedes = 10\n", "mine.toml: laptop.protocol has the unknown key 'sedes'; did you mean"),
        ("knots = 9 ", "knot = 9 ", "mine.toml: base.protocol has the unknown key 'knot'; did you mean 'knots'?"),
        ("seeds = 10\n", 'seeds = "ten"\n', "mine.toml: laptop.protocol.seeds must be a whole number, but is 'ten'."),
        ("batch = 10\n", "", "mine.toml: laptop.protocol.batch is missing; give a whole number."),
        ("batch = 10\n", "batch = 7\n", "laptop.protocol: batch 7 must divide the number of training points"),
        ("options = { size = 5 }", "options = { sice = 5 }", "has no option 'sice'; did you mean 'size'?"),
        ('experiment = "fitting"', 'experiment = "fiting"', "unknown experiment 'fiting'; did you mean 'fitting'?"),
        ("lls-best =", "lls-bets =", "unknown claim 'lls-bets'; did you mean 'lls-best'?"),
        ("[paper]\n", "", "mine.toml: paper is missing; give a table."),
        (", f3 = 1e-3 }\n\n[base.networks.av]", "}\n\n[base.networks.av]", "relu.lr has no learning rate for f3"),
    ],
)
def test_a_mistake_in_a_recipe_is_one_sentence(variant, old, new, sentence):
    with pytest.raises(ValueError) as error:
        load(variant(old, new), "laptop")
    assert sentence in str(error.value)


def test_an_unknown_recipe_or_scale_names_the_known_ones():
    with pytest.raises(ValueError, match="There is no recipe 'fig1d'; did you mean 'fig-1d'"):
        load("fig1d")
    with pytest.raises(ValueError, match="scale must be one of 'smoke', 'laptop', 'paper', but is 'huge'"):
        load("fig-1d", "huge")


def test_tv2_regularizes_splines_only():
    with pytest.raises(ValueError, match="tv2_weight regularizes splines, but the activation is 'relu'"):
        NetworkSpec(activation="relu", depth=2, width=3, tv2_weight=1e-6)


def test_the_listing_shows_every_recipe_with_its_times():
    assert set(listing()) == set(RECIPES)
    text = listing_text()
    assert all(name in text for name in RECIPES)


# Extending


@pytest.fixture
def write(tmp_path):
    """Write TOML files into a fresh folder, and return the path of the last one."""

    def files(**texts: str):
        for name, text in texts.items():
            (tmp_path / f"{name}.toml").write_text(text)
        return tmp_path / f"{list(texts)[-1]}.toml"

    return files


def test_a_recipe_is_what_it_extends_with_its_own_values_merged_table_by_table(write):
    mine = write(mine='extends = "denoiser-lls"\n[laptop.training]\nsteps = 7\n')
    ours, theirs = load(mine, "laptop"), load("denoiser-lls", "laptop")
    assert ours.settings.training.steps == 7
    assert replace(ours.settings.training, steps=8000) == theirs.settings.training
    assert ours.settings.networks == theirs.settings.networks
    assert (ours.title, ours.expect, ours.name) == (theirs.title, theirs.expect, "mine")
    assert load(mine).settings == load("denoiser-lls").settings


def test_a_file_beside_the_recipe_is_extended_too_and_that_one_may_extend_further(write):
    mine = write(
        base='extends = "denoiser-av-15"\n[base]\nnoises = [25]\n',
        mine='extends = "base.toml"\ntitle = "Mine"\n',
    )
    recipe = load(mine, "smoke")
    assert (recipe.title, recipe.settings.noises, list(recipe.settings.networks)) == ("Mine", (25,), ["av"])


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (
            {"a": 'extends = "b.toml"', "b": 'extends = "a.toml"'},
            "a.toml: extends closes a circle: b.toml extends a.toml extends b.toml.",
        ),
        ({"a": 'extends = "a.toml"'}, "a.toml: extends closes a circle: a.toml extends a.toml."),
        (
            {"a": 'extends = "denoiser-lsl"'},
            "a.toml: extends names the unknown recipe 'denoiser-lsl'; did you mean 'denoiser-lls'?",
        ),
        ({"a": "extends = 3"}, "a.toml: extends must be the name of a recipe, a template or a TOML file, but is 3."),
        ({"a": 'extends = "none.toml"'}, "There is no file"),
        (
            {"a": 'extends = "denoiser-lls"\n[laptop.training]\nstep = 7'},
            "a.toml: laptop.training has the unknown key 'step'; did you mean",
        ),
        (
            {"a": 'extends = "denoiser-lls"\n[laptops]'},
            "a.toml: the file has the unknown key 'laptops'; did you mean 'laptop'?",
        ),
        (
            {"b": 'extends = "denoiser-lls"\n[base]\nnoise = 7', "a": 'extends = "b.toml"'},
            "b.toml: base has the unknown key 'noise'; did you mean 'noises'?",
        ),
        ({"a": 'extends = "denoiser"'}, "a.toml: title is missing; give a string."),
        (
            {"a": 'extends = "denoiser-lls"\n[base.training]\nsteps = { a = 1 }'},
            "a.toml: base.training.steps must be a whole number",
        ),
    ],
)
def test_a_mistake_in_extending_is_one_sentence_that_names_its_file(write, texts, sentence):
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        load(write(**texts), "laptop")
    assert sentence in str(error.value)


def test_a_template_is_extended_and_not_run():
    assert not templates().keys() & shipped().keys()
    with pytest.raises(ValueError, match="There is no recipe 'denoiser'"):
        load("denoiser")


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_recipe_finally_is_can_be_printed_and_loaded_again(name, write):
    text = whole_text(name)
    assert "extends =" not in text
    mine = write(**{name: text})
    assert [load(mine, scale) for scale in SCALES] == [load(name, scale) for scale in SCALES]


def test_no_two_recipes_of_denoisers_share_most_of_their_lines():
    files = [path.read_text().splitlines() for name, path in shipped().items() if name.startswith("denoiser")]
    assert max(len(lines) for lines in files) < 25
