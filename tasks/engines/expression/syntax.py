"""The small language of Lambda, Filter and source.filter: the same rules on both engines; no code is evaluated.

    price * 1.2 > 10 and brand in ["apple", "lg"] and col("event time") >= "2020-01-01"

## Grammar

    expression  = or
    or          = and { "or" and }
    and         = not { "and" not }
    not         = "not" not | comparison
    comparison  = sum { ("==" | "!=" | "<" | "<=" | ">" | ">=") sum }       1 < x <= 3
                | sum ["not"] "in" "[" literal { "," literal } "]"
                | sum "is" ["not"] "None"
    sum         = product { ("+" | "-") product }
    product     = sign { ("*" | "/" | "//" | "%") sign }
    sign        = "-" sign | term
    term        = literal | column | function "(" arguments ")" | "(" expression ")"
    column      = a name, or col("any name"); item.id is a field of a struct, or a column of this name
    literal     = 12 | 0.5 | 1e3 | "text" | 'text' | True | False | None
    arguments   = expressions by position, then by name: parse_number(x, decimal=",")

An expression is read as Python reads it, and may stand on several lines. In texts a backslash is written twice, or the
text begins with r: r"\\d+". It names one column at least, has 20,000 characters and 100 levels at most.

## Precedence

From what binds most to what binds least: brackets and functions; minus; `* / // %`; `+ -`; comparisons, `in` and `is`,
which chain (`1 < x < 3` is `1 < x and x < 3`); `not`; `and`; `or`. Operators of one rank go from left to right.

## Types

| family | types | in an expression |
|---|---|---|
| whole numbers | int8 to int64, uint8 to uint64 | int64; uint64 in uint64, which does not mix with signed columns |
| floats | float16, float32, float64 | float64 |
| booleans | bool | true and false; in arithmetic int64, 1 and 0 |
| texts | string | UTF-8 |
| times | timestamps of any unit and zone, dates | moments in UTC; a text or a column without a zone is UTC |
| lists | lists of these | their functions, `is None` |
| decimals | decimal128 | `is None` and `cast` only |

The type of the result is known from the schema alone: comparisons are bool, arithmetic int64, uint64 or float64, `/`
float64, a time minus a time float64 (seconds); a column alone keeps its type. Functions say theirs.

- Whole numbers of any width, and booleans, are computed in 64 bits. A number beyond these 64 bits is an error that
  names the expression, its part, the columns and the cure, but not in rows that another branch of `where`, `case`,
  `and` or `or` decides. `abs(x)` of the least int8 is 128.
- If one side is a float, both are computed in float64, in comparisons too: whole numbers beyond 2**53 are rounded, so
  that `x == 9007199254740992.0` is true for 9007199254740993. Numbers beyond float64 are infinite.
- Strings compare by their UTF-8 bytes; `+` joins strings.
- Times compare with times and with ISO 8601 text of up to nine digits behind the second; an offset (+02:00) counts.
  `t - u` and `t - "2020-01-01"` are seconds. A text that a column of times is given, as in `coalesce(t, "2020-01-01")`,
  must be a time of its unit.

## Nulls, zeros and infinities

- Null in, null out: also in comparisons and `in`. `and`, `or`, `not` are those of three-valued logic (Kleene). NaN is
  null. What answers for null: `is None`, `is_null`, `coalesce`, `case`, `least`, `greatest`.
- `/` gives float64: `x / 0` is infinite with the sign of x, `0 / 0` null. `//` and `%` round down, as in Python; by
  zero they are null for whole numbers. For floats `x // y` is floor(x / y), so that `x // 0` is infinite; `x % 0` is
  null, and a zero that `%` gives has the sign of the divisor.
- Infinities are numbers: equal to themselves, larger than all others; `-` of two of one sign, `0 *` one and `%` of one
  are null, `log(0)` is minus infinity, `exp(1000)` infinity.

## Casts and parses that fail

A `cast`, `parse_number`, `parse_time` or `parse_json` that cannot read a value gives null. A run counts the rows that
are null for it, by entry and expression, and says so in log, artifact and report. What `coalesce`, `where`, `case`,
`or` or `is None` answer for is not counted. With `strict: true`, of `Lambda`, of `Filter` and of the section `source`,
the first such value is an error that names it, its column, its file and its row there.

## Regular expressions

Patterns are those of RE2, on both engines, since Arrow works on them in host memory: no lookaround, no backreferences
in patterns, always in linear time. `(?i)` at the start ignores case, `(?s)` lets the point match line breaks. A pattern
fits anywhere unless `^` and `$` hold it; `$` is the end of the text alone, not a place before a line end. Letters are
Unicode, but `\\d`, `\\w`, `\\b` and `\\s` (which has no vertical tab) are ASCII. All else is as in Python's `re`, but
for groups that repeat what may be empty, `(a*)*`, and for patterns in `regex_replace` that may fit the empty text.

## On CPU and GPU

Results are equal, on CPU and GPU. The last bit of log, exp, sin and cos may differ. Functions marked host are
computed by Arrow in host memory on both engines; on a GPU the column is copied there and back. A function of texts
works on each distinct text once.

## Learned values

`min(x)`, `max(x)`, `mean(x)`, `std(x)` and `quantile(x, q)` of a column are learned once, in the pass of the statistics
over all rows that filters keep, and are saved with the workflow: `(x - mean(x)) / std(x)`. They stand in `Lambda`
alone, for a column of the source or one that an operator above makes; `_` is the selected column. `apply` and
`transform` of other data use what was learned. `min` and `max` take times and dates, too: `t - min(t)` are the seconds
since the first one. Mean, standard deviation and quantile are of numbers: of times, learn them from a column `epoch(t)`
that another Lambda makes. A refit merges min, max, mean and std (equal to a fit of all rows, mean
and std within 1e-12); an expression with `quantile` is frozen, since exact ranks need all rows again. An infinity is
the least or the greatest value; mean and std of a column with one cannot be learned. In `source.filter` and `Filter`
they are refused: values are learned from the rows that are left, so these must be known before. Make a column with
Lambda, and filter by it.
"""

