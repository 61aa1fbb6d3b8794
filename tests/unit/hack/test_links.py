"""Links between pages lead to a file, and to a heading of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    path
    for top in ("*.md", "docs/**/*.md", "charts/**/*.md", "hack/**/*.md")
    for path in ROOT.glob(top)
    if ".venv" not in path.parts
)


def text(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return what GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", text(page), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        known = other.exists() and (not anchor or other.suffix != ".md" or anchor in anchors(other))
        lost += [] if known else [target]
    assert lost == []


def test_the_index_names_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    named = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", index)}
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages - named - {"README.md", "package.md"} == set()
