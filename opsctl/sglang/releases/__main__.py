"""`python -m opsctl.sglang.releases WHEEL|VERSION...`: write the data file of a release."""

import sys

from opsctl.sglang.releases.generate import main

sys.exit(main(sys.argv[1:]))
