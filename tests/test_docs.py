"""The documentation: its site builds, what it takes from the code is fresh, no link is dead."""

import re

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config as load_site
from mkdocs.exceptions import Abort

from envs import SUITES
from models import AGENTS
from rewards import CURIOSITIES
from rewards.suggesters import SUGGESTERS
from tests import generate_docs as generate
from tests.generate_docs import DOCS
from trainers.parts import LEARNERS
from utils.errors import ROOT, UserError
from utils.user_modules import GIVEN

SITE = ROOT / "mkdocs.yml"
CODE = ("*.py", "[a-z]*/*.py", "[a-z]*/*/*.py", "pyproject.toml")


def pages(folder=DOCS):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.md")}


def flaws(page):
    """Return what mkdocs passes over, or shows in another way than GitHub."""
    page = re.sub(r"^( *)```.*?^\1```", "", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"`[^`\n]*`", "code", page)
    item, row = r"(?:[-*]|\d+\.) ", r"\|"
    rules = {
        "an image without a description": r"!\[\s*\]\(",
        "a list without an empty line before it": rf"^(?! *{item})\S[^\n]*\n{item}",
        "a table without an empty line before it": rf"^(?!{row})\S[^\n]*\n{row}[^\n]*\n{row} ?:?--",
        "HTML": r"</?[a-z][a-z0-9]*[\s/>]",
    }
    return [name for name, rule in rules.items() if re.search(rule, page, re.MULTILINE)]


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    build(load_site(str(SITE), strict=True, site_dir=str(tmp_path / "site")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("[dead](nowhere.md)", "nowhere.md"),
        ("[no such heading](other.md#nowhere)", "#nowhere"),
        ("![nothing](nowhere.png)", "nowhere.png"),
        (None, 'not included in the "nav"'),
    ],
)
def test_a_flaw_of_a_link_or_a_page_that_is_left_out_ends_the_build(page, said, tmp_path, caplog):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n{page or ''}\n")
    (tmp_path / "docs" / "other.md").write_text("# Other\n\n## Heading\n")
    others = [] if page is None else ["other.md"]
    site = tmp_path / "mkdocs.yml"
    site.write_text(f"INHERIT: {SITE}\nnav: {['index.md', *others]}\nsite_dir: site\n")
    with pytest.raises(Abort):
        build(load_site(str(site), strict=True))
    assert [each.getMessage() for each in caplog.records if said in each.getMessage()]


@pytest.mark.parametrize("name", pages())
def test_a_page_reads_alike_in_both_places(name):
    assert flaws(pages()[name]) == []


@pytest.mark.parametrize(
    "page",
    ["![](picture.png)", "Text:\n- item\n", "Text:\n| a |\n|---|\n", "a <b>word</b>"],
)
def test_a_flaw_is_found(page):
    assert len(flaws(page)) == 1
    assert flaws("Text:\n\n- item\n  more\n- item\n\n| a |\n|---|\n\n![A curve](a.png) `<b>`") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, page in pages().items() if "generated:" in page])
def test_what_is_generated_is_fresh(name):
    try:
        fresh = generate.with_blocks(pages()[name])
    except UserError as error:
        pytest.skip(f"an environment cannot be made here: {error}")
    assert fresh == pages()[name]


def test_a_suite_that_the_page_does_not_know_is_told(monkeypatch):
    monkeypatch.setitem(SUITES, "New-v0", "envs.new:New")
    with pytest.raises(SystemExit, match=r"generate_docs\.py and SUITES differ in: New-v0"):
        generate.environments()


def test_a_page_of_what_cannot_be_made_here_is_left(monkeypatch, tmp_path, capsys):
    def unmade():
        raise UserError("env: no OpenGL")

    page = tmp_path / "page.md"
    page.write_text("<!-- generated: settings -->\n<!-- end -->\n")
    before = page.read_text()
    monkeypatch.setitem(generate.BLOCKS, "settings", unmade)
    monkeypatch.setattr("sys.argv", ["generate_docs", str(tmp_path)])
    assert generate.main() == 0
    assert capsys.readouterr().err == f"left as it is: {page}: env: no OpenGL\n"
    assert page.read_text() == before


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("environments", [name for name in SUITES if name != GIVEN]),
        ("memories", [*AGENTS.places, *AGENTS.aliases]),
        ("learners", LEARNERS.places),
        ("suggesters", SUGGESTERS.places),
        ("curiosity", CURIOSITIES.places),
    ],
)
def test_a_page_tells_of_every_part(page, names):
    text = (DOCS / f"reference/{page}.md").read_text()
    assert [name for name in names if f"`{name}" not in text] == []


def test_pages_that_the_code_names_exist():
    files = [path for each in CODE for path in ROOT.glob(each) if "build" not in path.parts]
    named = {
        each for path in files for each in re.findall(r"\bdocs/[\w/-]+\.\w+", path.read_text())
    }
    assert named
    assert [each for each in sorted(named) if not (ROOT / each).is_file()] == []
