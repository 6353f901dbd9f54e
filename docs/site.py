"""What MkDocs has to know of this repository: pages that lie outside ``docs``, anchors, and the reference.

The pages are written for a repository's page. In the site README is the home, the index a page of its own, and links
are turned to where their targets went; what is not in the site, as a source file, is named without a link.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
MOVED = {
    "README.md": "index.md",
    "docs/index.md": "all-pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FETCHED = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
WITHIN = {"cli", "experiments"}  # they are used by their commands


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """GitHub's anchors, which the pages link to, and the reference at the end of the navigation."""
    config.mdx_configs["toc"]["slugify"] = slug
    assert config.nav is not None
    pages = [{name: f"api/{name}.md"} for name in rooms()]
    config.nav.append({"Reference": [{"bayesrule": "api/bayesrule.md"}, *pages]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages from outside, under their names in the site, and a page of the reference for each room."""
    files.remove(files.src_uris["index.md"])
    made = {target: (ROOT / source).read_text(encoding="utf-8") for source, target in MOVED.items()}
    made["api/bayesrule.md"] = "# bayesrule\n\n::: bayesrule\n"
    made |= {f"api/{name}.md": f"# bayesrule.{name}\n\n::: bayesrule.{name}\n" for name in rooms()}
    for target, text in made.items():
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """The page with its links as they are in the site."""
    came_from = {target: source for source, target in MOVED.items()}
    source = came_from.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def turned(found: re.Match[str]) -> str:
        mark, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        if not target or ":" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        where = MOVED.get(path, path.removeprefix("docs/"))
        if where not in files.src_uris:
            return text
        return f"{mark}[{text}]({posixpath.relpath(where, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    # Links in code are no links: every second part is a block between fences.
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if index % 2 else LINK.sub(turned, part) for index, part in enumerate(parts))


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """The page with our own script in the place of the one that would be fetched, for the search without a server."""
    own = posixpath.relpath("offline-worker.js", posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace(FETCHED, f'<script src="{own}"></script>')


def on_post_template(output_content: str, **_: Any) -> str:
    """The page of what is not found, likewise; only a server shows it."""
    return output_content.replace(FETCHED, "")


def slug(heading: str, separator: str) -> str:
    """The anchor of a heading as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def rooms() -> list[str]:
    """The modules of the package whose names are not private, by the tree of docs/design.md."""
    tree = (ROOT / "docs/design.md").read_text(encoding="utf-8").partition("## The tree")[2]
    named = re.findall(r"^([a-z_]+)/? {2,}\S", tree, re.MULTILINE)
    return [name for name in named if name not in WITHIN]


class Docstrings(griffe.Extension):
    """Docstrings are written for `help`; where Markdown reads them otherwise, they are turned."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Examples become blocks of code, and the ``::`` before an indented block goes: the indentation says enough."""
        if obj.docstring is not None:
            text = re.sub(r"^ *::$|(?<=\S):(?=:$)", "", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"^>>> .*?(?=\n\n|\Z)", fenced, text, flags=re.MULTILINE | re.DOTALL)


def fenced(example: re.Match[str]) -> str:
    """An example between fences."""
    return f"```pycon\n{example[0]}\n```"
