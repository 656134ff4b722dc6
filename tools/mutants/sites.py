"""The places in a source file where one small change should make a test fail.

A mutant is a copy of a function with one such change: `>` for `>=`, a keyword left out, a statement
deleted. Only code that decides results is changed. Docstrings, annotations, error messages, the
text of `repr` and progress bars stay as they are. Changes are made in the syntax tree, in memory.
"""

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

Required = set[tuple[str, str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
OPPOSITES = [
    ("min", "max"), ("any", "all"), ("minimum", "maximum"), ("amin", "amax"),
    ("argmin", "argmax"), ("floor", "ceil"),
]  # fmt: skip
SWAPPED = dict(OPPOSITES) | {second: first for first, second in OPPOSITES}

TEXTS = {"__repr__", "__str__", "extra_repr", "_repr_html_"}
QUIET = {"print", "tell", "progress"}  # calls that only talk to the user
UNSEEN = {"device", "stacklevel", "strict"}  # keywords that a correct call on a CPU does not feel
SIMPLE = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr  # fit on one line


@dataclass(frozen=True)
class Site:
    """One possible mutant of a file: where it is, what changes, and how to change the tree."""

    file: str
    function: str
    line: int
    lines: range  # of the whole statement, because a tracer may name any of them
    change: str
    change_tree: Callable[[], None]
    restore_tree: Callable[[], None]

    @property
    def name(self) -> str:
        """What identifies the mutant when lines shift."""
        return f"{self.file}::{self.function}::{self.change}"


def sites(tree: ast.Module, file: str, required: Required) -> list[Site]:
    """All mutants of a file; of equal changes in one function, the later ones are numbered."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for node, new, put, function, lines, around in _changes(tree, required):
        change = _describe(node, new, put, around)
        seen[function, change] += 1
        if seen[function, change] > 1:
            change += f" #{seen[function, change]}"
        line = getattr(node, "lineno", lines.start)
        there, back = partial(put, new), partial(put, node)
        found.append(Site(file, function, line, lines, change, there, back))
    return found


def pick(
    found: Iterable[Site], count: int, seed: int, compiles: Callable[[Site], bool]
) -> list[Site]:
    """Seeded mutants, over files in proportion to their sites: one a line, four a function.

    Sites are ordered by a hash of their name, so an edit elsewhere leaves the choice as it is.
    """
    by_file: dict[str, list[Site]] = {}
    for site in sorted(found, key=lambda site: _hash(f"{seed} {site.name}")):
        by_file.setdefault(site.file, []).append(site)
    ranked: list[tuple[float, str, Site]] = []
    for file, candidates in by_file.items():
        lines: set[int] = set()
        functions: Counter[str] = Counter()
        taken = 0
        for site in candidates:
            if site.line in lines or functions[site.function] == 4 or taken == count:
                continue
            if compiles(site):
                lines.add(site.line)
                functions[site.function] += 1
                # Webster's rule for seats by votes puts a file's k-th site at (k + 1/2) / size.
                ranked.append(((taken + 0.5) / len(candidates), file, site))
                taken += 1
    chosen = [site for _, _, site in sorted(ranked, key=lambda each: each[:2])[:count]]
    return sorted(chosen, key=lambda site: (site.file, site.line))


def required_arguments(paths: Iterable[Path]) -> Required:
    """Pairs (callable, argument) without a default: leaving one out only raises a TypeError."""
    found: Required = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.AnnAssign) and each.value is None:
                        found.add((node.name, ast.unparse(each.target)))
                    elif isinstance(each, Function) and each.name == "__init__":
                        found |= {(node.name, name) for name in _without_default(each.args)}
            elif isinstance(node, Function):
                found |= {(node.name, name) for name in _without_default(node.args)}
    return found


def _without_default(args: ast.arguments) -> list[str]:
    positional = [*args.posonlyargs, *args.args]
    named = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    without = positional[: len(positional) - len(args.defaults)]
    return [arg.arg for arg in [*without, *(arg for arg, default in named if default is None)]]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _describe(node: ast.AST, new: ast.AST, put: Callable[[ast.AST], None], around: ast.AST) -> str:
    """`old -> new`, with what stands around the change in its expression."""
    inside = isinstance(around, ast.expr | SIMPLE)
    old_text = _text(around if inside else node)
    put(new)
    new_text = _text(around if inside else new)
    put(node)
    start = _shared(old_text, new_text)
    end = _shared(old_text[start:][::-1], new_text[start:][::-1])
    return " -> ".join(_window(text, start, len(text) - end) for text in (old_text, new_text))


def _shared(first: str, second: str) -> int:
    """The number of characters with which both texts begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def _window(text: str, start: int, stop: int) -> str:
    """The changed part of a text with 30 characters around it, at most 90 in all."""
    start = max(0, start - 30) if start > 35 else 0
    stop = min(stop + 30 if stop + 35 < len(text) else len(text), start + 90)
    return "…" * (start > 0) + text[start:stop] + "…" * (stop < len(text))


def _text(node: ast.AST) -> str:
    lines = ast.unparse(node).split("\n")
    return lines[0] if isinstance(node, ast.If | ast.While) else " ".join(lines).strip()


def _changes(
    node: ast.AST,
    required: Required,
    function: str = "",
    owner: Function | None = None,
    lines: range = range(0),
    around: ast.AST | None = None,
) -> Iterator[tuple[ast.AST, ast.AST, Callable[[ast.AST], None], str, range, ast.AST]]:
    """Nodes below a node that can be replaced, each with a replacement and what puts it there."""
    if around is None or not isinstance(node, ast.Slice | ast.UnaryOp | ast.keyword):
        around = node
    for child, put in _children(node):
        if _left_alone(child):
            continue
        if isinstance(child, ast.stmt):
            body = getattr(child, "body", None)
            end = body[0].lineno - 1 if body else child.end_lineno or child.lineno
            lines = range(child.lineno, max(end, child.lineno) + 1)
        if owner is not None:
            for new in _replacements(child, owner, required):
                yield child, ast.copy_location(new, child), put, function, lines, around
        inner = owner
        name = function
        if isinstance(child, Function | ast.ClassDef):
            name = f"{function}.{child.name}".lstrip(".")
            inner = child if isinstance(child, Function) else None
        yield from _changes(child, required, name, inner, lines, around)


def _children(node: ast.AST) -> Iterator[tuple[ast.AST, Callable[[ast.AST], None]]]:
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        if isinstance(node, Function | ast.ClassDef | ast.Lambda) and field != "body":
            continue
        if isinstance(value, list):
            for i, each in enumerate(value):
                if isinstance(each, ast.AST):
                    yield each, partial(value.__setitem__, i)
        elif isinstance(value, ast.AST):
            yield value, partial(setattr, node, field)


def _left_alone(node: ast.AST) -> bool:
    match node:
        case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return True
        case ast.keyword() if node.arg in UNSEEN:
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            decorators = {ast.unparse(each).split(".")[-1] for each in node.decorator_list}
            return node.name in TEXTS or bool(decorators & {"overload", "abstractmethod"})
        case ast.Call():
            return _called(node) in QUIET | {"warn", "_warn"}
    return False


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).split(".")[-1]


def _changed(node: Any, **fields: Any) -> Any:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _without(items: list[Any], i: int) -> list[Any]:
    return [*items[:i], *items[i + 1 :]]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _replacements(node: ast.AST, owner: Function, required: Required) -> Iterator[ast.AST]:
    """What one node may become."""
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                ops = [*node.ops[:i], COMPARISONS[type(op)](), *node.ops[i + 1 :]]
                yield _changed(node, ops=ops)
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            if not (_is_text(node.left) or _is_text(node.right)):
                yield _changed(node, op=ARITHMETIC[type(op)]())
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield copy.copy(node.operand)
        case ast.BoolOp():
            yield _changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1 if abs(value) < 10 else 2 * value)
        case ast.Slice():
            for field in ("lower", "upper"):
                bound = getattr(node, field)
                if bound is not None and not isinstance(bound, ast.Constant | ast.UnaryOp):
                    yield _changed(node, **{field: ast.BinOp(bound, ast.Add(), ast.Constant(1))})
        case ast.comprehension():
            for i in range(len(node.ifs)):
                yield _changed(node, ifs=_without(node.ifs, i))
        case ast.IfExp():
            yield _changed(node, body=node.orelse, orelse=node.body)
        case ast.Call():
            yield from _calls(node, required)
        case ast.If():
            yield _changed(node, test=ast.Constant(True))
            yield _changed(node, test=ast.Constant(False))
        case ast.While():
            yield _changed(node, test=ast.Constant(False))
        case ast.Return():
            annotation = "None" if owner.returns is None else ast.unparse(owner.returns)
            if (
                node.value is not None
                and annotation != "None"
                and ast.unparse(node.value) != "None"
            ):
                yield _changed(node, value=ast.Constant(None))
        case ast.AugAssign():
            if type(node.op) in ARITHMETIC and not _is_text(node.value):
                yield _changed(node, op=ARITHMETIC[type(node.op)]())
            yield ast.Pass()
        case ast.Expr(value=ast.Call() as call) if _called(call) not in QUIET:
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"))]):
            yield ast.Pass()
        case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self")), value=ast.expr()):
            yield ast.Pass()


def _calls(node: ast.Call, required: Required) -> Iterator[ast.AST]:
    """A call of the opposite function, and calls with one keyword left out."""
    name = _called(node)
    if name in SWAPPED:
        if isinstance(node.func, ast.Attribute):
            yield _changed(node, func=_changed(node.func, attr=SWAPPED[name]))
        elif isinstance(node.func, ast.Name):
            yield _changed(node, func=_changed(node.func, id=SWAPPED[name]))
    for i, keyword in enumerate(node.keywords):
        if keyword.arg and keyword.arg not in UNSEEN and (name, keyword.arg) not in required:
            yield _changed(node, keywords=_without(node.keywords, i))
