"""The small language of Lambda, Filter and source.filter: the same rules on both engines; no code is evaluated.

    price * 1.2 > 10 and brand in ["apple", "lg"] and col("event time") >= "2020-01-01"

Names are columns (`col("a b")` for odd ones). There are literals (numbers, "text", True, False, None), + - * / // %,
comparisons (also chained), and or not, `in [..]`, `not in`, `is None`, `is not None` and the functions `abs`, `log`,
`exp`, `sqrt`, `round`, `lower`, `upper`, `length`, `contains`, `startswith`, `where` and `cast`.

Rules, the same on both engines:

- Null in, null out: also in comparisons and `in`; `and`, `or`, `not` are those of three-valued logic (Kleene). NaN is
  null. `where` with a null condition gives null.
- Whole numbers of any width, and booleans, are computed in int64, uint64 in uint64, which does not mix with signed
  columns. A number beyond these 64 bits is an error that names the expression, its part, the columns and the cure, but
  not in rows that another branch of `where`, `and` or `or` decides. `abs(x)` of the least int8 is 128.
- If one side is a float, both are computed in float64, in comparisons too: whole numbers beyond 2**53 are rounded, so
  that `x == 9007199254740992.0` is true for 9007199254740993. Numbers beyond float64 are infinite.
- `/` gives float64: `x / 0` is infinite with the sign of x, `0 / 0` null. `//` and `%` round down, as in Python; by
  zero they are null for whole numbers. For floats `x // y` is floor(x / y), so that `x // 0` is infinite; `x % 0` is
  null, and a zero that `%` gives has the sign of the divisor.
- Infinities are numbers: equal to themselves, larger than all others; `-` of two of one sign, `0 *` one and `%` of one
  are null, `log(0)` is minus infinity, `exp(1000)` infinity. `log` and `sqrt` of negative numbers are null.
- Strings compare by their UTF-8 bytes; `+` joins strings. `upper` and `lower` change letter by letter, after Unicode:
  `upper("ß")` is `ẞ`, never SS, and letters without a single capital stay (`ŉ`, `ﬁ`).
- Times compare with times and with ISO 8601 text. A text or a column without a zone is UTC; an offset (+02:00) counts.
- `contains` and `startswith` look for literal text; `length` counts characters (of a list: elements).
- `round(x, digits)` rounds halves to even. `cast` gives null where the type cannot hold the value, an infinity as a
  whole number say, and where a text is no such value: the rows that are null for it are counted and said. Floats are
  cut towards zero. log and exp of the two engines may differ in the last bit.
- The type of the result is known from the schema alone: comparisons bool, arithmetic int64, uint64 or float64, log, exp
  and sqrt float64, length int64; abs that of its column, int64 of signed ones; where keeps the type of its columns (of
  different ones: the type they are computed in); a column alone keeps its type.
"""

from __future__ import annotations

import ast
import threading
import warnings
from dataclasses import dataclass, field
from typing import Any

from tasks.engines.expression.nodes import Node, failure
from tasks.errors import JobError, near

MAX_DEPTH = 100
MAX_LENGTH = 20_000

# Name -> (least, greatest) number of arguments.
FUNCTIONS = {
    "abs": (1, 1), "log": (1, 1), "exp": (1, 1), "sqrt": (1, 1), "round": (1, 2), "lower": (1, 1), "upper": (1, 1),
    "length": (1, 1), "contains": (2, 2), "startswith": (2, 2), "where": (3, 3), "cast": (2, 2),
}  # fmt: skip

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_INSTEAD = {
    ast.IfExp: "write where(condition, a, b)", ast.Pow: "write x * x, or exp(y * log(x))", ast.BitAnd: "write and",
    ast.BitOr: "write or", ast.Invert: "write not", ast.Attribute: 'write lower(x); odd names are written col("a.b")',
    ast.Subscript: 'odd column names are written col("a[0]")',
}  # fmt: skip


_SIGNS = {
    "=": "compare with ==",
    "&": "write and",
    "|": "write or",
    "!": "write not, or !=",
    ">": "unequal is written !=",
}


