"""What a release needs besides the code: one version, workflows, citation, and the table of old names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import stimulus_moo

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def workflow(name: str) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(read(f".github/workflows/{name}.yml"))
    return found


def test_the_version_has_one_place() -> None:
    project = tomllib.loads(read("pyproject.toml"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/stimulus_moo/__init__.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+", stimulus_moo.__version__)
    assert "release = __version__" in read("docs/conf.py")
    assert "version" not in yaml.safe_load(read("CITATION.cff"))


def test_a_tag_is_published_by_trusted_publishing_after_the_installs() -> None:
    release = workflow("release")
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key "on" as true
    jobs = release["jobs"]
    assert jobs["publish"]["needs"] == "install"
    assert jobs["install"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert not re.search(r"password:|secrets\.|repository-url", read(".github/workflows/release.yml"))


def test_workflows_install_on_every_python_that_the_package_names() -> None:
    classifiers = tomllib.loads(read("pyproject.toml"))["project"]["classifiers"]
    named = [c.rsplit(" ", 1)[1] for c in classifiers if re.search(r":: 3\.\d+$", c)]
    test = workflow("test")["jobs"]
    for jobs in (workflow("release")["jobs"]["install"], test["test"], test["package"]):
        assert jobs["strategy"]["matrix"]["python"] == named


def test_the_citation_names_the_authors_of_the_readme() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))["preferred-citation"]
    readme = " ".join(read("README.md").split())
    assert " and ".join(f"{a['family-names']}, {a['given-names']}" for a in citation["authors"]) in readme
    assert citation["title"] in readme.replace("{", "").replace("}", "")


def test_issue_forms_have_a_name_and_fields() -> None:
    for form in ("bug", "idea"):
        found = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{form}.yml"))
        assert {"name", "description", "body"} <= set(found)
        assert all(field["attributes"]["label"] for field in found["body"])
    (link,) = yaml.safe_load(read(".github/ISSUE_TEMPLATE/config.yml"))["contact_links"]
    assert link["url"] == stimulus_moo.errors.DOCS


def test_the_changelog_has_every_old_name() -> None:
    table = read("CHANGELOG.md").split("### Upgrade from 0.1", 1)[1].split("\n### ", 1)[0]
    for name in ("AUTO_METHOD", "takes_auto_lr", "SmoothnessLR"):
        assert name in table


def test_the_site_is_built_for_every_version() -> None:
    site = yaml.safe_load(read(".readthedocs.yaml"))
    assert site["sphinx"] == {"configuration": "docs/conf.py", "fail_on_warning": True}
