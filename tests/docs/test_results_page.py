"""The page of results shows what `lipspline reproduce` writes."""

import json
from pathlib import Path

from lipspline.paper import recipe
from lipspline.paper.run import Run, reproduce

DOCUMENT = {
    "recipe": "fig-1d", "title": "Fitting", "scale": "laptop", "seed": 3, "version": "0.1.0", "torch": "2.13.0",
    "machine": "2 cores, no GPU", "threads": 2, "finished": "2026-01-31", "seconds": 125.0,
    "differs_from_paper": {"protocol.seeds": [10, 25]},
    "tables": [{
        "title": "Mean squared errors", "rows": "function",
        "ours": {"f1": {"relu": [0.5, 0.1], "lls": [0.25]}, "f2": {"lls": [1.0]}},
        "paper": {"f1": {"relu": [0.4]}},
    }],
    "claims": {"best": {"claim": "LLS | best", "holds": False, "evidence": "one of two"}},
    "settings": {}, "jobs": {},
}  # fmt: skip


def test_a_run_has_its_command_tables_claims_and_differences(results_page):
    text = results_page.experiment(DOCUMENT)
    assert "# Fitting, laptop scale" in text
    assert "`lipspline reproduce fig-1d --scale laptop --seed 3`: 2 min of computing on 2 cores, no GPU" in text
    assert "| function |  | relu | lls |\n" in text
    assert "| f1 | here | 0.5 ± 0.1 | 0.25 |\n|  | paper | 0.4 | – |\n|  | difference | +0.1 | – |\n| f2 | here" in text
    assert "| LLS \\| best | does not hold | one of two |" in text
    assert "| `protocol.seeds` | `10` | `25` |" in text


def test_a_page_says_what_its_table_means_and_links_to_the_numbers(results_page):
    text = results_page.experiment(DOCUMENT, link="../results/fig-1d-laptop.json")
    assert results_page.MEANING["fig-1d"] in text
    assert text.endswith("[All numbers of this run](../results/fig-1d-laptop.json).\n")


def test_the_summary_counts_what_the_files_say_and_our_own_claims_apart(results_page, tmp_path: Path):
    claims = {"best": True, "worst": False, "short": None, "(ours) proved": True}
    found = {name: {"claim": name, "holds": holds, "evidence": "seen"} for name, holds in claims.items()}
    (tmp_path / "fig-1d-laptop.json").write_text(json.dumps(DOCUMENT | {"claims": found}))
    (tmp_path / "bench.json").write_text("{}")
    text = results_page.summary(tmp_path)
    assert "**1 of 3 claims of the paper hold; 1 of 1 of our own.** 0.0 core-hours of computing." in text
    assert "| `fig-1d`, laptop | worst | does not hold | seen |" in text
    assert "| `fig:1d_functions` | `fig-1d` | laptop |" in text
    assert "| `table:performance` | `table-denoising` | not run |" in text


def test_figures_of_a_run_are_linked_from_the_page(results_page, tmp_path: Path):
    folder = tmp_path / "results" / "figures"
    folder.mkdir(parents=True)
    (folder / "fig-1d-laptop-fit.png").touch()
    (folder / "other-laptop-fit.png").touch()
    assert results_page.figures(folder, "fig-1d-laptop", tmp_path / "docs") == [
        "![fit](../results/figures/fig-1d-laptop-fit.png)"
    ]


def test_what_reproduce_really_writes_can_be_shown(results_page, tmp_path: Path):
    results = reproduce(Run(recipe.load("fig-1d", "smoke"), tmp_path), lambda job: lambda record: None)
    listed, page = results_page.pages(tmp_path / "results", tmp_path).items()
    assert page[0] == tmp_path / "results" / "fig-1d-smoke.md"
    assert f"# {results.document['title']}, smoke scale" in page[1]
    assert all(claim["claim"] in page[1] for claim in results.document["claims"].values())
    assert "(results/fig-1d-smoke.md), smoke scale" in listed[1]
    assert "No experiment has been run" not in listed[1]
    json.dumps(results.document)


def test_without_experiments_the_page_says_so(results_page, tmp_path: Path):
    (text,) = results_page.pages(tmp_path, tmp_path).values()
    assert "No experiment has been run for these pages yet" in text


def test_images_of_others_are_attributed(results_page, tmp_path: Path):
    (tmp_path / "figures").mkdir()
    assert "doi:10.7937/tcia.9ytj-5q73 | CC BY 4.0" in results_page.pages(tmp_path, tmp_path)[tmp_path / "results.md"]
