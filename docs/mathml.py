"""A Sphinx extension: formulas as MathML, which browsers draw themselves, without scripts or fonts from elsewhere."""

from html import escape

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

LOGGER = logging.getLogger(__name__)


def inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line."""
    translator.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on lines of its own."""
    translator.body.append(f'<div class="math">{_mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def _mathml(node: nodes.math | nodes.math_block, as_block: bool) -> str:
    formula = node.astext()
    try:
        return tex2mathml(formula, as_block=as_block)
    except MathError as error:
        LOGGER.warning("The formula %s is not understood: %s", formula, error, location=node)
        return f"<code>{escape(formula)}</code>"


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer it as `html_math_renderer = "mathml"`."""
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
