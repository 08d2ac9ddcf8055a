"""The ``specframe`` command, and ``python -m specframe``."""

import sys


def main() -> None:
    """Run the command line. An interruption during its import ends with one line, like an interruption later."""
    try:
        from specframe.cli import main as run

        run()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
