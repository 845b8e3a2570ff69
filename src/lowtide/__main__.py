"""`python -m lowtide` is the command `lowtide`."""

import sys

from lowtide.cli import main

sys.exit(main())
