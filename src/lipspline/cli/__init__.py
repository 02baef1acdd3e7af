"""The command line, one file a command: parsing and printing only. Errors are one sentence and exit code 2."""

from lipspline.cli import bench, certify, demo, denoise, lab, reconstruct, reproduce, train, verify
from lipspline.cli.program import app, main

for command in (demo.demo, denoise.denoise, verify.verify, certify.certify):
    app.command()(command)
for command in (train.train, reproduce.reproduce, bench.bench, lab.lab):
    app.command()(command)
app.add_typer(reconstruct.app, name="reconstruct")

__all__ = ["app", "main"]