from __future__ import annotations

import ast
import threading
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tasks.engines.expression.functions import FUNCTIONS, Function
from tasks.engines.expression.nodes import ExpressionNode, Typed, failure
from tasks.errors import JobError, near

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DEPTH = 100
MAX_LENGTH = 20_000

_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARE = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_CALCULATING = {
    "column",
    "literal",
    "negate",
    "+",
    "-",
    "*",
    "/",
    *_COMPARE.values(),
    "and",
    "or",
    "not",
    "in",
    "is None",
    "abs",
    "log",
    "exp",
    "sqrt",
    "least",
    "greatest",
    "where",
    "case",
    "coalesce",
    "is_null",
    "between",
}
_INSTEAD = {
    ast.IfExp: "write where(condition, a, b)",
    ast.Pow: "write x * x, or exp(y * log(x))",
    ast.BitAnd: "write and",
    ast.BitOr: "write or",
    ast.Invert: "write not",
    ast.Attribute: 'write lower(x); odd names are written col("a.b")',
    ast.Subscript: 'odd column names are written col("a[0]")',
}


_SIGNS = {
    "=": "compare with ==",
    "&": "write and",
    "|": "write or",
    "!": "write not, or !=",
    ">": "unequal is written !=",
}


@dataclass(frozen=True)
class Expression:
    """A parsed expression; equal, hashed and pickled by its text.

    `columns` are the names that it uses, in order; `learned` the values that are learned before it is evaluated;
    `typed` the typed steps by the names and types of columns for which they were made.
    """

    text: str
    root: ExpressionNode = field(compare=False, repr=False)
    columns: tuple[str, ...] = field(compare=False, repr=False)
    learned: tuple[ExpressionNode, ...] = field(default=(), compare=False, repr=False)
    typed: dict[tuple[tuple[str, pa.DataType], ...], Typed] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return parse, (self.text, bool(self.learned))

    @property
    def in_float64(self) -> bool:
        """Whether it gives the same for whole numbers as integers and as floats, as far as it only calculates.

        >>> [parse(text).in_float64 for text in ("log(x) > 1", "cast(x, 'float64') / 2", "cast(x, 'string')", "x // 2")]
        [True, True, False, False]
        """
        return _in_float64(self.root)

    @property
    def conjuncts(self) -> list[Expression]:
        """The conditions that must all be true for the expression to be true: the operands of its outer `and`s.

        >>> [part.columns for part in parse("a > 1 and (b or c) and (a and d)").conjuncts]
        [('a',), ('b', 'c'), ('a',), ('d',)]
        """
        return [Expression(self.text, node, tuple(dict.fromkeys(_columns(node)))) for node in _conjuncts(self.root)]


LEARNED_WHY = "values are learned from the rows that are left: which rows are left must be known before"


