"""``Readers``: finds code that uses a setting, and looks through copies of it.

A copy hands a value on without use: an argument, an entry of a dictionary, an assignment, a field of another class. A
copy counts as a use if the receiver uses it. Receivers outside of the sources, such as functions of libraries, use
all arguments. Names stand for themselves: the search does not distinguish two classes with one field name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

PASSED_ON = (ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Starred)
CONVERSIONS = frozenset({"bool", "dict", "float", "int", "list", "max", "min", "Path", "set", "str", "tuple"})
"""Calls that return their argument in another form."""
COPIES_OF_SETTINGS = frozenset({"replace_settings"})
"""Calls whose keywords are settings, which have readers themselves."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Module:
    """The syntax tree of a module, with the parent of each node and the attribute behind each local name."""

    name: str
    tree: ast.Module

    def __post_init__(self) -> None:
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def enclosing(self, node: ast.AST, kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> ast.AST | None:
        """Return the innermost node of a kind around ``node``."""
        while (node := self.parents.get(node)) is not None and not isinstance(node, kind):  # type: ignore[assignment]
            pass
        return node


class Readers:
    """Finds the uses of attributes in modules.

    Args:
        modules: Syntax trees by name, without the functions that do not count as readers.
        settings: Names of settings that ``replace_settings`` may receive.
    """

    def __init__(self, modules: Mapping[str, ast.Module], settings: Collection[str] = ()) -> None:
        self._modules = [Module(name, tree) for name, tree in modules.items()]
        self._settings = settings
        self._definitions: dict[str, list[tuple[Module, Function | ast.ClassDef]]] = defaultdict(list)
        self._attributes: dict[str, list[tuple[Module, ast.Attribute]]] = defaultdict(list)
        self._parameters: dict[str, list[tuple[Module, Function]]] = defaultdict(list)
        self._visited: set[ast.AST] = set()
        for module in self._modules:
            for node in ast.walk(module.tree):
                if isinstance(node, Function):
                    self._definitions[node.name].append((module, node))
                    for name in parameters(node):
                        self._parameters[name].append((module, node))
                elif isinstance(node, ast.ClassDef):
                    self._definitions[node.name].append((module, node))
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    self._attributes[node.attr].append((module, node))

    def uses(self, attribute: str, holders: Collection[str] | None = None) -> bool:
        """Return whether code uses ``holder.attribute``.

        A holder is the last name before the dot, or the attribute that this name was assigned; None = any holder.
        """
        self._visited.clear()
        return any(
            self._is_used(module, node)
            for module, node in self._attributes[attribute]
            if holders is None or origins(module, node.value) & set(holders)
        )

    # --- a value and its receiver ---

    def _is_used(self, module: Module, node: ast.AST) -> bool:
        """Return whether the receiver of a value uses it."""
        if node in self._visited:
            return False
        self._visited.add(node)
        parent = module.parents[node]
        match parent:
            case ast.keyword(arg=str(name)):
                return self._call_uses(module, module.parents[parent], name)
            case ast.Call() if node in parent.args:
                return self._call_uses(module, parent, parent.args.index(node))  # type: ignore[arg-type]
            case ast.Dict() if node in parent.values:
                key = parent.keys[parent.values.index(node)]  # type: ignore[arg-type]
                return not isinstance(key, ast.Constant) or self._option_used(str(key.value))
            case ast.Tuple() if isinstance(module.parents[parent], ast.Assign):
                return self._assigned_used(module, module.parents[parent], parent.elts.index(node))  # type: ignore[arg-type]
            case ast.Assign() | ast.AnnAssign():
                return self._assigned_used(module, parent, None)
            case ast.IfExp() if node is not parent.test:
                return self._is_used(module, parent)
            case ast.Return():
                return self._returned_used(module, parent)
            case _ if isinstance(parent, PASSED_ON):
                return self._is_used(module, parent)
        return True

    def _call_uses(self, module: Module, call: ast.AST, argument: str | int) -> bool:
        if not isinstance(call, ast.Call):
            return True
        name = last_name(call.func)
        if name in CONVERSIONS:
            return self._is_used(module, call)
        if name in COPIES_OF_SETTINGS and isinstance(argument, str):
            return argument in self._settings
        if name == "replace" and isinstance(argument, str):
            return self._field_used(argument)
        if name == "cls":
            owner = module.enclosing(call, ast.ClassDef)
            return isinstance(owner, ast.ClassDef) and self._definition_uses(module, owner, argument)
        receivers = self._definitions[name]
        return not receivers or any(self._definition_uses(each, node, argument) for each, node in receivers)

    def _definition_uses(self, module: Module, node: Function | ast.ClassDef, argument: str | int) -> bool:
        if isinstance(node, ast.ClassDef):
            makers = [each for each in node.body if isinstance(each, Function) and each.name == "__init__"]
            if makers:
                return self._definition_uses(module, makers[0], argument)
            fields = [each.target.id for each in node.body if is_field(each)]  # type: ignore[attr-defined]
            if isinstance(argument, int):
                return argument >= len(fields) or self._field_used(fields[argument])
            return argument not in fields or self._field_used(argument)  # inherited: the base is looked at by itself
        names = parameters(node)
        if isinstance(argument, int):
            argument += names[:1] in (["self"], ["cls"])
            return argument >= len(names) or self._name_used(module, node, names[argument])
        return argument not in names or self._name_used(module, node, argument)

    def _option_used(self, name: str) -> bool:
        """Return whether a function uses a parameter of a name, or code a field of it."""
        functions = self._parameters[name]
        if any(self._name_used(module, node, name) for module, node in functions):
            return True
        fields = [node for _, node in self._attributes[name] if node not in self._visited]
        return self._field_used(name) if functions or fields else True

    def _field_used(self, name: str) -> bool:
        return any(self._is_used(module, node) for module, node in self._attributes[name])

    def _name_used(self, module: Module, scope: ast.AST, name: str) -> bool:
        return any(
            self._is_used(module, node)
            for node in ast.walk(scope)
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        )

    def _assigned_used(self, module: Module, assignment: ast.AST, place: int | None) -> bool:
        targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]  # type: ignore[attr-defined]
        for target in targets:
            if place is not None and isinstance(target, ast.Tuple):
                target = target.elts[place]
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(each, ast.Attribute):
                    if self._setter_uses(each.attr) or any(
                        self._is_used(module, node) for at, node in self._attributes[each.attr] if at is module
                    ):
                        return True
                elif isinstance(each, ast.Name):
                    scope = module.enclosing(assignment, (*Function.__args__, ast.Module))
                    if self._name_used(module, scope or module.tree, each.id):
                        return True
                else:
                    return True
        return False

    def _setter_uses(self, attribute: str) -> bool:
        return any(
            self._name_used(module, node, parameters(node)[1])
            for module, node in self._definitions[attribute]
            if isinstance(node, Function)
            and any(ast.unparse(each) == f"{attribute}.setter" for each in node.decorator_list)
        )

    def _returned_used(self, module: Module, node: ast.AST) -> bool:
        function = module.enclosing(node, Function.__args__)
        if isinstance(function, Function) and any("property" in ast.unparse(each) for each in function.decorator_list):
            return self._field_used(function.name)
        return True


