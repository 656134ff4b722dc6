"""Turns formulas into MathML while the site is built, so that pages need no script to show them.

The extension `arithmatex` finds `$x$` and `$$x$$` in pages and docstrings. Browsers draw MathML by
themselves.
"""

import html
import re

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
WORD = re.compile(r"\\text\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z]{3,}")


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces what `arithmatex` has marked."""
    return FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    """MathML of one formula, on a line of its own if it was a block."""
    latex = WORD.sub(_upright, html.unescape(found[2]).strip()).replace(r"\log ", r"\log\, ")
    if found[1] == "span":
        return convert(latex)
    return f'<div class="formula">{convert(latex, display="block")}</div>'


def _upright(found: re.Match[str]) -> str:
    """A word such as softmax is a name, not a product of letters as ij is; commands stay."""
    return found[0] if found[0].startswith("\\") else rf"\text{{{found[0]}}}"
