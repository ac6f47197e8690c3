"""`python -m hardgate` and the `hardgate` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say how to install it."""
    try:
        import matplotlib  # noqa: F401  (the figures; typer and rich come with hardgate.cli)

        from hardgate_lab.cli import app
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] not in (
            "typer",
            "rich",
            "matplotlib",
            "safetensors",
        ):
            raise
        sys.exit(
            f"The command line needs the package {missing.name!r}, which is not installed. Type\n"
            "    pip install 'hardgate[cli]'"
        )
    app()


if __name__ == "__main__":
    main()
