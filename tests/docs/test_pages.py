"""The pages of the site exist, are all in its navigation, and lead to each other."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
MATHS = re.compile(r"\$[^$]*\$")
HEADING = re.compile(r"^(?:# )?#+ (.+)$", re.MULTILINE)
ELSEWHERE = ("http:", "https:")
OF_PAGES = {".md", ".py"}


def sources() -> list[Path]:
    """All pages: Markdown files, and the scripts of the gallery."""
    return sorted([*DOCS.rglob("*.md"), *(DOCS / "gallery").glob("*.py")])


def named(page: Path) -> list[Path]:
    """The pages that the toctrees of a page name."""
    lines = [line.strip() for tree in TOCTREE.findall(page.read_text()) for line in tree.splitlines()]
    return [page.parent / line for line in lines if line and not line.startswith(":")]


def source(entry: Path) -> list[Path]:
    """The files that an entry of a toctree can mean."""
    return [
        entry.with_name(entry.name + ending) for ending in OF_PAGES if entry.with_name(entry.name + ending).is_file()
    ]


def links(page: Path) -> list[str]:
    """Where a page leads to within the site."""
    found = LINK.findall(MATHS.sub("", CODE.sub("", page.read_text()).replace("\n# ", "\n")))
    return [link for link in found if not link.startswith(ELSEWHERE)]


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in HEADING.findall(page.read_text())
    }


def entries() -> list[tuple[Path, Path]]:
    """Every page with each of its entries."""
    return [(page, entry) for page in sources() for entry in named(page)]


def test_every_page_named_in_the_navigation_exists():
    assert len(entries()) > 25
    assert [str(entry) for _, entry in entries() if len(source(entry)) != 1] == []


def test_every_page_can_be_reached_from_the_first_one():
    reached, ahead = set(), [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        reached.add(page)
        ahead += [file for entry in named(page) for file in source(entry) if file not in reached]
    assert set(sources()) == reached


@pytest.mark.parametrize("page", sources(), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_somewhere(page: Path):
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), f"{page.name} leads to {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} leads to {link}, but {target.name} has no such heading"


def test_the_link_check_sees_what_it_should(tmp_path: Path):
    """Proof that the tests around it can fail."""
    page = tmp_path / "page.md"
    page.write_text("# A page: `x`, y\n[a](b.md) [c\nd](e.md#f) `[no](code.md)` [out](https://example.org) $f[1](x)$\n")
    assert links(page) == ["b.md", "e.md#f"]
    assert anchors(page) == {"a-page-x-y"}


SOURCE_FILE = re.compile(r"`((?:src|docs|tests|[a-z_]+)/(?:[a-z_-]+/)*[a-z_*-]*(?:\.py|\.c|\.toml|/))`")


def absent_files(text: str) -> list[str]:
    """The files and folders of the source that a page names, and that are not there."""
    places = [DOCS.parent, DOCS.parent / "src" / "lipspline", DOCS.parent / "tests"]
    return [name for name in SOURCE_FILE.findall(text) if not any([*place.glob(name)] for place in places)]


def test_files_that_pages_name_exist():
    """Packages move; what is written about them must follow."""
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "CONTRIBUTING.md", DOCS.parent / "README.md"]
    assert not {page.name: absent for page in pages if (absent := absent_files(page.read_text()))}


def test_the_check_of_files_sees_what_it_should():
    """Proof that the test above can fail."""
    text = (
        "`pnp/_fbs.py`, `src/lipspline/paper/recipes/`, `kernels/*.c`, `src/lipspline/recipes/`, `priors/energies.py`"
    )
    assert absent_files(text) == ["src/lipspline/recipes/", "priors/energies.py"]


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_headings_skip_no_level(page: Path):
    """The site would not build without a warning."""
    levels = [len(marks) for marks in re.findall(r"^(#+) ", CODE.sub("", page.read_text()), re.MULTILINE)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_results_are_those_of_the_committed_files():
    script = [sys.executable, DOCS / "results_page.py", "--check"]
    result = subprocess.run(script, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path: Path):
    pytest.importorskip("sphinx", reason="the site is built with the extra `docs`")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        tmp_path / "trees",
        DOCS,
        tmp_path / "site",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}, check=False)
    assert done.returncode == 0, done.stderr
    loaded = re.compile(
        r"""(?:<script[^>]*src|<link[^>]*(?:stylesheet|preload|icon)[^>]*href|<img[^>]*src)=["']?(?:https?:)?//"""
    )
    assert [str(page) for page in (tmp_path / "site").rglob("*.html") if loaded.search(page.read_text())] == []
