"""Write the pages of results from results/*.json, which `lipspline reproduce` and `bench` have found.

docs/results.md lists the runs, docs/results/ has a page for each, docs/what-holds.md counts claims. `--check` fails if
the pages do not show the committed results.
"""

import json
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
SUMMARY = DOCS / "what-holds.md"
RECIPES = DOCS.parent / "src" / "lipspline" / "paper" / "recipes"
RESULTS = DOCS.parent / "results"
HEADER = """# Results

Runs really made, from the files in `results/`; made by `python docs/results_page.py`. Each has a page with our numbers,
the paper's and the difference, its claims, its pictures and the command that made it. The summary is [what of the paper
holds](what-holds.md).
"""
SUMMARY_HEADER = """# What of the paper holds

Counted from the files in `results/` and nothing else; made by `python docs/results_page.py`. A claim holds if our run,
at the scale named, bears it out. Claims marked (ours) are not the paper's and are counted apart. What a run does
differently from the published protocol stands [on the page of its run](results.md).
"""
GPUS, CORES_A_GPU = 8, 100
PAPER_SCALE = f"""Measured core-hours of the runs above, times the multiplications of the published protocol over those
of the run. The times on {GPUS} GPUs are not measured: they assume that one GPU does the work of {CORES_A_GPU} such
cores, and that all are busy, which `torchrun` (trainings) and `lipspline reproduce` in as many processes (independent
jobs) can come near to. Nothing that takes more than an hour starts unless its scale is named."""
MEANING = tomllib.loads((DOCS / "results_meaning.toml").read_text())
"""A sentence on what a table means, by recipe."""
PUBLISHED = "`paper` is what is printed there, `difference` is ours minus that."
JUDGEMENTS = {True: "holds", False: "does not hold", None: "too short to judge"}
SOURCES = """## Whose images the figures show

Changed: undersampled, projected, made noisy, reconstructed, denoised. TCIA is The Cancer Imaging Archive.

| image | source | terms |
|---|---|---|
| head (`brain`) | TCIA, Vestibular-Schwannoma-SEG, patient VS-SEG-001, doi:10.7937/tcia.9ytj-5q73 | CC BY 4.0 |
| abdomen | TCIA, ACRIN-NSCLC-FDG-PET, patient 042, doi:10.7937/tcia.2019.30ilqfcl | CC BY 3.0 |
| photograph | `skimage.data.camera` of scikit-image | CC0 |
"""


def pages(results: Path = RESULTS, docs: Path = DOCS) -> dict[Path, str]:
    """The texts of the list of runs and of a page for each run, by the file that they belong into."""
    documents = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    runs = {label: document for label, document in documents.items() if "recipe" in document}
    missing = "No experiment has been run for these pages yet: `lipspline reproduce --list`.\n"
    entries = "\n".join(f"results/{label}" for label in runs)
    listed = f"```{{toctree}}\n:hidden:\n\n{entries}\n```\n\n{_runs(runs)}\n"
    parts = [HEADER, listed if runs else missing]
    parts += [bench(documents["bench"])] if "bench" in documents else []
    parts += [SOURCES] if (results / "figures").exists() else []
    texts = {docs / "results.md": "\n".join(parts).rstrip() + "\n"}
    folder = docs / "results"
    for label, document in runs.items():
        link = _link(results / f"{label}.json", folder)
        texts[folder / f"{label}.md"] = experiment(document, figures(results / "figures", label, folder), link)
    return texts


