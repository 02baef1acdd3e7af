"""Fill the table of costs in the README from results/bench.json, which `lipspline bench --json` wrote.

`--check` fails if the README does not show the committed numbers.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "results" / "bench.json"
MARKS = re.compile(r"(<!-- benchmark -->\n).*?(<!-- /benchmark -->)", re.DOTALL)


def table() -> str:
    """The results as Markdown, with the command that made them."""
    bench = json.loads(RESULTS.read_text())
    machine = f"{bench['threads']} threads, kernels: {bench['kernels']}"
    lines = [
        f"Ratios of medians, interleaved, of `lipspline bench --json` ({machine}):",
        "",
        "| measured | in units of | ratio |",
        "|---|---|---|",
    ]
    for result in bench["results"]:
        for name, value in result["values"].items():
            if name != result["unit"]:
                lines.append(f"| {result['title']}: {name} | {result['unit']} | {value:.2f} |")
    return "\n".join(lines) + "\n"


def filled() -> str:
    """The README with the table of the committed results."""
    return MARKS.sub(lambda match: match[1] + table() + match[2], README.read_text())


if __name__ == "__main__":
    if "--check" in sys.argv and README.read_text() != filled():
        sys.exit("README.md does not show results/bench.json: run `python docs/readme_table.py`.")
    README.write_text(filled())
