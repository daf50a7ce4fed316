"""The proofs of the data plane: SHA-256 and HMAC in C++ equal Python's."""

from __future__ import annotations

import hashlib
import hmac
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from dynamix_ps.byteps_build.recipe import HERE
from tests.compiled import compiled

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

# reads lines "key text" in hexadecimal, "-" for nothing; writes "sha256(text) hmac(key, text) same different"
PROGRAM = """
#include <cstdio>
#include <iostream>
#include "token_proof.h"

static std::string bytes(const std::string& hex) {
  std::string all;
  for (size_t i = 0; hex != "-" && i < hex.size(); i += 2) all += static_cast<char>(std::stoi(hex.substr(i, 2), 0, 16));
  return all;
}

static void print(const std::string& all) {
  for (unsigned char c : all) std::printf("%02x", c);
}

int main() {
  std::string key, text;
  while (std::cin >> key >> text) {
    std::string digest = ps::HmacSha256(bytes(key), bytes(text)), changed = digest;
    print(ps::Sha256(bytes(text)));
    std::printf(" ");
    print(digest);
    changed[text.size() % 32] ^= 1 << key.size() % 8;
    auto found = [](const std::string& all) { return reinterpret_cast<const uint8_t*>(all.data()); };
    std::printf(" %d %d\\n", ps::SameProof(digest, found(digest)), ps::SameProof(digest, found(changed)));
  }
}
"""


def test_digests_are_those_of_python(tmp_path: Path) -> None:
    source = tmp_path / "digests.cc"
    source.write_text(PROGRAM)
    flags = ["-std=c++14", "-Wall", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover", "-O1"]
    program = compiled(source, [*flags, f"-I{HERE / 'sources'}"])
    rng = random.Random(0)
    pairs = [(rng.randbytes(key), rng.randbytes(text)) for key in (0, 1, 32, 63, 64, 65, 200) for text in range(260)]
    lines = "".join(f"{key.hex() or '-'} {text.hex() or '-'}\n" for key, text in pairs)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    expected = [
        f"{hashlib.sha256(text).hexdigest()} {hmac.digest(key, text, 'sha256').hex()} 1 0" for key, text in pairs
    ]
    assert done.stdout.splitlines() == expected
