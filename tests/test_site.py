"""The documentation: navigation, links, tables, and the names of other packages in them. `make docs` builds it."""

import dataclasses
import importlib.util
import pydoc
import re
from pathlib import Path

import pytest
import yaml

import midthought
from midthought.config import ConfigStore

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


def test_the_navigation_has_every_page_once():
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    listed = [page for section in sections for pages in section.values() for page in pages]
    assert sorted(listed) == [page.name for page in PAGES]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_the_links_of_a_page_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []
    assert page not in PAGES or not any(target.startswith("../") for target in targets), "the site has only its pages"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "settings.md"], ids=lambda page: page.name)
def test_a_cell_of_a_table_has_at_most_120_characters(page):
    rows = [line for line in page.read_text("utf-8").splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert [cell for cell in cells if len(cell) > 120] == []


def test_the_pages_that_the_code_names_exist():
    folders = [ROOT / name for name in ("midthought", "tests", "benchmarks", "examples")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    found = {(path.name, each) for path in files for each in re.findall(r"docs/[\w-]+\.md", path.read_text("utf-8"))}
    assert {(name, each) for name, each in found if not (ROOT / each).exists()} == set()


def rows() -> list[list[str]]:
    """The rows of the table of settings in coming_from.md."""
    table = (ROOT / "docs/coming_from.md").read_text("utf-8").partition("\n## Settings\n")[2].partition("\n## ")[0]
    found = [line.strip("|\n ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert len(found) > 20
    return found


def names(cell: str) -> list[str]:
    """Settings in backticks, each with the section of the first: "`training.clip_ratio`, `clip_ratio_high`"."""
    found = [name.partition("=")[0] for name in re.findall(r"`([\w.=]+)`", cell)]
    section = found[0].rpartition(".")[0] if found else ""
    return [name if "." in name or not section else f"{section}.{name}" for name in found]


def test_the_settings_in_the_table_of_other_packages_exist():
    for here, *_ in rows():
        for name in names(here):
            section, _, key = name.partition(".")
            assert key in ConfigStore.model_fields[section].annotation.model_fields, name


def test_trls_settings_exist():
    trl = pytest.importorskip("trl")
    fields = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    assert [name for _, cell, *_ in rows() for name in names(cell) if name not in fields] == []


def test_verls_settings_exist():
    found = importlib.util.find_spec("verl")
    if found is None or found.origin is None:
        pytest.skip("needs verl")
    text = (Path(found.origin).parent / "trainer/config/_generated_ppo_trainer.yaml").read_text("utf-8")
    settings = yaml.safe_load(text)
    for *_, cell in rows():
        for name in names(cell):
            value = settings
            for part in name.split("."):
                assert part in value, name
                value = value[part]


def test_the_names_in_the_table_of_the_original_packages_exist():
    table = (ROOT / "docs/coming_from.md").read_text("utf-8").partition("## The original packages")[2]
    cells = [line.strip("|").rpartition(" | ")[2] for line in table.splitlines() if line.startswith("| ")]
    for name in {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}:
        owner, _, attribute = name.partition(".")
        if re.fullmatch(r"[A-Z]\w*", name):
            assert name in midthought.__all__
        elif re.fullmatch(r"midthought(\.\w+)+", name):
            assert pydoc.locate(name) is not None, name
        elif re.fullmatch(r"[A-Z]\w+(\.\w+)+", name):
            assert hasattr(getattr(midthought, owner), attribute)
        elif re.fullmatch(r"(inference|training|model|ray)\.\w+", name):
            assert attribute in ConfigStore.model_fields[owner].annotation.model_fields
