"""Several cases in one script under `dynamix launch`: a file per worker. With the name of a case: one that stops."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.cases.harness import refuse, work

CASES = (
    "gradients.grad_scaler_skips",
    "parameters.unfreeze",
    "parameters.gan",
    "phases.folds_closed",
    "gathered.two_views",
    "gathered.in_turns",
)


def main(arguments: list[str]) -> None:
    if arguments:
        refuse(arguments[0])
        return
    results: dict[str, Any] = {name: work({"name": name, "plans": []}) for name in CASES}
    Path(f"result-{os.environ['DMLC_WORKER_ID']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
