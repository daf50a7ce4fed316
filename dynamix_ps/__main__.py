"""`python -m dynamix_ps` is `dynamix`."""

import sys

from dynamix_ps.cli.main import main

sys.exit(main())
