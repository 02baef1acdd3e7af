"""The page of theorems has every proposition of the paper, and names functions and tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "theorems.md").read_text()
LABELS = (ROOT / "tests" / "paper_labels.txt").read_text().split()


def definitions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def named(root: Path) -> list[tuple[str, str]]:
    """Pairs (file, function): names belong to the last file of the given folder that was named before them."""
    found, file = [], None
    for word in re.findall(r"`([^`\n]+)`", PAGE):
        if word.endswith(".py"):
            file = word if (root / word).is_file() else None
        elif file is not None and re.fullmatch(r"[a-z_]\w*", word):
            found.append((file, word))
    return found


def test_every_proposition_and_theorem_has_a_section():
    sections = re.findall(r"^## .*`\[(.+?)\]`$", PAGE, flags=re.MULTILINE)
    shown = {label for section in sections for label in section.split(", ")}
    assert {label for label in LABELS if label.startswith(("prop:", "thm:"))} <= shown
    for text in PAGE.split("\n## ")[1:]:
        assert "**Statement.**" in text


def test_the_functions_and_tests_that_it_names_exist():
    for root, least in ((ROOT / "src" / "lipspline", 7), (ROOT / "tests", 12)):
        pairs = named(root)
        assert len(pairs) >= least
        assert [pair for pair in pairs if pair[1] not in definitions(root / pair[0])] == []
    files = set(re.findall(r"`([^`\n]+\.py)`", PAGE))
    assert [
        file for file in files if not any((ROOT / top / file).is_file() for top in ("src/lipspline", "tests"))
    ] == []
