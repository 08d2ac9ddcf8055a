"""The ``specframe`` command, and ``python -m specframe``."""

import sys


def main() -> None:
    """Run the command line, which ends with one line when it is interrupted while it is still being imported."""
    try:
        from specframe.cli import main as run

        run()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
