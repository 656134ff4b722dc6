"""The `metricgrad` command, or what to install for it; the library needs no `app` extra."""

import sys


def main() -> None:
    """Runs the command line."""
    try:
        from metricgrad.cli import app
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich"):
            raise
        sys.exit(
            f"The metricgrad command needs {missing.name}. "
            "Install it with: pip install 'metricgrad[app]'"
        )
    app()


if __name__ == "__main__":
    main()
