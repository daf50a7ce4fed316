"""The list of open requests of ps-lite in our build: entries go when they are answered, whoever asks and answers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dynamix_ps.byteps_build.recipe import HERE
from tests.compiled import compiled

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

PROGRAM = """
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>
#include "open_requests.h"

const int kNodes = 3, kThreads = 4, kEach = 5000;

int main() {
  ps::OpenRequests requests;
  int first = requests.Begin(kNodes), second = requests.Begin(kNodes);
  requests.Answer(first, 2);
  std::printf("%d %d\\n", requests.Answers(first), requests.Answers(second));
  std::printf("%d\\n", requests.Answer(first, 2));       // one too many
  std::printf("%d\\n", requests.Answer(first, 1));
  std::printf("%d\\n", requests.Answer(first, 1));       // it is complete
  std::printf("%d\\n", requests.Answer(second + 1, 1));  // nobody asked
  requests.Wait(first);
  std::printf("%d %zu\\n", requests.Answers(first), requests.size());
  requests.Answer(second, kNodes);

  // Every thread waits for its requests while the answers to all of them come from two other threads.
  std::atomic<int> told[kThreads * kEach] = {}, answered[2 * kThreads * kEach] = {};
  std::atomic<int> early{0}, number{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kEach; ++j) {
        int timestamp = requests.Begin(kNodes);
        told[number++] = timestamp;
        requests.Wait(timestamp);
        early += answered[timestamp] < kNodes;
      }
    });
  }
  for (int node = 0; node < 2; ++node) {
    threads.emplace_back([&, node] {
      for (int i = 0; i < kThreads * kEach; ++i) {
        int timestamp;
        while (!(timestamp = told[i])) std::this_thread::yield();
        int answers = node + 1;
        answered[timestamp] += answers;
        if (!requests.Answer(timestamp, answers)) ++early;
      }
    });
  }
  for (auto& one : threads) one.join();
  std::printf("%d %zu\\n", early.load(), requests.size());
}
"""


@pytest.mark.slow
def test_entries_go_when_they_are_answered(tmp_path: Path) -> None:
    source = tmp_path / "requests.cc"
    source.write_text(PROGRAM)
    flags = ["-std=c++11", "-Wall", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover", "-O1", "-pthread"]
    program = compiled(source, [*flags, f"-I{HERE / 'sources'}"])
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["2 0", "0", "1", "0", "0", "-1 1", "0 0"]
