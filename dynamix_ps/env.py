"""Every environment variable by which the launcher talks to a role, in one place."""

from __future__ import annotations

import os

CONFIG = "DYNAMIX_CONFIG"  # path of the resolved YAML
RUN_DIR = "DYNAMIX_RUN_DIR"  # the run folder
RUN_ID = "DYNAMIX_RUN_ID"  # names shared memory, sockets and the RPC session of one run
ARBITRATOR = "DYNAMIX_ARBITRATOR"  # host:port
TOKEN = "DYNAMIX_TOKEN"  # secret of the run, sent with every RPC
RESUME = "DYNAMIX_RESUME"  # checkpoint to start from
SLOWDOWN = "DYNAMIX_SLOWDOWN"  # factor >= 1 by which the hook stretches compute time (emulated speed)
DATA = "DYNAMIX_DATA"  # folder with data sets
PROBE = "DYNAMIX_PROBE"  # socket of the host's network probe; "none": there is none, and the launcher has said so
ROLE_NAME = "DYNAMIX_ROLE_NAME"  # worker-0, server-1, scheduler: what this role calls itself in reports
CACHE = "DYNAMIX_CACHE"  # folder for built wheels and downloads

SHM_PREFIX = "BYTEPS_SHM_PREFIX"  # read by our build of BytePS: first part of its shared-memory names


def get(name: str, default: str | None = None) -> str | None:
    """Value of an environment variable; an empty value counts as not set."""
    return os.environ.get(name) or default


def cache_dir() -> str:
    """Folder for what outlives a checkout: $DYNAMIX_CACHE, else $XDG_CACHE_HOME/dynamix, else ~/.cache/dynamix."""
    base = get("XDG_CACHE_HOME", os.path.join(os.path.expanduser("~"), ".cache")) or ""
    return get(CACHE, os.path.join(base, "dynamix")) or ""
