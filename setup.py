"""Builds the C kernels of lipspline if there is a compiler; everything else is in pyproject.toml.

The library is plain C, loaded with ctypes: it is linked neither with Python nor with torch, so one build serves every
version of torch. Without a compiler the installation succeeds and lipspline runs its kernels in torch.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("src", "lipspline", "kernels")
# The region of an element must come out the same in C as in torch, so products and sums are rounded one by one.
FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]


class BuildLibrary(build_ext):
    """A shared library without Python's entry point."""

    def get_export_symbols(self, ext):
        return []


setup(
    ext_modules=[
        Extension(
            "lipspline.kernels._native",
            sources=[str(path) for path in sorted(FOLDER.glob("*.c"))],
            depends=[str(path) for path in sorted(FOLDER.glob("*.[ch]"))],
            extra_compile_args=FLAGS,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary},
)
