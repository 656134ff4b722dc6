"""Makes pages of files that live outside `docs/`, and links between all of them.

The changelog, the contributor's guide, the benchmark page and the examples stay where a reader of
the repository looks for them. The site gets a copy under the same path, so that one rule serves
every link: resolve it as the repository does, then leave out a leading `docs/`. A link to something
that the repository has and the site has not, as a folder of results, becomes plain text. A link to
nothing stays as it is, and the strict build fails on it.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
ADOPTED = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "benchmarks/figures/*.png",
    "benchmarks/results/*/*/*--0.json",  # what the leaderboard links to
)
LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s#]+)(?P<anchor>#[^()\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the adopted files, and one page for each example."""
    for path in (path for pattern in ADOPTED for path in sorted(ROOT.glob(pattern))):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for path in sorted((ROOT / "examples").glob("*.py")):
        page = f"# {path.name}\n\n```python\n{path.read_text()}```\n"
        files.append(File.generated(config, f"examples/{path.stem}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points every link of a page to where its target is on the site."""
    here = page.file.src_uri
    in_repository = here if page.file.generated_by else f"docs/{here}"

    def moved(link: re.Match[str]) -> str:
        target = posixpath.join(posixpath.dirname(in_repository), link["target"])
        target = posixpath.normpath(target)
        if not (ROOT / target).exists():
            return link[0]
        on_site = target.removeprefix("docs/")
        if on_site.startswith("examples/"):
            on_site = on_site.removesuffix(".py") + ".md"
        if files.get_file_from_path(on_site) is None:
            return link["text"]
        relative = posixpath.relpath(on_site, posixpath.dirname(here) or ".")
        return f"[{link['text']}]({relative}{link['anchor'] or ''})"

    return LINK.sub(moved, markdown)