# --- names ---


def last_name(node: ast.AST) -> str:
    """Return the last name of ``a.b.c``; the whole text of other expressions."""
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)


def origins(module: Module, holder: ast.AST) -> set[str]:
    """Return the last name of a holder, and the attribute that a local name of it was assigned."""
    name = last_name(holder)
    found = {name}
    if isinstance(holder, ast.Name):
        found |= {attribute for target, attribute in _aliases(module) if target == name}
    return found


def _aliases(module: Module) -> Iterable[tuple[str, str]]:
    if not hasattr(module, "aliases"):
        module.aliases = list(_find_aliases(module.tree))  # type: ignore[attr-defined]
    return module.aliases  # type: ignore[attr-defined,no-any-return]


def _find_aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.NamedExpr):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            is_tuple = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=False) if is_tuple else [(target, node.value)]  # type: ignore[attr-defined]
            for name, value in pairs:
                while isinstance(value, ast.BoolOp):
                    value = value.values[0]
                if isinstance(name, ast.Name) and isinstance(value, ast.Attribute):
                    yield name.id, value.attr


def parameters(function: Function) -> list[str]:
    """Return the names of the parameters, positional ones first."""
    arguments = function.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def is_field(statement: ast.stmt) -> bool:
    """Return whether a statement of a class declares a field."""
    return (
        isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and "ClassVar" not in ast.unparse(statement.annotation)
    )
