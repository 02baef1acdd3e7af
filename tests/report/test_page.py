"""The page as text: complete, self-contained, and deaf to hostile names."""

import base64
import hashlib
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from lipspline import models
from lipspline.report import Case, DataMisfit, Picture, reconstruction_page, write_page
from lipspline.report.page import denoiser_section
from markup import HOSTILE, Reader


@pytest.fixture(scope="module")
def page(case, denoiser):
    return reconstruction_page([case, replace(case, title="Again")], denoiser=denoiser, command="lipspline demo")


def test_it_holds_everything(page, case):
    text = Reader(page).text
    for wanted in ("A square", "Again", "Zero-filled", "Certificate of Fast", "Certificate of Plain", "lipspline demo"):
        assert wanted in text
    for wanted in (
        "What is promised",
        "How it settled",
        "Tried, not only proven",
        "The bound of every layer",
        "PyTorch",
    ):
        assert wanted in text
    quality = case.quality(case.pictures[-1])
    assert f"{quality[0]:.2f}" in text
    assert f"{quality[1]:.3f}" in text
    assert "All 4 reconstructions on this page are covered by a theorem" in text


def test_it_loads_nothing(page):
    """No address but those of its own images and places."""
    addresses = [
        value
        for _, attributes in Reader(page).elements
        for name, value in attributes.items()
        if name in {"src", "href", "action", "srcset", "poster", "data"}
    ]
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert not re.search(r"https?://|url\(['\"]?(?!#)|@import", page)


def test_every_image_is_there_once(page):
    """Seven a case: four pictures and three errors."""
    sources = re.findall(r'src="(data:image/png;base64,[^"]+)"', page)
    assert len(sources) == 14


def test_ids_are_unique(page):
    ids = [attributes["id"] for _, attributes in Reader(page).elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_its_policy_allows_its_own_script_and_nothing_else(page):
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policies = [a["content"] for _, a in Reader(page).elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert "default-src 'none'" in policies[0]
    assert re.findall(r"script-src ([^;]+)", policies[0]) == [f"'sha256-{digest}'"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_names(text, case, page):
    """Titles, summaries, names of pictures and commands come from files and users."""
    pictures = tuple(replace(picture, name=text) for picture in case.pictures)
    odd = replace(case, title=text, summary=text, pictures=pictures)
    reader = Reader(reconstruction_page([odd], command=text, title=text))
    assert [name for name, _ in reader.elements].count("script") == 1
    assert not any(key.startswith("on") for _, attributes in reader.elements for key in attributes)
    assert reader.text.count(text) >= 6


def test_what_is_not_proven_is_not_praised(case):
    bare = Case("Bare", (Picture("Only", torch.rand(8, 8)),))
    assert "without a certificate" in Reader(reconstruction_page([bare])).text
    certificate = replace(case.pictures[-1].certificate, violations=("The adjoint is off.",), converged=False)
    solution = replace(case.pictures[-1].solution, certificate=certificate)
    odd = replace(case, pictures=(replace(case.pictures[-1], solution=solution),), stability=None)
    text = Reader(reconstruction_page([odd])).text
    assert "0 of 1 reconstructions on this page are covered by the theorem" in text
    for wanted in ("Convergence not proven", "Not settled", "No stability bound", "The adjoint is off."):
        assert wanted in text


def test_a_broken_stability_bound_is_shown(case):
    perturbation = case.stability.perturbations[0]
    ratios = tuple(replace(r, measured=2 * r.limit if r.limit else r.measured) for r in perturbation.ratios)
    broken = replace(case.stability, perturbations=(replace(perturbation, ratios=ratios),))
    text = Reader(reconstruction_page([replace(case, stability=broken)])).text
    assert "Stability bound broken" in text
    assert "Stability confirmed" not in text


def test_the_worst_ratio_is_the_one_shown(case):
    """[eq:EstForward]: the bar is the largest measured ratio."""
    worst = max(r.measured for p in case.stability.perturbations for r in p.ratios if r.label == "eq:EstForward")
    assert f"{worst:.3f} of at most" in Reader(reconstruction_page([case])).text


def test_a_denoiser_without_learned_activations_says_so():
    assert "None of its activations is learned" in denoiser_section(nn.Sequential(nn.Identity(), nn.ReLU()))


def test_each_layer_has_at_most_twelve_tiles():
    section = denoiser_section(models.plain(models.denoiser(channels=20, depth=3)))
    assert section.count("<svg") == 24


def volume(case, count):
    return [
        replace(case, title=f"Slice {n}", number=n, pictures=case.pictures[-1:], stability=None) for n in range(count)
    ]


def test_every_slice_of_a_volume_is_in_the_table_and_on_the_page(case):
    page = reconstruction_page(volume(case, 24))
    assert re.findall(r'<a href="#case-(\d+)">Slice \d+</a>', page) == [str(n) for n in range(24)]
    assert page.count('class="block case"') == 24
    assert "24 slices." in page
    assert "All 24 reconstructions" in page


def test_of_very_many_slices_the_page_says_how_many_it_shows(case):
    page = reconstruction_page(volume(case, 40))
    assert page.count('class="block case"') == 32
    assert page.count('data-number="steps"') == 40 + 32
    assert "40 slices. Images of 32 of them are on this page, evenly spread." in page
    assert "All 40 reconstructions" in page


def test_a_page_whose_images_do_not_fit_the_data_begins_with_that(case):
    last = replace(case.pictures[-1], misfit=DataMisfit(0.64, 0.003))
    text = Reader(reconstruction_page([replace(case, pictures=(last,))])).text
    assert "This reconstruction is farther from the measurements than noise explains. Check angles" in text
    assert "covered by a theorem" not in text


def test_no_case_is_refused():
    with pytest.raises(ValueError, match="at least one case"):
        reconstruction_page([])


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    path = write_page(tmp_path / "new" / "page.html", "<p>ü</p>")
    assert path.read_text("utf-8") == "<p>ü</p>"
    with pytest.raises(UnicodeEncodeError):
        write_page(path, "half \ud800")
    assert path.read_text("utf-8") == "<p>ü</p>"
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]


def test_the_page_says_that_the_theorem_is_not_about_the_truth(case):
    solved = tuple(picture for picture in case.pictures if picture.solution is not None)
    page = reconstruction_page([replace(case, pictures=solved)])
    assert "it does not say that the answer is what was in the scanner" in page
