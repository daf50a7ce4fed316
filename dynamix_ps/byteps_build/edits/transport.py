"""Messages over plain TCP with one sleeping thread, instead of the chains of threads in ZeroMQ and ps-lite."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit, added

_IDLE = "test_byteps_waiting.py::test_idle_roles_use_no_cpu"
_SPEED = "benchmarks/parts/comm.py"
_LOST = "test_workers_lost.py"
_ATTACKS = "test_data_plane_attacks.py"

EDITS = (
    added("3rdparty/ps-lite/src/tcp_van.h", "the transport itself", _IDLE),
    added("3rdparty/ps-lite/src/token_proof.h", "whoever connects proves that it knows the run's token", _ATTACKS),
    added("3rdparty/ps-lite/src/descriptors.h", "a forked child kept the connections of its parent open", _LOST),
    added("3rdparty/ps-lite/include/ps/losses.h", "whoever loses its connection is told at once", _LOST),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """#include "./zmq_van.h"
""",
        """#include "./tcp_van.h"
""",
        "use it",
        _IDLE,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """    return new ZMQVan();
""",
        """    return new TcpVan();
""",
        "use it wherever ZeroMQ was used",
        _IDLE,
    ),
    Edit(
        "3rdparty/ps-lite/Makefile",
        """build/%.o: src/%.cc ${ZMQ}
""",
        """build/%.o: src/%.cc
""",
        "ZeroMQ is not needed any more",
        "the build itself",
    ),
    Edit(
        "setup.py",
        """    EXTRA_OBJECTS = ['3rdparty/ps-lite/build/libps.a',
                     '3rdparty/ps-lite/deps/lib/libzmq.a']
""",
        """    EXTRA_OBJECTS = ['3rdparty/ps-lite/build/libps.a']
""",
        "ZeroMQ is not needed any more",
        "the build itself",
    ),
    Edit(
        "3rdparty/ps-lite/include/ps/kv_app.h",
        """          memcpy(p_vals, s.vals.data(), s.vals.size() * sizeof(Val));
""",
        """          // the transport may have put the answer in its place already
          if (s.vals.data() != p_vals) memcpy(p_vals, s.vals.data(), s.vals.size() * sizeof(Val));
""",
        "the answer to a pull is received where it is wanted",
        _SPEED,
    ),
    Edit(
        "3rdparty/ps-lite/include/ps/internal/customer.h",
        """  inline void Accept(const Message& recved) {
    recv_queue_.Push(recved);
  }
""",
        """  void Accept(const Message& recved);
""",
        "a message is handled by the thread that received it",
        _SPEED,
    ),
    Edit(
        "3rdparty/ps-lite/include/ps/internal/customer.h",
        """ private:
  /**
   * \\brief the thread function
   */
  void Receiving();

  int app_id_;
""",
        """ private:
  int app_id_;
""",
        "a message is handled by the thread that received it",
        _SPEED,
    ),
    Edit(
        "3rdparty/ps-lite/include/ps/internal/customer.h",
        """  ThreadsafeQueue<Message> recv_queue_;
  std::unique_ptr<std::thread> recv_thread_;
""",
        "",
        "a message is handled by the thread that received it",
        _SPEED,
    ),
    Edit(
        "3rdparty/ps-lite/src/customer.cc",
        """  recv_thread_ = std::unique_ptr<std::thread>(new std::thread(&Customer::Receiving, this));
""",
        "",
        "a message is handled by the thread that received it",
        _SPEED,
    ),
    Edit(
        "3rdparty/ps-lite/src/customer.cc",
        """  Postoffice::Get()->RemoveCustomer(this);
  Message msg;
  msg.meta.control.cmd = Control::TERMINATE;
  recv_queue_.Push(msg);
  recv_thread_->join();
}
""",
        """  Postoffice::Get()->RemoveCustomer(this);
}
""",
        "a message is handled by the thread that received it",
        _SPEED,
    ),
    Edit(
        "3rdparty/ps-lite/src/customer.cc",
        """void Customer::Receiving() {
  while (true) {
    Message recv;
    recv_queue_.WaitAndPop(&recv);
    if (!recv.meta.control.empty() 
          && recv.meta.control.cmd == Control::TERMINATE) {
      break;
    }
    recv_handle_(recv);
    if (!recv.meta.request) {
      std::lock_guard<std::mutex> lk(tracker_mu_);
      tracker_[recv.meta.timestamp].second++;
      tracker_cond_.notify_all();
    }
  }
}
""",
        """// Called by the van's thread. Handlers do not wait for messages: the server's sends answers, which are
// queued when a socket is full; the worker's passes tasks on and marks handles as done.
void Customer::Accept(const Message& recv) {
  recv_handle_(recv);
  if (!recv.meta.request) AddResponse(recv.meta.timestamp);
}
""",
        "a message is handled by the thread that received it",
        _SPEED,
    ),
)
