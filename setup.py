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


# MSVC knows neither GNU C nor these flags. /fp:precise rounds products and sums one by one, too. What it cannot compile
# is left out: the extension is optional, and lipspline then runs its kernels in torch.
MSVC_FLAGS = ["/O2", "/std:c11", "/fp:precise"]


class BuildLibrary(build_ext):
    """A shared library without Python's entry point."""

    def get_export_symbols(self, ext):
        return []

    def build_extension(self, ext):
        if self.compiler.compiler_type == "msvc":
            ext.extra_compile_args = MSVC_FLAGS
        super().build_extension(ext)


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
