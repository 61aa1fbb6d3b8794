"""The picture of a request's way in the developers' documentation is what the code does."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "router" / "eldr_router"
TEXT = (ROOT / "docs" / "development" / "router.md").read_text()
MODULES = {"/".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}


def imports(module: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("eldr_router"):
            base = "/".join(node.module.split(".")[1:])
            names = [f"{base}/{alias.name}".strip("/") for alias in node.names]
            found |= {name if name in MODULES else base for name in names}
    return found


def walk() -> list[str]:
    return re.findall(r"^\| \d+ \| `([a-z_/]+)`", TEXT, re.MULTILINE)


def drawn() -> set[tuple[str, str]]:
    titles = dict(re.findall(r'^ +(\w+)\["([a-z_/]+)"\]$', TEXT, re.MULTILINE))
    assert sorted(titles.values()) == sorted(walk()), "the picture shows the modules of the walk, each once"
    return {(titles[a], titles[b]) for a, b in re.findall(r"^ +(\w+) --> (\w+)$", TEXT, re.MULTILINE)}


def test_the_walk_crosses_each_module_once():
    assert len(walk()) == len(set(walk()))
    assert set(walk()) <= MODULES.keys()


def test_the_picture_shows_the_imports_and_no_others():
    modules = set(walk())
    assert drawn() == {(module, other) for module in modules for other in imports(module) & modules}


def test_whatever_is_reached_from_the_walk_is_named():
    reached: set[str] = set()
    ahead = set(walk())
    while ahead:
        module = ahead.pop()
        reached.add(module)
        ahead |= (imports(module) & MODULES.keys()) - reached
    (aside,) = re.findall(r"Off the way, (.*?)\n\n", TEXT, re.DOTALL)
    assert reached - set(walk()) == set(re.findall(r"`([a-z_/]+)`", aside))


def test_rooms_import_what_the_table_says():
    allowed = {
        room: {room, *re.findall(r"`([a-z_/]+)`", may)}
        for room, may in re.findall(r"^\| `(\w+)/` \|.*\| (.*?)\|$", TEXT, re.MULTILINE)
    }
    for module in MODULES:
        room = module.partition("/")[0]
        if room in allowed:
            others = {other for other in imports(module) & MODULES.keys() if "/" in other}
            strange = {
                o for o in others if o not in allowed[room] and o.partition("/")[0] not in allowed[room]
            }
            assert not strange, module
    used = {(m.partition("/")[0], o.partition("/")[0]) for m in MODULES for o in imports(m)}
    assert not [
        (room, may)
        for room in allowed
        for may in allowed[room]
        if may != room and (room, may.partition("/")[0]) not in used
    ]


def test_there_is_no_way_back():
    graph: dict[str, set[str]] = {module: imports(module) & MODULES.keys() for module in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_every_room_is_described():
    rooms = {path.parent.name for path in MODULES.values()} - {"eldr_router"}
    assert rooms == set(re.findall(r"^\| `(\w+)/` \|", TEXT, re.MULTILINE))
