"""Compute numbers and conditions of configuration files without ``eval``.

Main types: ``compute_number`` for values such as ``60 * 1000 * 1000``, ``Condition`` for filters such as ``i % 2 ==
1``.

Invariants: only arithmetic, comparisons, ``and or not``, ``in`` with a literal list, and bound names are computed.
Integers beyond 64 bits and exponents above 64 are refused, so an expression costs little. An error shows the text and
a caret.
"""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from monolith.core.errors import ConfigError

__all__ = ["Condition", "compute_number"]

_MAX_LENGTH = 1000
_MAX_EXPONENT = 64
_INT64 = 1 << 63

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, group: value in group,
    ast.NotIn: lambda value, group: value not in group,
}


def compute_number(text: str) -> int | float:
    """Return the value of an arithmetic expression.

    >>> compute_number("60 * 1000 * 1000"), compute_number("-(7 // 2)"), compute_number("1.5")
    (60000000, -3, 1.5)

    Raises:
        ConfigError: The text is not such an expression; the error shows the position.
    """
    value = _Evaluator(text, allows_conditions=False).value(_parse(text), {})
    return value  # type: ignore[no-any-return]


class Condition:
    """A condition over integer names.

    >>> Condition("i % 2 == 1 and i not in (3, 5)", ["i"]).holds({"i": 7})
    True

    Args:
        text: The expression.
        names: The names that ``holds`` binds.

    Raises:
        ConfigError: The text is not a condition, uses another name, or can never be computed.
    """

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.text = text.strip()
        self._tree = _parse(self.text)
        self._evaluator = _Evaluator(self.text, allows_conditions=True)
        self._evaluator.check(self._tree, names)

    def holds(self, values: Mapping[str, int]) -> bool:
        """Return True if the condition is true for these values.

        Raises:
            ConfigError: The condition cannot be computed for these values, for example a division by zero.
        """
        return bool(self._evaluator.value(self._tree, values))


def _parse(text: str) -> ast.expr:
    if len(text) > _MAX_LENGTH:
        raise ConfigError(f"expression is {len(text)} characters long, expected at most {_MAX_LENGTH}; shorten it")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        column = (getattr(error, "offset", None) or 1) - 1
        _fail(text.strip(), column, "cannot be parsed")


def _fail(text: str, column: int, reason: str) -> NoReturn:
    raise ConfigError(
        f"expression {text!r} is invalid at column {column + 1}: {reason}; "
        f"write numbers, + - * / // % **, comparisons, and, or, not\n  {text}\n  {' ' * column}^"
    )


class _Evaluator:
    """Computes a syntax tree; ``text`` is for errors."""

    def __init__(self, text: str, *, allows_conditions: bool) -> None:
        self._text = text.strip()
        self._allows_conditions = allows_conditions

    def check(self, tree: ast.expr, names: Sequence[str]) -> None:
        """Refuse unknown names, forms that are not allowed, and parts that cannot be computed for any value."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in names:
                listed = ", ".join(names) or "none"
                self._fail(node, f"name {node.id!r} is not bound by the pattern, which binds {listed}")
            if isinstance(node, ast.expr) and not any(isinstance(part, ast.Name) for part in ast.walk(node)):
                self._check_constant(node)
            if (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod))
                and not any(isinstance(part, ast.Name) for part in ast.walk(node.right))
                and self.value(node.right, {}) == 0
            ):
                self._fail(node.right, "division by zero")
        self._check_forms(tree, names)

    def _check_constant(self, node: ast.expr) -> None:
        if not isinstance(node, (ast.Tuple, ast.List)):
            self.value(node, {})

    def _check_forms(self, tree: ast.expr, names: Sequence[str]) -> None:
        with contextlib.suppress(_NotComputable):
            self.value(tree, dict.fromkeys(names, 1), is_trial=True)

    def value(self, node: ast.expr, names: Mapping[str, int], *, is_trial: bool = False) -> Any:
        """Return the value of a part of the tree. A trial visits all parts and ignores failed arithmetic."""
        match node:
            case ast.Constant(value=bool() as truth) if self._allows_conditions:
                return truth
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return self._bounded(node, number)
            case ast.Name(id=name) if self._allows_conditions and name in names:
                return names[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._bounded(node, -self._number(operand, names, is_trial))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._number(operand, names, is_trial)
            case ast.UnaryOp(op=ast.Not(), operand=operand) if self._allows_conditions:
                return not self.value(operand, names, is_trial=is_trial)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self._arithmetic(
                    node, op, self._number(left, names, is_trial), self._number(right, names, is_trial), is_trial
                )
            case ast.BoolOp(op=op, values=parts) if self._allows_conditions:
                return self._connect(op, parts, names, is_trial)
            case ast.Compare(left=left, ops=ops, comparators=others) if self._allows_conditions:
                return self._compare(left, ops, others, names, is_trial)
            case _:
                self._fail(node, "this form is not allowed")

    def _number(self, node: ast.expr, names: Mapping[str, int], is_trial: bool) -> int | float:
        value = self.value(node, names, is_trial=is_trial)
        return int(value) if isinstance(value, bool) else value

    def _arithmetic(self, node: ast.expr, op: ast.operator, left: Any, right: Any, is_trial: bool) -> Any:
        if isinstance(op, ast.Pow) and abs(right) > _MAX_EXPONENT:
            self._fail(node, f"exponent {right} is above {_MAX_EXPONENT}")
        try:
            value = _ARITHMETIC[type(op)](left, right)
        except ZeroDivisionError:
            if is_trial:
                raise _NotComputable from None
            self._fail(node, "division by zero")
        except OverflowError:
            self._fail(node, "the result is too large")
        return self._bounded(node, value)

    def _connect(self, op: ast.boolop, parts: Sequence[ast.expr], names: Mapping[str, int], is_trial: bool) -> bool:
        is_and = isinstance(op, ast.And)
        result = is_and
        for part in parts:
            value = bool(self.value(part, names, is_trial=is_trial))
            if value is not is_and:
                result = not is_and
                if not is_trial:
                    break
        return result

    def _compare(
        self,
        left: ast.expr,
        ops: Sequence[ast.cmpop],
        others: Sequence[ast.expr],
        names: Mapping[str, int],
        is_trial: bool,
    ) -> bool:
        result = True
        value = self.value(left, names, is_trial=is_trial)
        for op, other in zip(ops, others, strict=True):
            compare = _COMPARISONS.get(type(op))
            if compare is None:
                self._fail(other, "this comparison is not allowed")
            if isinstance(op, (ast.In, ast.NotIn)):
                other_value: Any = self._group(other, names, is_trial)
            else:
                other_value = self.value(other, names, is_trial=is_trial)
            if not compare(value, other_value):
                result = False
                if not is_trial:
                    break
            value = other_value
        return result

    def _group(self, node: ast.expr, names: Mapping[str, int], is_trial: bool) -> list[Any]:
        if not isinstance(node, (ast.Tuple, ast.List)):
            self._fail(node, "in needs a list such as (1, 2)")
        return [self.value(item, names, is_trial=is_trial) for item in node.elts]

    def _bounded(self, node: ast.expr, value: Any) -> Any:
        if isinstance(value, complex):
            self._fail(node, "the result is not a real number")
        if isinstance(value, int) and not -_INT64 <= value < _INT64:
            self._fail(node, "the result needs more than 64 bits")
        return value

    def _fail(self, node: ast.expr, reason: str) -> NoReturn:
        _fail(self._text, node.col_offset, reason)


class _NotComputable(Exception):
    """A trial met values for which the expression cannot be computed."""
