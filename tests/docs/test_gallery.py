"""Every script of the gallery runs, and a page shows what its script says, prints and draws."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPTS = sorted((DOCS / "gallery").glob("*.py"))
AT_MOST_ONE = r"Lipschitz constant <= (1\.0|0\.99999\d+)\n"  # the last digits are those of the processor
SAYS = {
    "build_a_network": rf"[\d.]+ <= {AT_MOST_ONE}",
    "certify": AT_MOST_ONE,
    "learn_an_activation": "learned splines  mean square error",
    "reconstruct_ct": re.escape("[eq:EstForward]       ‖Hx1 - Hx2‖ <= c ‖y1 - y2‖, c = 1"),
    "reconstruct_mri": "1 of 1 images converged",
    "train_a_denoiser": AT_MOST_ONE,
    "use_with_deepinv": "deepinv cannot be imported here|the same data: True",
    "wasserstein_distance": r"learned potential: 1\.4",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_script_runs_and_says_what_it_should(script: Path, gallery_cells):
    pytest.importorskip("matplotlib")
    pytest.importorskip("skimage")
    ran = list(gallery_cells.run(script))
    printed = "".join(outcome.printed for _, outcome in ran)
    assert re.search(SAYS[script.stem], printed), printed
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


def test_the_notebooks_have_the_cells_of_the_scripts():
    """`python docs/notebooks.py` writes them; each is a notebook of format 4.5 whose code is Python."""
    done = subprocess.run([sys.executable, DOCS / "notebooks.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for script in SCRIPTS:
        notebook = json.loads((DOCS / "notebooks" / f"{script.stem}.ipynb").read_text())
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        first, *rest = notebook["cells"]
        assert "%pip install" in "".join(first["source"])
        code = ["".join(cell["source"]) for cell in rest if cell["cell_type"] == "code"]
        compile("\n".join(code), script.name, "exec")
        assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


def test_read_the_docs_builds_what_is_there():
    settings = yaml.safe_load((DOCS.parent / ".readthedocs.yaml").read_text())
    assert (DOCS.parent / settings["sphinx"]["configuration"]).is_file()
    extras = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(settings["python"]["install"][0]["extra_requirements"]) <= set(extras)
