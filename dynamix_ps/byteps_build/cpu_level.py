"""Whether this CPU has x86-64-v3, for which wheels for other hosts are built.

In these, `byteps/__init__.py` is a copy of this file, which therefore imports nothing of ours.
"""

from __future__ import annotations

LEVEL = "x86-64-v3"
# as /proc/cpuinfo names them; `abm` is LZCNT, `pni` SSE3
_FLAGS = (
    *("abm", "avx", "avx2", "bmi1", "bmi2", "cx16", "f16c", "fma", "lahf_lm", "movbe", "pni", "popcnt"),
    *("sse4_1", "sse4_2", "ssse3", "xsave"),
)
CALL = "\n\ncheck_cpu()\n"  # behind the copy


def missing_flags(cpuinfo: str = "/proc/cpuinfo") -> list[str]:
    """What this CPU lacks of x86-64-v3. On another architecture that is all."""
    with open(cpuinfo, encoding="utf-8", errors="replace") as lines:
        found = next((line.split() for line in lines if line.startswith("flags")), [])
    return [flag for flag in _FLAGS if flag not in found]


def check_cpu() -> None:
    """Raises ImportError if a library for x86-64-v3 would end this process by an illegal instruction."""
    if missing := missing_flags():
        raise ImportError(
            f"this BytePS is built for {LEVEL}, and the CPU of this host lacks {', '.join(missing)}; "
            "build it on this host: dynamix build-byteps"
        )
