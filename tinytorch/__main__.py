"""``python -m tinytorch`` is the command line."""

import sys

from tinytorch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
