"""Which server keeps a key: the hashes read text that still exists."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit

_CC = "byteps/common/global.cc"
_WHY = "the hash read a text that was freed before, so that workers could choose different servers for a key"
_TEST = "test_byteps_cluster.py::test_sums, with two servers"


def _kept(hash_name: str) -> Edit:
    begin = f"uint64_t BytePSGlobal::{hash_name}(uint64_t key) {{\n"
    return Edit(
        _CC,
        f"{begin}  auto str = std::to_string(key).c_str();\n",
        f"{begin}  const std::string text = std::to_string(key);\n  auto str = text.c_str();\n",
        _WHY,
        _TEST,
    )


EDITS = (_kept("Hash_BuiltIn"), _kept("Hash_DJB2"), _kept("Hash_SDBM"))
