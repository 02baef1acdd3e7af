"""Write docs/results.md from results/*.json: what `lipspline reproduce` and `lipspline bench --json` have found.

`--check` fails if the page does not show the committed results.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "results.md"
RESULTS = DOCS.parent / "results"
HEADER = """# Results

Runs really made, from the files in `results/`; made by `python docs/results_page.py`. Each says which command made it.
`paper` is what is printed there.
"""
JUDGEMENTS = {True: "holds", False: "does not hold", None: "too short to judge"}
SOURCES = """## Whose images the figures show

Changed: undersampled, projected, made noisy, reconstructed, denoised. TCIA is The Cancer Imaging Archive.

| image | source | terms |
|---|---|---|
| head (`brain`) | TCIA, Vestibular-Schwannoma-SEG, patient VS-SEG-001, doi:10.7937/tcia.9ytj-5q73 | CC BY 4.0 |
| abdomen | TCIA, ACRIN-NSCLC-FDG-PET, patient 042, doi:10.7937/tcia.2019.30ilqfcl | CC BY 3.0 |
| photograph | `skimage.data.camera` of scikit-image | CC0 |
"""


def page(results: Path = RESULTS, seen_from: Path = DOCS) -> str:
    """The text of the page for a folder of results.

    Args:
        seen_from: the folder of the page, for links to figures.
    """
    documents = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    experiments = [
        experiment(document, figures(results / "figures", label, seen_from))
        for label, document in documents.items()
        if "recipe" in document
    ]
    missing = "\nNo experiment has been run for these pages yet: `lipspline reproduce --list`.\n"
    costs = [bench(documents["bench"])] if "bench" in documents else []
    sources = [SOURCES] if (results / "figures").exists() else []
    return "\n".join([HEADER, *(experiments or [missing]), *costs, *sources]).rstrip() + "\n"


def experiment(document: Mapping[str, Any], pictures: Sequence[str] = ()) -> str:
    """A section with the tables, claims and figures of a document that `lipspline reproduce` wrote."""
    seed = f" --seed {document['seed']}" if document["seed"] else ""
    command = f"lipspline reproduce {document['recipe']} --scale {document['scale']}{seed}"
    parts = [
        f"## {document['title']}, {document['scale']} scale",
        f"`{command}`: {_duration(document['seconds'])} on {document['machine']}, finished "
        f"{document['finished']} (lipspline {document['version']}, torch {document['torch']}).",
        *(comparison(table) for table in document["tables"]),
    ]
    if document["claims"]:
        rows = [(c["claim"], JUDGEMENTS[c["holds"]], c["evidence"]) for c in document["claims"].values()]
        parts.append(_table(("claim of the paper", "here", "evidence"), rows))
    if document["differs_from_paper"]:
        rows = [
            (f"`{name}`", _short(ours), _short(paper)) for name, (ours, paper) in document["differs_from_paper"].items()
        ]
        parts.append("Not as published at this scale:\n\n" + _table(("setting", "here", "paper"), rows))
    return "\n\n".join([*parts, *pictures]) + "\n"


def comparison(table: Mapping[str, Any]) -> str:
    """A table of ours, with the paper's row below each row that it has."""
    columns = list(dict.fromkeys(column for row in table["ours"].values() for column in row))
    rows = []
    for name, values in table["ours"].items():
        rows.append((name, "here", *(_value(values.get(column)) for column in columns)))
        if name in table["paper"]:
            rows.append(("", "paper", *(_value(table["paper"][name].get(column)) for column in columns)))
    return f"**{table['title']}**\n\n" + _table((table["rows"], "", *columns), rows)


def bench(document: Mapping[str, Any]) -> str:
    """A section with the costs that `lipspline bench --json` measured."""
    intro = (
        f"`lipspline bench --json`: ratios of medians in one run ({document['threads']} threads, kernels: "
        f"{document['kernels']}, torch {document['torch']})."
    )
    tables = [
        f"**{result['title']}**, in units of {result['unit']}\n\n"
        + _table(("", "ratio"), [(name, f"{value:.2f}") for name, value in result["values"].items()])
        for result in document["results"]
    ]
    return "\n\n".join(["## Costs", intro, *tables]) + "\n"


def figures(folder: Path, label: str, seen_from: Path) -> list[str]:
    """The figures of a run, as Markdown."""
    return [
        f"![{path.stem.removeprefix(label + '-')}]({Path(os.path.relpath(path, seen_from)).as_posix()})"
        for path in sorted(folder.glob(f"{label}-*.png"))
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _value(value: Sequence[float] | float | None) -> str:
    """A number, or a mean and its deviation."""
    if value is None:
        return "–"
    return " ± ".join(f"{number:.4g}" for number in (value if isinstance(value, Sequence) else [value]))


def _short(setting: Any) -> str:
    return f"`{json.dumps(setting, ensure_ascii=False)}`"


def _duration(seconds: float) -> str:
    if not seconds:
        return "not timed,"
    return f"{f'{seconds:.0f} s' if seconds < 120 else f'{seconds / 60:.0f} min'} of computing"


if __name__ == "__main__":
    if "--check" in sys.argv and (not PAGE.exists() or PAGE.read_text() != page()):
        sys.exit("docs/results.md does not show the files in results/: run `python docs/results_page.py`.")
    PAGE.write_text(page())
