// The C functions of the server's part in sums of Comm whose workers may be lost. dynamix_ps/comm/elastic.py calls
// them from any thread, and may do so before the server runs.

#include <algorithm>
#include <vector>

#include "ps/losses.h"
#include "round_table.h"

namespace byteps {
namespace server {

extern "C" {

// The next role whose connection has ended: its kind, and in `rank` which one; -1: none within `timeout_s`.
int byteps_server_next_loss(double timeout_s, int* rank) { return ps::Losses::Instance().Next(timeout_s, rank); }

// Ranks of workers that others wait for and that do not answer, see RoundTable::Silent: up to `room`; how many.
int byteps_server_silent(double quiet_s, int32_t* ranks, int room) {
  std::vector<int> silent = RoundTable::Instance().Silent(quiet_s);
  int count = std::min<int>(room, silent.size());
  std::copy_n(silent.begin(), count, ranks);
  return count;
}

}  // extern "C"

}  // namespace server
}  // namespace byteps
