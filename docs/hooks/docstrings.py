r"""Reads our sources as mkdocstrings wants them, without changing the sources.

`.. math:: x` becomes `$$x$$` and `:math:` becomes `$x$`, which `formulas.py` draws. `Example:` is
named `Examples:`, the section whose prompts are coloured, and `Reference:` is a line of text rather
than a box. `mg.fit` is the function, not the module of that name that it comes from.
"""

import re
from typing import Any

import griffe

BLOCK = re.compile(r"^( *)\.\. math::((?: .*| *)(?:\n\1 +\S.*)*)", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")
EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
REFERENCE = re.compile(r"^( *)Reference:\n((?:\1 +\S.*(?:\n|$))+)", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Rewrites each docstring as it is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for modules, classes, functions and attributes."""
        if obj.docstring:
            obj.docstring.value = readable(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Called when the package is complete."""
        for name, member in list(pkg.members.items()):
            if isinstance(member, griffe.Alias):
                target = _found(member.target_path, loader)
                if target is not None and target.is_module and name in target.members:
                    pkg.set_member(name, griffe.Alias(name, f"{target.path}.{name}", parent=pkg))


def _found(path: str, loader: griffe.GriffeLoader) -> griffe.Object | griffe.Alias | None:
    """What has this path, if it is ours."""
    try:
        return loader.modules_collection[path]
    except KeyError:
        return None


def readable(docstring: str) -> str:
    """The docstring with its formulas between dollars and its sections named for the parser."""
    docstring = BLOCK.sub(_between_dollars, docstring)
    docstring = INLINE.sub(r"$\1$", docstring)
    docstring = REFERENCE.sub(_one_line, docstring)
    return EXAMPLE.sub(r"\1Examples:", docstring)


def _between_dollars(found: re.Match[str]) -> str:
    """One formula, its lines joined."""
    return f"{found[1]}$${' '.join(found[2].split())}$$"


def _one_line(found: re.Match[str]) -> str:
    """A reference as a paragraph of its own."""
    return f"{found[1]}**Reference:** {' '.join(found[2].split())}\n"