@dataclass(frozen=True)
class Expression:
    """A parsed expression; equal, hashed and pickled by its text. `columns` are the names that it uses, in order."""

    text: str
    root: Node = field(compare=False, repr=False)
    columns: tuple[str, ...] = field(compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return parse, (self.text,)

    @property
    def conjuncts(self) -> list[Expression]:
        """The conditions that must all be true for the expression to be true: the operands of its outer `and`s.

        >>> [part.columns for part in parse("a > 1 and (b or c) and (a and d)").conjuncts]
        [('a',), ('b', 'c'), ('a',), ('d',)]
        """
        return [Expression(self.text, node, tuple(dict.fromkeys(_columns(node)))) for node in _conjuncts(self.root)]


def parse(text: str) -> Expression:
    """Parse an expression; JobError, with the place, for text that is not part of the language."""
    if not isinstance(text, str) or not text.strip():
        raise JobError(f"{text!r} is no expression", do='write one as text, such as "price > 0"')
    lines = text.strip().splitlines()
    text = " ".join(line.strip() for line in lines)
    if len(text) > MAX_LENGTH:
        raise JobError(f"an expression of {len(text)} characters is too long", why=f"the limit is {MAX_LENGTH}")
    if len(lines) > 1 and "#" in text:
        raise failure("a sign # in an expression of several lines", text, (text.index("#"), text.index("#") + 1),
                      why="the text after it would be a comment", do="write it in one line")  # fmt: skip
    tree = _syntax_tree(text)
    _refuse_depth(tree, text)
    root = _Reader(text).read(tree)
    names = tuple(dict.fromkeys(_columns(root)))
    if not names:
        raise failure("names no column", text, (0, len(text)), do="use at least one column")
    return Expression(text, root, names)


_one_at_a_time = threading.Lock()


def _syntax_tree(text: str) -> ast.expr:
    """Python's syntax tree of the text, parsed by one thread at a time.

    Python 3.11 counts the depth of trees for all threads together, and raises SystemError if several parse at once.
    """
    try:
        with _one_at_a_time, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in texts
            return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        start = min(max((error.offset or 1) - 1, 0), len(text))
        odd = 'odd column names are written col("a b")'
        hint = next((hint for sign, hint in _SIGNS.items() if text[start:].startswith(sign)), odd)
        raise failure(f"cannot be read: {error.msg}", text, (start, start + 1), do=hint) from None
    except (RecursionError, MemoryError, ValueError) as error:
        raise failure("cannot be read", text, (0, 1), why=str(error) or "it is nested too deeply") from None


def _refuse_depth(tree: ast.expr, text: str) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise failure("is nested too deeply", text, (0, 1), why=f"the limit is {MAX_DEPTH} levels",
                  do="split it over several Lambda operators")  # fmt: skip


def _conjuncts(node: Node) -> list[Node]:
    return [part for arg in node.args for part in _conjuncts(arg)] if node.verb == "and" else [node]


def _columns(node: Node) -> list[str]:
    return [node.value] if node.verb == "column" else [name for arg in node.args for name in _columns(arg)]


class _Reader:
    """Turns Python's syntax tree into nodes; JobError for everything that is not part of the language."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.ascii = text.isascii()

    def place(self, tree: Any) -> tuple[int, int]:
        start, end = tree.col_offset, tree.end_col_offset
        if self.ascii:
            return start, end
        encoded = self.text.encode()  # the syntax tree counts bytes
        return len(encoded[:start].decode()), len(encoded[:end].decode())

    def fail(self, tree: Any, what: str, do: str = "") -> JobError:
        return failure(what, self.text, self.place(tree), do)

    def read(self, tree: ast.expr) -> Node:
        place = self.place(tree)
        match tree:
            case ast.Name(id=name):
                return Node("column", (), name, place)
            case ast.Constant(value=value):
                return self.literal(tree, value)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return self.literal(tree, -value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Node("negate", (self.read(operand),), None, place)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Node("not", (self.read(operand),), None, place)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return Node(_BINARY[type(op)], (self.read(left), self.read(right)), None, place)
            case ast.BoolOp(op=op, values=values):
                return Node(
                    "and" if isinstance(op, ast.And) else "or", tuple(self.read(v) for v in values), None, place
                )
            case ast.Compare():
                return self.comparison(tree, place)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self.call(tree, name, args, place)
        reason = type(getattr(tree, "op", None)) if isinstance(tree, ast.BinOp | ast.UnaryOp) else type(tree)
        raise self.fail(tree, "this is not part of the language", _INSTEAD.get(reason, "write " + ", ".join(FUNCTIONS)))

    def literal(self, tree: ast.expr, value: Any) -> Node:
        if not (value is None or isinstance(value, bool | int | float | str)):
            raise self.fail(tree, f"a literal of type {type(value).__name__} is not part of the language")
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            raise self.fail(tree, "this number is too large for float64")
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise self.fail(tree, "this number is too large for 64 bits", "write it as a float, such as 1e20")
        return Node("literal", (), value, self.place(tree))

    def comparison(self, tree: ast.Compare, place: tuple[int, int]) -> Node:
        sides = [tree.left, *tree.comparators]
        pairs = [self.pair(op, sides[i], sides[i + 1], place) for i, op in enumerate(tree.ops)]
        return pairs[0] if len(pairs) == 1 else Node("and", tuple(pairs), None, place)

    def pair(self, op: ast.cmpop, left: ast.expr, right: ast.expr, place: tuple[int, int]) -> Node:
        if type(op) in _COMPARE:
            for side in (left, right):
                if isinstance(side, ast.Constant) and side.value is None:
                    raise self.fail(side, "nothing is equal to None", "write x is None or x is not None")
            return Node(_COMPARE[type(op)], (self.read(left), self.read(right)), None, place)
        if isinstance(op, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self.fail(right, "`is` goes with None only", "write ==")
            node = Node("is None", (self.read(left),), None, place)
        else:
            node = Node("in", (self.read(left),), self.items(right), place)
        return Node("not", (node,), None, place) if isinstance(op, ast.IsNot | ast.NotIn) else node

    def items(self, tree: ast.expr) -> tuple[Node, ...]:
        if not isinstance(tree, ast.List | ast.Tuple):
            raise self.fail(
                tree, "`in` needs a list of literals", 'write x in [1, 2]; for text in text contains(x, "..")'
            )
        nodes = tuple(self.read(item) for item in tree.elts)
        for item, node in zip(tree.elts, nodes, strict=True):
            if node.verb != "literal":
                raise self.fail(item, "a list holds literals only", "write x == a or x == b")
            if node.value is None:
                raise self.fail(item, "nothing is equal to None", "write x is None or x in [..]")
        return nodes

    def call(self, tree: ast.Call, name: str, args: list[ast.expr], place: tuple[int, int]) -> Node:
        if name == "col":
            match args:
                case [ast.Constant(value=str() as column)]:
                    return Node("column", (), column, place)
            raise self.fail(tree, "col takes one column name as text", 'write col("a b")')
        if name not in FUNCTIONS:
            raise self.fail(tree.func, f"there is no function {name!r}", near(name, FUNCTIONS))
        least, most = FUNCTIONS[name]
        if not least <= len(args) <= most:
            wanted = str(least) if least == most else f"{least} or {most}"
            raise self.fail(tree, f"{name} takes {wanted} arguments, not {len(args)}")
        return Node(name, tuple(self.read(arg) for arg in args), None, place)
