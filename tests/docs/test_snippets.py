"""What the pages tell a reader to type can be typed: names, commands with their options, recipes, and programs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import lipspline as ls
from lipspline import cli
from lipspline.benchmarks.suites import SUITES
from lipspline.paper.recipe import shipped

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(
    r"^(?:[A-Z_]+=\S+ )*lipspline ([^\n#]+)|`(?:[A-Z_]+=\S+ |srun )*lipspline ([^`\n]+)`"
    r"|-m lipspline (?!\.)([^`\n#]+)|\(`lipspline ([^`]+)`",
    re.MULTILINE,
)
OTHERS = re.compile(r"(?:^|`)(?:make ([a-z]+)|python ((?:docs|tests|setup)[\w/]*\.py))(?=[` \n])", re.MULTILINE)
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
BINDING = "import lipspline as ls"


def commands(text: str) -> list[str]:
    """The command lines of a page, in blocks and within sentences, without their comments."""
    return [" ".join("".join(parts).split()) for parts in COMMAND.findall(text)]


def complaint(line: str) -> str | None:
    """Why the command line refuses these arguments; None if it takes them. Nothing is run.

    A sentence may name a command without its arguments.
    """
    command: Any = typer.main.get_command(cli.app)
    words = shlex.split(line.replace("...", "IN OUT"))
    if words[1:] == ["IN", "OUT"]:
        words = words[:1]  # "reconstruct ..." of any kind
    while words and not words[0].startswith("-") and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return f"there is no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    try:
        command.make_context("lipspline", words, resilient_parsing=not words or words == ["--version"])
    except Exception as error:
        return str(error)
    return None


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page.read_text())], ids=lambda page: page.name)
def test_commands_on_a_page_are_taken(page: Path):
    assert [(line, said) for line in commands(page.read_text()) if (said := complaint(line))] == []


def test_the_check_of_commands_sees_what_it_should():
    """Proof that the test above can fail."""
    text = "```bash\nX=1 lipspline lab --port 1  # here\n```\nand `lipspline denoise a b --nose 3`, `lipspline paint`\n"
    text += (
        "`torchrun --nproc-per-node 4 -m lipspline train a.toml`, `Y=2 lipspline lab`, over (`lipspline inspect\nF`)\n"
    )
    assert commands(text) == ["lab --port 1", "denoise a b --nose 3", "paint", "train a.toml", "lab", "inspect F"]
    assert [bool(complaint(line)) for line in commands(text)] == [False, True, True, False, False, False]
    assert OTHERS.findall("`make paint` or\npython docs/none.py --x\n") == [("paint", ""), ("", "docs/none.py")]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if OTHERS.search(page.read_text())], ids=lambda page: page.name
)
def test_targets_of_make_and_scripts_that_a_page_names_exist(page: Path):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target, script in OTHERS.findall(page.read_text()):
        assert (ROOT / script).is_file() if script else target in targets, target or script


def test_recipes_and_suites_that_pages_name_exist():
    lines = {line for page in PAGES for line in commands(page.read_text())}
    named = {words[1] for line in lines if (words := line.split())[0] in {"reproduce", "train"} and len(words) > 1}
    ours = {name for name in named if not name.startswith("-") and not name.endswith((".toml", "/"))}
    recipes = ours - {"all", "...", "NAME"}
    assert recipes <= set(shipped())
    assert {word for line in lines if line.startswith("bench ") for word in line.split()[1:]} - {"--json"} <= set(
        SUITES
    )


def test_names_that_pages_write_exist():
    """In a process of its own: elsewhere another import may have put them there."""
    written = {name for page in PAGES for name in re.findall(r"\bls\.(\w+(?:\.\w+)*)", page.read_text())}
    assert len(written) > 40
    program = f"{BINDING}\nfrom operator import attrgetter\nfor name in {sorted(written)}: attrgetter(name)(ls)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


NEEDS = {"adapters.md": ("scipy", "sigpy", "deepinv")}
"""Modules without which the programs of a page are not run."""


def given() -> dict[str, object]:
    """What programs that begin in the middle take for granted."""
    H = ls.operators.MRI(ls.operators.cartesian_mask(256, acceleration=4))
    noisy = torch.rand(1, 1, 32, 32)
    y = H.forward(torch.zeros(1, 1, 8, 256))
    return {"torch": torch, "noisy": noisy, "y": y, "denoiser": ls.models.zoo("lls", noise=15)}


@pytest.mark.parametrize("page", [page for page in PAGES[1:] if PROGRAM.search(page.read_text())], ids=lambda p: p.name)
def test_the_programs_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in NEEDS.get(page.name, ()):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = given()
    for program in PROGRAM.findall(page.read_text()):
        exec(compile(program, page.name, "exec"), names)