def parse(text: str, learned: bool = False) -> Expression:
    """Parse an expression; JobError, with the place, for text that is not part of the language.

    `learned`: values that are learned from all rows, such as `mean(price)`, may stand in it.
    """
    if not isinstance(text, str) or not text.strip():
        raise JobError(f"{text!r} is not an expression", do='write one as text, such as "price > 0"')
    lines = text.strip().splitlines()
    text = " ".join(line.strip() for line in lines)
    if len(text) > MAX_LENGTH:
        raise JobError(f"an expression of {len(text)} characters is too long", why=f"the limit is {MAX_LENGTH}")
    if len(lines) > 1 and "#" in text:
        raise failure(
            "a sign # in an expression of several lines",
            text,
            (text.index("#"), text.index("#") + 1),
            why="the text after it would be a comment",
            do="write it in one line",
        )
    tree = _syntax_tree(text)
    _refuse_depth(tree, text)
    root = _Reader(text, learned).read(tree)
    names = tuple(dict.fromkeys(_columns(root)))
    if not names:
        raise failure("names no column", text, (0, len(text)), do="use at least one column")
    return Expression(text, root, names, _collect_learned_calls(root))


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
    raise failure(
        "is nested too deeply",
        text,
        (0, 1),
        why=f"the limit is {MAX_DEPTH} levels",
        do="split it over several Lambda operators",
    )


def _conjuncts(node: ExpressionNode) -> list[ExpressionNode]:
    return [part for arg in node.args for part in _conjuncts(arg)] if node.verb == "and" else [node]


def _in_float64(node: ExpressionNode) -> bool:
    to_float = node.verb == "cast" and node.args[1].value in ("float32", "float64")
    return (to_float or node.verb in _CALCULATING) and all(_in_float64(arg) for arg in node.args)


def _columns(node: ExpressionNode) -> list[str]:
    return [node.value] if node.verb == "column" else [name for arg in node.args for name in _columns(arg)]


def state_name_of(node: ExpressionNode) -> str:
    """The name of a learned value in the state.

    >>> [state_name_of(node) for node in parse("x / max(x) + quantile(y, 0.5)", learned=True).learned]
    ['max(x)', 'quantile(y, 0.5)']
    """
    column, *more = node.args
    return f"{node.verb}({', '.join(str(arg.value) for arg in (column, *more))})"


def _collect_learned_calls(node: ExpressionNode) -> tuple[ExpressionNode, ...]:
    here = (node,) if node.verb in FUNCTIONS and FUNCTIONS[node.verb].runs == "learned" else ()
    return here + tuple(part for arg in node.args for part in _collect_learned_calls(arg))


