"""ps-lite's list of requests forgets those that are answered."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit, added

_WHY = "8 bytes of every request stayed for ever"
_TEST = "tests/unit/byteps_build/test_open_requests.py"

_H = "3rdparty/ps-lite/include/ps/internal/customer.h"
_CC = "3rdparty/ps-lite/src/customer.cc"

EDITS = (
    added("3rdparty/ps-lite/include/ps/internal/open_requests.h", _WHY, _TEST),
    Edit(
        _H,
        """#include "ps/internal/message.h"
""",
        """#include "ps/internal/message.h"
#include "ps/internal/open_requests.h"
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _H,
        """number of responses received for the request. threadsafe
""",
        """number of responses received for the request, -1 when all are. threadsafe
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _H,
        """  std::mutex tracker_mu_;
  std::condition_variable tracker_cond_;
  std::vector<std::pair<int, int>> tracker_;
""",
        """  OpenRequests requests_;
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _CC,
        """  std::lock_guard<std::mutex> lk(tracker_mu_);
  int num = Postoffice::Get()->GetNodeIDs(recver).size();
  tracker_.push_back(std::make_pair(num, 0));
  return tracker_.size() - 1;
""",
        """  return requests_.Begin(Postoffice::Get()->GetNodeIDs(recver).size());
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _CC,
        """  std::unique_lock<std::mutex> lk(tracker_mu_);
  tracker_cond_.wait(lk, [this, timestamp]{
      return tracker_[timestamp].first == tracker_[timestamp].second;
    });
""",
        """  requests_.Wait(timestamp);
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _CC,
        """  std::lock_guard<std::mutex> lk(tracker_mu_);
  return tracker_[timestamp].second;
""",
        """  return requests_.Answers(timestamp);
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _CC,
        """  std::lock_guard<std::mutex> lk(tracker_mu_);
  tracker_[timestamp].second += num;
""",
        """  CHECK(requests_.Answer(timestamp, num))
      << "an answer to request " << timestamp << ", which has all of them or does not exist";
""",
        _WHY,
        _TEST,
    ),
)
