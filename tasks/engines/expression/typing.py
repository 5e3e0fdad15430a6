"""The type rules of expressions: from nodes and a schema to typed steps, before any data is read.

A typed step (`Typed`) has the exact operation and the type of its result, so that engines decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from tasks.core.dtypes import plain_type
from tasks.core.schema import Schema
from tasks.engines.expression.function_rules import FunctionRules, literal_type
from tasks.engines.expression.functions import FUNCTIONS
from tasks.engines.expression.nodes import ExpressionNode, Typed, convert_step
from tasks.engines.expression.syntax import Expression
from tasks.engines.expression.type_families import BOOL, FLOAT64, INT64, STRING, UINT64, family
from tasks.errors import near


def type_expression(expression: Expression, schema: Schema) -> Typed:
    """Make the typed steps of an expression; JobError, with the place, if the expression does not fit the schema."""
    return _Rules(schema, expression.text).type_node(expression.root)


def dtype_of(expression: Expression, schema: Schema) -> pa.DataType:
    """Return the type of the result; JobError, with the place, if the expression does not fit the schema."""
    return type_expression(expression, schema).dtype


class _Rules(FunctionRules):
    """The rules of literals, columns and operators.

    The base class has those of functions, and what all rules share, such as `fail`, `common` and `times`. It finds the
    rule of a function by name, here too: `between_` is the rule of `between`.
    """

    def __init__(self, schema: Schema, text: str) -> None:
        super().__init__(text)
        self.schema = schema
        self.operators: dict[str, Callable[..., Typed]] = {
            "is None": self.is_null_,
            "in": self.is_in,
            "negate": self.negate,
            "+": self.add,
            **dict.fromkeys(("-", "*", "/", "//", "%"), self.arithmetic),
            **dict.fromkeys(("and", "or", "not"), self.logic),
            **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), self.compare),
        }

    def type_node(self, node: ExpressionNode) -> Typed:
        if node.verb == "column":
            if node.value not in self.schema:
                raise self.fail(node, f"there is no column {node.value!r}", near(node.value, self.schema))
            return Typed("column", (), plain_type(self.schema[node.value].dtype), value=node.value, place=node.place)
        if node.verb == "literal":
            return Typed("literal", (), literal_type(node.value), value=node.value, place=node.place)
        args = tuple(self.type_node(arg) for arg in node.args)
        if node.verb in FUNCTIONS:
            return self.call(node, args)
        return self.operators[node.verb](node, *args)

    # numbers

    def arithmetic(self, node: ExpressionNode, *args: Typed) -> Typed:
        kinds = [family(arg.dtype) for arg in args]
        if node.verb == "-" and "time" in kinds and {*kinds} <= {"time", "string"}:
            return self.seconds_between(node, *args)
        common = self.common(args)
        dtype = FLOAT64 if node.verb == "/" else common
        return Typed(node.verb, tuple(convert_step(arg, dtype) for arg in args), dtype, place=node.place)

    def add(self, node: ExpressionNode, *args: Typed) -> Typed:
        if all(family(arg.dtype) == "string" for arg in args):
            if all(arg.is_literal for arg in args):
                raise self.fail(node, "joins two literals", "write them as one")
            return Typed("join", args, STRING, place=node.place)
        return self.arithmetic(node, *args)

    def negate(self, node: ExpressionNode, x: Typed) -> Typed:
        dtype = self.common([x])
        if dtype == UINT64:
            raise self.fail(node, "uint64 has no negative numbers", "write -cast(x, 'int64')")
        return Typed("negate", (convert_step(x, dtype),), dtype, place=node.place)

    # truth

    def logic(self, node: ExpressionNode, *args: Typed) -> Typed:
        for arg in args:
            if arg.dtype != BOOL:
                raise self.fail(
                    arg, f"`{node.verb}` needs true or false, this is {arg.dtype}", "compare it: x != 0, x is not None"
                )
        return Typed(node.verb, args, BOOL, place=node.place)

    def compare(self, node: ExpressionNode, *args: Typed) -> Typed:
        verb, steps = self._make_comparable(node, args, node.verb)
        return Typed(verb, steps, BOOL, place=node.place)

    def between_(self, node: ExpressionNode, x: Typed, low: Typed, high: Typed) -> Typed:
        sides = [self.compare(ExpressionNode("<=", (), None, node.place), *pair) for pair in ((low, x), (x, high))]
        return Typed("and", tuple(sides), BOOL, place=node.place)

    def _make_comparable(
        self, node: ExpressionNode, args: tuple[Typed, ...], verb: str
    ) -> tuple[str, tuple[Typed, ...]]:
        """Convert the arguments to one type; return (the verb that compares values of this type, the arguments)."""
        kinds = {family(arg.dtype) for arg in args}
        if "time" in kinds and kinds <= {"time", "string"}:
            steps, unit = self.times(args)
            # Times are compared as counts of the finest unit.
            return verb, tuple(Typed("ticks", (step,), INT64, value=unit, place=step.place) for step in steps)
        if kinds == {"string"}:
            if all(arg.is_literal for arg in args):
                raise self.fail(node, "compares literals only", "name a column")
            return "text " + verb, args
        if "string" in kinds or not kinds <= {"bool", "int", "float", "decimal"}:
            types = " with ".join(str(arg.dtype) for arg in args[:2])
            raise self.fail(node, f"cannot compare {types}", _advise_comparison(args, kinds))
        dtype = self.common(args)
        return verb, tuple(convert_step(arg, dtype) for arg in args)

    def is_in(self, node: ExpressionNode, x: Typed) -> Typed:
        items = tuple(self.type_node(item) for item in node.value)
        if x.is_literal:
            raise self.fail(x, "looks for a literal in literals", "name a column")
        if not items:
            # Only the engines' `in` for numbers takes an empty list.
            return Typed("in", (x,), BOOL, value=(), place=node.place) if self.is_number(x) else self._never(node, x)
        verb, steps = self._make_comparable(node, (x, *items), "in")
        return Typed(verb, steps[:1], BOOL, value=steps[1:], place=node.place)

    def _never(self, node: ExpressionNode, x: Typed) -> Typed:
        """Make `x in []` for a type that is not a number: false, null for null."""
        never = Typed("is None", (x,), BOOL, place=node.place)
        null = Typed("literal", (), pa.null(), None, node.place)
        return Typed(
            "where", (never, convert_step(null, BOOL), Typed("literal", (), BOOL, False)), BOOL, place=node.place
        )


def _advise_comparison(args: Sequence[Typed], kinds: set[str]) -> str:
    """Write how to make values comparable."""
    if "time" in kinds and kinds <= {"time", "int", "float", "bool"}:
        return "write cast(x, 'int64') of the time, for the count of its unit"
    if not kinds <= {"string", "bool", "int", "float", "decimal"}:
        return "name another column: these values are not compared"
    texts = [arg for arg in args if family(arg.dtype) == "string"]
    # A literal in quotes is meant as text, so it is the other value that is converted.
    has_literal = any(arg.is_literal for arg in texts)
    return "write cast(x, 'string') of the other" if has_literal else "write cast(x, 'float64') of the text"
