"""`python -m npgpt`, the same as the command `npgpt`."""

import sys

from npgpt.cli.main import main

sys.exit(main())
