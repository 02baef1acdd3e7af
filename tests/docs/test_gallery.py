"""Every script of the gallery runs, and a page shows what its script says, prints and draws."""

from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPTS = sorted((DOCS / "gallery").glob("*.py"))
SAYS = {
    "build_a_network": "<= Lipschitz constant <= 1.000000",
    "certify": "Lipschitz constant <= 0.99999",
    "learn_an_activation": "learned splines  mean square error",
    "reconstruct_ct": "[eq:EstForward]       ‖Hx1 - Hx2‖ <= c ‖y1 - y2‖, c = 1",
    "reconstruct_mri": "1 of 1 images converged",
    "train_a_denoiser": "Lipschitz constant <= 0.99999",
    "use_with_deepinv": "deepinv cannot be imported here",
    "wasserstein_distance": "learned potential: 1.4",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_script_runs_and_says_what_it_should(script: Path, gallery_cells):
    pytest.importorskip("matplotlib")
    pytest.importorskip("skimage")
    ran = list(gallery_cells.run(script))
    printed = "".join(outcome.printed for _, outcome in ran)
    expected = SAYS[script.stem]
    assert expected in printed or (script.stem == "use_with_deepinv" and "the same data: True" in printed)
    assert ran[0][0].text.startswith("# ")
    assert all("plt." not in cell.code or outcome.figures for cell, outcome in ran)


def test_a_page_has_text_code_output_and_figures(tmp_path: Path, gallery_cells):
    pytest.importorskip("matplotlib")
    script = tmp_path / "script.py"
    script.write_text(
        "# %%\n# # Title\n#\n# Some $x$.\n\nimport matplotlib.pyplot as plt\n\n"
        "# %%\n# More.\nprint('six', 2 * 3)\nplt.plot([1, 2])\n"
    )
    page = gallery_cells.markdown(script)
    assert page.startswith(
        "# Title\n\nSome $x$.\n\n```python\nimport matplotlib.pyplot as plt\n```\n\nMore.\n\n```python\n"
    )
    assert "```text\nsix 6\n```\n\n![What this cell drew](data:image/png;base64,iVBOR" in page


def test_an_error_in_a_script_keeps_its_line(tmp_path: Path, gallery_cells):
    script = tmp_path / "script.py"
    script.write_text("# %%\n# # Title\n\nx = 1\n\n# %%\n# Text.\n\nx / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        list(gallery_cells.run(script))
    assert caught.traceback[-1].lineno == 8


def test_a_script_without_cells_is_refused(gallery_cells):
    with pytest.raises(ValueError, match="must begin with a line '# %%'"):
        gallery_cells.cells("print(1)\n")