def _runs(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for each run: its page, how many of its claims hold, and what it means."""
    rows = []
    for label, run in runs.items():
        verdicts = [claim["holds"] for claim in run["claims"].values()]
        held = f"{sum(holds is True for holds in verdicts)} of {len(verdicts)}"
        meaning = " ".join(MEANING.get(run["recipe"], "").split())
        rows.append((f"[{run['title']}](results/{label}.md), {run['scale']} scale", held, meaning))
    return _table(("run", "claims that hold", "what it means"), rows)


def experiment(document: Mapping[str, Any], pictures: Sequence[str] = (), link: str = "") -> str:
    """The page with the tables, claims and figures of a document that `lipspline reproduce` wrote, linked to it."""
    seed = f" --seed {document['seed']}" if document["seed"] else ""
    command = f"lipspline reproduce {document['recipe']} --scale {document['scale']}{seed}"
    parts = [
        f"# {document['title']}, {document['scale']} scale",
        f"`{command}`: {_duration(document['seconds'])} on {document['machine']}, finished "
        f"{document['finished']} (lipspline {document['version']}, torch {document['torch']}).",
        *([MEANING[document["recipe"]]] if document["recipe"] in MEANING else []),
        *([PUBLISHED] if any(table["paper"] for table in document["tables"]) else []),
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
    raw = [f"[All numbers of this run]({link})."] if link else []
    return "\n\n".join([*parts, *pictures, *raw]) + "\n"


def comparison(table: Mapping[str, Any]) -> str:
    """A table of ours, with the paper's row and the difference below each row that it has."""
    columns = list(dict.fromkeys(column for row in table["ours"].values() for column in row))
    rows = []
    for name, values in table["ours"].items():
        rows.append((name, "here", *(_value(values.get(column)) for column in columns)))
        if name in table["paper"]:
            theirs = table["paper"][name]
            rows.append(("", "paper", *(_value(theirs.get(column)) for column in columns)))
            rows.append(("", "difference", *(_difference(values.get(c), theirs.get(c)) for c in columns)))
    return f"**{table['title']}**\n\n" + _table((table["rows"], "", *columns), rows)


def summary(results: Path = RESULTS, recipes: Path = RECIPES) -> str:
    """The text of the page that counts claims, for a folder of results."""
    documents = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    runs = [document for document in documents if "recipe" in document]
    claims = [(run, claim) for run in runs for claim in run["claims"].values()]
    papers = [(run, claim) for run, claim in claims if not claim["claim"].startswith("(ours)")]
    ours = [(run, claim) for run, claim in claims if claim["claim"].startswith("(ours)")]
    parts = [
        SUMMARY_HEADER,
        f"**{_count(papers)} claims of the paper hold; {_count(ours)} of our own.** "
        f"{sum(run['seconds'] for run in runs) / 3600:.1f} core-hours of computing.",
        "## Claims of the paper",
        _claims(papers),
        "## Claims of our own",
        _claims(ours),
        "## Tables and figures",
        _made(runs, recipes),
        "## What the published protocol takes",
        PAPER_SCALE,
        _paper_scale(runs),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _count(claims: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    return f"{sum(claim['holds'] is True for _, claim in claims)} of {len(claims)}"


def _claims(claims: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    rows = [
        (f"`{run['recipe']}`, {run['scale']}", claim["claim"], JUDGEMENTS[claim["holds"]], claim["evidence"])
        for run, claim in claims
    ]
    return _table(("run", "claim", "here", "evidence"), rows)


def _made(runs: Sequence[Mapping[str, Any]], recipes: Path) -> str:
    """Every table and figure of the paper with its recipe, and the runs that were made of it."""
    rows = []
    for path in sorted(recipes.glob("*.toml")):
        scales = [run["scale"] for run in runs if run["recipe"] == path.stem]
        for label in tomllib.loads(path.read_text()).get("labels", ()):
            rows.append((f"`{label}`", f"`{path.stem}`", ", ".join(scales) or "not run"))
    return _table(("in the paper", "recipe", "run at scale"), sorted(rows))


def _paper_scale(runs: Sequence[Mapping[str, Any]]) -> str:
    """The core-hours of the committed runs, and what they become at the scale of the paper."""
    factors = tomllib.loads((DOCS / "paper_scale.toml").read_text())
    rows = []
    for run in runs:
        if run["scale"] == "laptop" and run["seconds"] and run["recipe"] in factors:
            hours, entry = run["seconds"] / 3600, factors[run["recipe"]]
            whole = hours * entry["factor"]
            gpus = _hours(whole / GPUS / CORES_A_GPU) if entry.get("gpus", True) else "no faster"
            times = f"{whole:.0f}", _hours(whole / 2), gpus
            rows.append((f"`{run['recipe']}`", f"{hours:.1f}", f"{entry['factor']:g}", *times, entry["why"]))
    head = ("recipe", "core-hours, laptop", "times", "core-hours, paper", "two cores", "8 GPUs", "because")
    return _table(head, rows)


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h" if hours < 72 else f"{hours / 24:.0f} days"


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
        f"![{path.stem.removeprefix(label + '-')}]({_link(path, seen_from)})"
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


def _difference(ours: Sequence[float] | float | None, theirs: Sequence[float] | float | None) -> str:
    """Ours minus the paper's, of the means."""
    if ours is None or theirs is None:
        return "–"
    first, second = (value[0] if isinstance(value, Sequence) else value for value in (ours, theirs))
    return f"{first - second:+.3g}"


def _link(path: Path, seen_from: Path) -> str:
    return Path(os.path.relpath(path, seen_from)).as_posix()


def _short(setting: Any) -> str:
    return f"`{json.dumps(setting, ensure_ascii=False)}`"


def _duration(seconds: float) -> str:
    if not seconds:
        return "not timed,"
    return f"{f'{seconds:.0f} s' if seconds < 120 else f'{seconds / 60:.0f} min'} of computing"


if __name__ == "__main__":
    texts = {**pages(), SUMMARY: summary()}
    left = [path for path in (DOCS / "results").glob("*.md") if path not in texts]
    if "--check" in sys.argv:
        if left or any(not path.exists() or path.read_text() != text for path, text in texts.items()):
            sys.exit("The pages of results do not show the files in results/: run `python docs/results_page.py`.")
    else:
        (DOCS / "results").mkdir(exist_ok=True)
        for path, text in texts.items():
            path.write_text(text)
        for path in left:
            path.unlink()
