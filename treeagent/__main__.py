"""The console script, and ``python -m treeagent``: so small that an interrupt while the rest is imported is caught."""

import sys


def main() -> None:
    """The command line; also interrupted before it is there, it exits with 130."""
    try:
        from treeagent import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
