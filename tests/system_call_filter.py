"""`python -m tests.system_call_filter COMMAND...` runs it as a container without capabilities would run.

It gets no new privileges, and system calls that the default filters of container runtimes (seccomp) refuse fail with
EPERM. Only for 64-bit processes of x86.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2  # of prctl
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_INSTRUCTION = struct.Struct("HBBI")  # struct sock_filter

REFUSED = {
    **{"bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "kcmp": 312},
    **{"get_mempolicy": 239, "set_mempolicy": 238, "mbind": 237, "move_pages": 279, "migrate_pages": 256},
    **{"mount": 165, "umount2": 166, "pivot_root": 155, "unshare": 272, "setns": 308, "open_by_handle_at": 304},
    **{"add_key": 248, "request_key": 249, "keyctl": 250, "syslog": 103, "vhangup": 153},
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def refuse() -> None:
    """From now on, for this process and those that it starts. Raises OSError."""
    code = [_INSTRUCTION.pack(_LOAD, 0, 0, 0)]  # the number of the call
    for number in REFUSED.values():
        code.append(_INSTRUCTION.pack(_EQUAL, 0, 1, number))
        code.append(_INSTRUCTION.pack(_RETURN, 0, 0, _ERROR | errno.EPERM))
    code.append(_INSTRUCTION.pack(_RETURN, 0, 0, _ALLOW))
    raw = b"".join(code)
    kept = ctypes.create_string_buffer(raw, len(raw))
    program = _Program(len(code), ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVS, 1, 0, 0, 0), (_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    refuse()
    os.execvp(sys.argv[1], sys.argv[1:])
