"""The README's program runs, and its table shows the committed numbers."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_program_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert program is not None
    exec(compile(program[1], "README.md", "exec"), {"__name__": "__main__"})
    assert "Lipschitz constant <=" in capsys.readouterr().out
    assert (tmp_path / "network.safetensors").exists()


def test_the_tables_show_the_committed_results():
    script = ROOT / "docs" / "tables.py"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