class _Reader:
    """Turns Python's syntax tree into nodes; JobError for everything that is not part of the language."""

    def __init__(self, text: str, learned: bool) -> None:
        self.text = text
        self.learned = learned
        self.ascii = text.isascii()

    def place(self, tree: Any) -> tuple[int, int]:
        start = tree.col_offset
        end = tree.end_col_offset
        if self.ascii:
            return start, end
        encoded = self.text.encode()  # the syntax tree counts bytes
        return len(encoded[:start].decode()), len(encoded[:end].decode())

    def fail(self, tree: ast.expr | ast.keyword, what: str, do: str = "") -> JobError:
        return failure(what, self.text, self.place(tree), do)

    def read(self, tree: ast.expr) -> ExpressionNode:
        place = self.place(tree)
        match tree:
            case ast.Name(id=name):
                return ExpressionNode("column", (), name, place)
            case ast.Attribute(value=ast.Name() | ast.Attribute() as struct, attr=field):
                return ExpressionNode("column", (), f"{self.read(struct).value}.{field}", place)
            case ast.Constant(value=value):
                return self.literal(tree, value)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return self.literal(tree, -value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return ExpressionNode("negate", (self.read(operand),), None, place)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ExpressionNode("not", (self.read(operand),), None, place)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return ExpressionNode(_BINARY[type(op)], (self.read(left), self.read(right)), None, place)
            case ast.BoolOp(op=op, values=values):
                return ExpressionNode(
                    "and" if isinstance(op, ast.And) else "or", tuple(self.read(v) for v in values), None, place
                )
            case ast.Compare():
                return self.comparison(tree, place)
            case ast.Call(func=ast.Name(id=name)):
                return self.call(tree, name, place)
        reason = type(getattr(tree, "op", None)) if isinstance(tree, ast.BinOp | ast.UnaryOp) else type(tree)
        raise self.fail(tree, "this is not part of the language", _INSTEAD.get(reason, "write " + ", ".join(FUNCTIONS)))

    def literal(self, tree: ast.expr, value: object) -> ExpressionNode:
        if not (value is None or isinstance(value, bool | int | float | str)):
            raise self.fail(tree, f"a literal of type {type(value).__name__} is not part of the language")
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            raise self.fail(tree, "this number is too large for float64")
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise self.fail(tree, "this number is too large for 64 bits", "write it as a float, such as 1e20")
        return ExpressionNode("literal", (), value, self.place(tree))

    def comparison(self, tree: ast.Compare, place: tuple[int, int]) -> ExpressionNode:
        sides = [tree.left, *tree.comparators]
        pairs = [self.pair(op, sides[i], sides[i + 1], place) for i, op in enumerate(tree.ops)]
        return pairs[0] if len(pairs) == 1 else ExpressionNode("and", tuple(pairs), None, place)

    def pair(self, op: ast.cmpop, left: ast.expr, right: ast.expr, place: tuple[int, int]) -> ExpressionNode:
        if type(op) in _COMPARE:
            for side in (left, right):
                if isinstance(side, ast.Constant) and side.value is None:
                    raise self.fail(side, "nothing is equal to None", "write x is None or x is not None")
            return ExpressionNode(_COMPARE[type(op)], (self.read(left), self.read(right)), None, place)
        if isinstance(op, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self.fail(right, "`is` goes with None only", "write ==")
            node = ExpressionNode("is None", (self.read(left),), None, place)
        else:
            node = ExpressionNode("in", (self.read(left),), self.items(right), place)
        return ExpressionNode("not", (node,), None, place) if isinstance(op, ast.IsNot | ast.NotIn) else node

    def items(self, tree: ast.expr) -> tuple[ExpressionNode, ...]:
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

    def call(self, tree: ast.Call, name: str, place: tuple[int, int]) -> ExpressionNode:
        if name == "col":
            match tree:
                case ast.Call(args=[ast.Constant(value=str() as column)], keywords=[]):
                    return ExpressionNode("column", (), column, place)
            raise self.fail(tree, "col takes one column name as text", 'write col("a b")')
        if name not in FUNCTIONS:
            raise self.fail(tree.func, f"there is no function {name!r}", near(name, FUNCTIONS))
        function = FUNCTIONS[name]
        if function.runs == "learned" and not self.learned:
            raise failure(
                f"{name} is a learned value, which cannot stand here",
                self.text,
                place,
                why=LEARNED_WHY,
                do="make a column of it with Lambda, and filter by that column",
            )
        args = self.arguments(tree, function)
        if function.runs == "learned":
            self.check_learned(tree, args)
        return ExpressionNode(name, args, None, place)

    def check_learned(self, tree: ast.Call, args: tuple[ExpressionNode, ...]) -> None:
        assert isinstance(tree.func, ast.Name)
        if args[0].verb != "column":
            raise failure(
                f"{tree.func.id} learns from one column",
                self.text,
                args[0].place,
                "make a column of it first, with a Lambda of its own",
            )
        for q in args[1:]:
            if not (q.verb == "literal" and type(q.value) in (int, float) and 0 <= q.value <= 1):
                raise failure("q is a literal number from 0 to 1", self.text, q.place, "write quantile(x, 0.5)")

    def arguments(self, tree: ast.Call, function: Function) -> tuple[ExpressionNode, ...]:
        """The arguments in the order of the parameters; for what is left out, the default as a literal."""
        for arg in tree.args:
            if isinstance(arg, ast.Starred):
                raise self.fail(arg, "a star is not part of the language", "write the arguments one by one")
        args = [self.read(arg) for arg in tree.args]
        named = {}
        names = [parameter.name for parameter in function.parameters]
        for keyword in tree.keywords:
            if keyword.arg not in names:
                what = f"{function.name} has no argument {keyword.arg!r}"
                raise self.fail(keyword, what, f"{near(str(keyword.arg), names)} {function.signature}")
            if keyword.arg in named or names.index(keyword.arg) < len(args):
                raise self.fail(keyword, f"{keyword.arg} is there twice", function.signature)
            named[keyword.arg] = self.read(keyword.value)
        for parameter in function.parameters[len(args) :]:
            if parameter.name in named:
                args.append(named[parameter.name])
            elif parameter.optional:
                args.append(ExpressionNode("literal", (), parameter.default, self.place(tree)))
        number = len(tree.args) + len(named)
        most = len(names)
        if len(args) < most or (len(args) > most and not function.any_number):
            wanted = str(most) if function.least == most else f"{function.least} to {most}"
            wanted = f"at least {most}" if function.any_number else wanted
            raise self.fail(tree, f"{function.name} takes {wanted} arguments, not {number}", function.signature)
        return tuple(args)
