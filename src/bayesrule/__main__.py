"""``python -m bayesrule`` is the command ``bayesrule``."""

import sys

from bayesrule.cli import main

if __name__ == "__main__":
    sys.exit(main())
