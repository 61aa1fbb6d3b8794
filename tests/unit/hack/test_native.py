"""Modules that are compiled: what machine code does otherwise than Python is not in them."""

import ast

import pytest

from eldr_image.native import COLD, ROOT, modules


@pytest.fixture(params=modules())
def tree(request) -> ast.Module:
    return ast.parse((ROOT / request.param).read_text())


def test_the_hot_path_is_compiled_and_the_rest_says_why_not():
    found = modules()
    assert {"eldr/core/union.py", "router/eldr_router/flow/completion.py"} <= set(found)
    assert not COLD.keys() & set(found)
    assert [path for path in COLD if not (ROOT / path).exists()] == []


def test_no_dataclass_has_slots(tree):
    """A class with slots is made a second time: the one that a module shows would not be the one that its functions make."""
    slots = [
        one.name
        for one in ast.walk(tree)
        if isinstance(one, ast.ClassDef)
        for decorator in one.decorator_list
        if isinstance(decorator, ast.Call) and "slots" in {word.arg for word in decorator.keywords}
    ]
    assert slots == [], "leave slots=True out: compiled classes have slots anyway"


def test_no_coroutine_binds_a_name_to_errors_of_two_kinds(tree):
    """Compiled, the name has the type of the first: another error is a TypeError."""
    coroutines = [one for one in ast.walk(tree) if isinstance(one, ast.AsyncFunctionDef)]
    for function in coroutines:
        kinds: dict[str, set[str]] = {}
        for one in ast.walk(function):
            if isinstance(one, ast.ExceptHandler) and one.name and one.type:
                kinds.setdefault(one.name, set()).add(ast.unparse(one.type))
        assert [name for name, found in kinds.items() if len(found) > 1] == [], function.name


def test_no_class_is_read_by_its_annotations(tree):
    """msgspec and pydantic make their classes of annotations, which machine code does not keep as they are."""
    bases = {
        ast.unparse(base) for one in ast.walk(tree) if isinstance(one, ast.ClassDef) for base in one.bases
    }
    assert not bases & {"Struct", "msgspec.Struct", "BaseModel", "CamelModel"}
