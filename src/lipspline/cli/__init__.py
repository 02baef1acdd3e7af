"""The command line: parsing and printing only. Errors are one sentence and exit code 2."""

from lipspline.cli import commands, proofs, reconstruct, train
from lipspline.cli.program import app, main

for command in (commands.demo, commands.denoise, commands.inspect, commands.verify, proofs.certify):
    app.command()(command)
for command in (train.train, train.reproduce, commands.bench, commands.lab):
    app.command()(command)
app.add_typer(reconstruct.app, name="reconstruct")

__all__ = ["app", "main"]
