"""Entry point of ``stimulus-moo`` and ``python -m stimulus_moo``."""

import sys
from collections.abc import Callable

from stimulus_moo.errors import MissingDependency


def main() -> None:
    """Run the command line; if a package of the lab is missing, print the install command and exit with 2."""
    try:
        app = _application()
    except MissingDependency as error:
        print(f"error: {error}; see {error.page}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("stopped: no work was started", file=sys.stderr)
        raise SystemExit(130) from None
    app(prog_name="stimulus-moo")


def _application() -> Callable[..., object]:
    try:
        from stimulus_moo.lab.cli import app
    except ImportError as error:
        if error.name is None or error.name.startswith("stimulus_moo"):
            raise
        raise MissingDependency(
            f"the command line needs the package {error.name.partition('.')[0]!r}: pip install 'stimulus-moo[lab]'"
        ) from error
    return app


if __name__ == "__main__":
    main()
