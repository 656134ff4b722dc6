"""What a run looks like: figures, and one HTML page that needs no network and no other file."""

from pathlib import Path

from metricgrad.report.pages import write_comparison, write_run
from metricgrad.studies import StoredRun, read_run


def write(folder: Path) -> Path:
    """Draws the figures of a finished run, writes its page into its folder, returns its path."""
    stored = read_run(folder)
    if isinstance(stored, StoredRun):
        return write_run(folder, stored)
    return write_comparison(folder, stored)
