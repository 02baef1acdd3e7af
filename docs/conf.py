"""How Sphinx builds the site: `make docs`. Nothing is fetched, neither when it is built nor when it is read."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the extensions beside this file

from lipspline import __version__

project = "lipspline"
author = "the lipspline authors"
copyright = "the lipspline authors, MIT licence"
version = release = __version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser", "docstrings", "mathml", "gallery_page"]
exclude_patterns = ["*.py", "**/__pycache__"]

# Pages are Markdown; headings can be linked to as page.md#heading.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

# Docstrings are reStructuredText with sections as `Args:`; a name in single backticks is code.
default_role = "code"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"lipspline {__version__}"
html_theme_options = {"navigation_with_keys": True}
html_show_sourcelink = False
html_copy_source = False
