"""The building blocks of a report: sections, tables, and figures with their pictures inside."""

import base64
import html
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from metricgrad.storage import write_text
from metricgrad.studies.results import ComparisonResult, RunResult
from metricgrad.studies.settings import RunConfig

_SCALE = 0.62  # shown width of a figure over its own; one for all, so that letters agree
_STYLE = """
:root { --ink: #1d2733; --quiet: #5c677d; --line: #dfe4ea;
  --ours: #2a6f97; --paper: #ffffff; --wash: #f4f6f8; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 0 0 12px; }
p { margin: 0 0 12px; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); }
.verdict { font-size: 19px; border-left: 4px solid var(--ours); padding: 4px 0 4px 16px;
  margin: 24px 0; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
  padding: 22px 24px; margin: 20px 0; overflow-x: auto; }
.panels { display: flex; flex-wrap: wrap; justify-content: center; gap: 12px; }
img { max-width: 100%; height: auto; }
figure { margin: 0; } figcaption { color: var(--quiet); font-size: 14px; margin-top: 10px; }
table { border-collapse: collapse; width: 100%; margin-bottom: 12px;
  font-variant-numeric: tabular-nums; font-size: 15px; }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } th { color: var(--quiet); font-weight: 600; }
pre { background: var(--wash); padding: 12px 14px; border-radius: 8px; overflow-x: auto;
  font-size: 14px; }
details summary { cursor: pointer; color: var(--ours); }
@media (max-width: 700px) {
  main { padding: 20px 10px 40px; } section { padding: 14px 12px; } th, td { padding: 5px 6px; }
  table { font-size: 13px; }
}
"""


def figure(paths: Sequence[Path], caption: str) -> str:
    """Pictures in PNG files, side by side where there is room, with a caption, inside the page."""
    text = html.escape(caption)
    images = []
    for path in paths:
        picture = path.read_bytes()
        data = base64.b64encode(picture).decode()
        width = round(_SCALE * int.from_bytes(picture[16:20], "big"))  # where PNG has its width
        images.append(f'<img alt="{text}" width="{width}" src="data:image/png;base64,{data}">')
    panels = f"<div class=panels>{''.join(images)}</div>"
    return f"<figure>{panels}<figcaption>{text}</figcaption></figure>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of text."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(header, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def section(title: str, *parts: str) -> str:
    """Parts under a heading."""
    return f"<section><h2>{html.escape(title)}</h2>{''.join(parts)}</section>"


def note(text: str) -> str:
    """A paragraph in quiet colour."""
    return f"<p class=quiet>{html.escape(text)}</p>"


def folded(summary: str, content: str) -> str:
    """Content that is shown on a click."""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"


def columns(result: RunResult | ComparisonResult) -> list[str]:
    """A section on the columns: used, left out and suspicious; none where nothing is known."""
    names = result.columns
    if not names:
        return []
    number = f"{len(names)} column{'s' if len(names) != 1 else ''} used"
    parts = [folded(number, f"<p>{html.escape(', '.join(names))}</p>")]
    if result.dropped:
        left_out = ", ".join(f"{each.name} ({each.reason})" for each in result.dropped)
        parts.append(note(f"Not used: {left_out}."))
    if result.suspicious:
        rows = [(each.name, each.label, each.reason) for each in result.suspicious]
        parts.append(table(("suspicious", "", "in the training rows"), rows))
        parts.append(
            note(
                "All of these were used. Use --drop for columns that are not known for new rows "
                "or do not help to predict them."
            )
        )
    return [section("Columns", *parts)]


def amount_note(columns: Mapping[str, str] | None) -> str:
    """What the metric takes of every row, as the end of a line about the run."""
    told = [f"{name} of each row from column {column}" for name, column in (columns or {}).items()]
    return "".join(f"; {each}" for each in told)


def reproduction(config: RunConfig, command: str | None) -> str:
    """The command, the versions and the settings of a run."""
    versions = ", ".join(f"{name} {version}" for name, version in config.versions.items())
    shown = command or shlex.join(["metricgrad", config.settings.command])
    settings = html.escape(config.told())
    return (
        f"<pre>{html.escape(shown)}</pre>{note(versions)}"
        f"{folded('All settings', f'<pre>{settings}</pre>')}"
    )


def write_page(path: Path, title: str, about: str, verdict: str, sections: list[str]) -> Path:
    """Writes the page, whole or not at all."""
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        '</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{_STYLE}</style></head><body><main>'
        f'<h1>{html.escape(title)}</h1><p class="quiet">{html.escape(about)}</p>'
        f'<p class="verdict">{html.escape(verdict)}</p>{"".join(sections)}'
        '<p class="quiet">metricgrad: train on the metric you report.</p></main></body></html>\n'
    )
    write_text(path, text)
    return path
