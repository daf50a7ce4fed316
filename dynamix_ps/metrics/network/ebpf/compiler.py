"""Compiles program.c for the running kernel with bcc. Takes a second of CPU and 130 MB, so the result is kept."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from pathlib import Path
from typing import Any

from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.ebpf.bcc_loader import load_bcc, own_headers, quiet
from dynamix_ps.metrics.network.ebpf.bpf import function_fact
from dynamix_ps.metrics.network.ebpf.btf import NEWER_KERNEL, Btf
from dynamix_ps.metrics.network.ebpf.program import MapLayout, Program, without_descriptors
from dynamix_ps.metrics.network.permission import refused

SOURCE = Path(__file__).with_name("program.c")
STATE_CHANGES = ("on_state", "on_state_2", "on_state_3")  # program.c says why there are several
ON_DEMAND = ("refresh", "adopt")

_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # inode of the first one after boot, fixed in include/linux/proc_ns.h

# Macro in program.c: struct and field.
_FIELDS = {
    "FAMILY": ("sock_common", "skc_family"),
    "STATE": ("sock_common", "skc_state"),
    "FLAGS": ("sock_common", "skc_flags"),
    "REMOTE_PORT": ("sock_common", "skc_dport"),
    "LOCAL_PORT": ("inet_sock", "inet_sport"),  # skc_num becomes 0 when a connection closes
    "LOCAL_IPV4": ("sock_common", "skc_rcv_saddr"),
    "REMOTE_IPV4": ("sock_common", "skc_daddr"),
    "NET": ("sock_common", "skc_net.net"),
    "NET_INODE": ("net", "ns.inum"),
    "PROTOCOL": ("sock", "sk_protocol"),
    "SOCKET": ("sock", "sk_socket"),
    "SOCKET_SK": ("socket", "sk"),
    "FILES": ("task_struct", "files"),
    "FILE_TABLE": ("files_struct", "fdt"),
    "FILE_LIST": ("fdtable", "fd"),
    "FILE_SOCKET": ("file", "private_data"),
    "BYTES_ACKED": ("tcp_sock", "bytes_acked"),
    "BYTES_SENT": ("tcp_sock", "bytes_sent"),
    "BYTES_RETRANS": ("tcp_sock", "bytes_retrans"),
    "BYTES_RECEIVED": ("tcp_sock", "bytes_received"),
    "RETRANSMITS": ("tcp_sock", "total_retrans"),
    "SRTT": ("tcp_sock", "srtt_us"),
    "WRITE_SEQ": ("tcp_sock", "write_seq"),
    "SND_UNA": ("tcp_sock", "snd_una"),
    "RCV_NXT": ("tcp_sock", "rcv_nxt"),
    "COPIED_SEQ": ("tcp_sock", "copied_seq"),
}
_IPV6_FIELDS = {
    "LOCAL_IPV6": ("sock_common", "skc_v6_rcv_saddr"),
    "REMOTE_IPV6": ("sock_common", "skc_v6_daddr"),
}
_BUSY_FIELDS = {
    "CHRONO_START": ("tcp_sock", "chrono_start"),
    "CHRONO_STAT": ("tcp_sock", "chrono_stat"),
}


def compile_program(btf: Btf, flags: list[str]) -> Program:
    """Program.c for the kernel with this type information.

    Args:
        flags: further ones for the compiler, as of `machine_flags`.

    Raises:
        SourceError: bcc is missing, the kernel lacks something, or the compiler fails.
    """
    hooks = _hooks(btf)
    busy = _offsets(btf, _BUSY_FIELDS, needed=False)
    flags = _offsets(btf, _FIELDS) + _inode_offset(btf) + _offsets(btf, _IPV6_FIELDS, needed=False) + flags
    flags += busy + _busy_type(btf) if busy else []
    wanted = [function for functions in hooks.values() for function in functions] + list(ON_DEMAND)
    maps, functions = _compiled(flags, wanted)
    return Program(maps, functions, hooks, counts_busy=bool(busy))


def machine_flags() -> list[str]:
    """Flags that identify this pid namespace; empty in the first one, where pids are those of the kernel."""
    own = os.stat("/proc/self/ns/pid")
    if own.st_ino == _FIRST_PID_NAMESPACE:
        return []
    device = os.major(own.st_dev) << 20 | os.minor(own.st_dev)  # in the kernel's encoding
    return [f"-DPID_NAMESPACE_DEVICE={device}ULL", f"-DPID_NAMESPACE_INODE={own.st_ino}ULL"]


def _compiled(flags: list[str], wanted: list[str]) -> tuple[dict[str, MapLayout], dict[str, bytes]]:
    bcc = load_bcc()
    compiled: Any = None
    problem = ""
    with quiet() as lines, own_headers():
        try:
            compiled = bcc.BPF(text=SOURCE.read_bytes(), cflags=flags)
        except Exception as error:  # bcc raises nothing narrower
            problem = str(error)
    if problem:
        raise _explained(problem, lines)
    try:
        return _taken_out(bcc.lib, compiled.module, wanted)
    finally:
        compiled.cleanup()


def _taken_out(lib: Any, module: int, wanted: list[str]) -> tuple[dict[str, MapLayout], dict[str, bytes]]:
    """Maps and functions of a module of bcc, which has made the maps already."""
    handle = ctypes.c_void_p(module)  # bcc does not declare the types of the next two
    lib.bpf_table_name.restype = ctypes.c_char_p
    names = [lib.bpf_table_name(handle, ctypes.c_size_t(place)) for place in range(lib.bpf_num_tables(handle))]
    descriptors = [lib.bpf_table_fd(module, name) for name in names]
    maps = {name.decode(): _layout(descriptor) for name, descriptor in zip(names, descriptors, strict=True)}
    functions = {}
    for function in wanted:
        name = function.encode()
        start, size = lib.bpf_function_start(module, name), lib.bpf_function_size(module, name)
        functions[function] = without_descriptors(ctypes.string_at(start, size), descriptors)
    return maps, functions


def _layout(descriptor: int) -> MapLayout:
    facts = ("map_type", "key_size", "value_size", "max_entries", "map_flags")
    return MapLayout(*(function_fact(descriptor, fact) for fact in facts))


def _explained(problem: str, lines: list[str]) -> SourceError:
    """What bcc and the compiler have said, in one line."""
    said = [line.strip() for line in lines if line.strip()]
    if any(os.strerror(errno.EPERM) in line for line in said):
        return refused()
    telling = [line for line in said if "error" in line.lower()] or said[-1:]
    reason = f"{problem} ({telling[0]})" if telling else problem
    return SourceError(reason, f"report it, with the kernel's version ({platform.release()})")


def _hooks(btf: Btf) -> dict[str, tuple[str, ...]]:
    """Functions of program.c by tracepoint."""
    changes: dict[str, tuple[str, ...]] = {"inet_sock_set_state": STATE_CHANGES}
    hooks = changes | {"sock_send_length": ("on_send",), "sock_recv_length": ("on_receive",)}
    if not all(btf.has_tracepoint(name) for name in hooks):
        hooks = changes | {"tcp_rcv_space_adjust": ("on_receive",)}
    missing = [name for name in hooks if not btf.has_tracepoint(name)]
    if missing:
        raise SourceError(f"this kernel has no tracepoint {' and no '.join(missing)}", NEWER_KERNEL)
    return hooks


def _offsets(btf: Btf, fields: dict[str, tuple[str, str]], needed: bool = True) -> list[str]:
    """Compiler flags with the offsets of the fields; empty if one of them is missing and not needed."""
    try:
        return [f"-DAT_{macro}={btf.offset(*field)}" for macro, field in fields.items()]
    except SourceError:
        if needed:
            raise
        return []


def _inode_offset(btf: Btf) -> list[str]:
    """Offset of the inode number from a `struct socket`: both are parts of one `struct socket_alloc`."""
    before = btf.offset("socket_alloc", "vfs_inode") - btf.offset("socket_alloc", "socket")
    return [f"-DAT_INODE={before + btf.offset('inode', 'i_ino')}"]


def _busy_type(btf: Btf) -> list[str]:
    """The field of the running interval: a bit field in older kernels, a byte in newer ones."""
    field = btf.field("tcp_sock", "chrono_type")
    shift, mask = field.bit_offset % 8, (1 << (field.bits or 8)) - 1
    return [f"-DAT_CHRONO_TYPE={field.offset}", f"-DCHRONO_TYPE_SHIFT={shift}", f"-DCHRONO_TYPE_MASK={mask}"]
