"""Another user of the machine, for tests of what such a user can do to a run."""

from __future__ import annotations

import os
import pwd
import traceback
from collections.abc import Callable

import pytest

needs_another_user = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
NOBODY = pwd.getpwnam("nobody")


def as_another_user(action: Callable[[], None]) -> None:
    """Run `action` in a child process and fail with its traceback if it raises.

    The child is user nobody where the tests run as root, else this user.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY.pw_gid)
                os.setuid(NOBODY.pw_uid)
            action()
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as said:
        problem = said.read()
    os.waitpid(child, 0)
    assert not problem, problem
