"""`python -m dynamix_ps` is `dynamix`."""

import sys

from dynamix_ps.own_process import leave_out_working_folder

leave_out_working_folder()  # `dynamix` does not see it either

from dynamix_ps.cli.main import main  # noqa: E402

sys.exit(main())
