"""Messages over plain TCP with one sleeping thread, instead of the chains of threads in ZeroMQ and ps-lite."""

from __future__ import annotations

from importlib import resources

from dynamix_ps.byteps_build.edits.base import Edit

_SOURCES = resources.files("dynamix_ps.byteps_build") / "sources"
_IDLE = "test_byteps_waiting.py::test_idle_roles_use_no_cpu"
_SPEED = "benchmarks/parts/comm.py"
_LOST = "test_workers_lost.py"
_LATE = "test_late_workers.py"
_LATER = "test_workers_later.py"
_LOST_SERVERS = "test_lost_servers.py"
_ATTACKS = "test_data_plane_attacks.py"

EDITS = (
    Edit(
        "3rdparty/ps-lite/src/tcp_van.h",
        "",
        (_SOURCES / "tcp_van.h").read_text(encoding="utf-8"),
        "the transport itself",
        _IDLE,
    ),
    Edit(
        "3rdparty/ps-lite/src/token_proof.h",
        "",
        (_SOURCES / "token_proof.h").read_text(encoding="utf-8"),
        "whoever connects proves that it knows the run's token",
        _ATTACKS,
    ),
    Edit(
        "3rdparty/ps-lite/src/descriptors.h",
        "",
        (_SOURCES / "descriptors.h").read_text(encoding="utf-8"),
        "a forked child kept the connections of its parent open",
        _LOST,
    ),
    Edit(
        "3rdparty/ps-lite/include/ps/losses.h",
        "",
        (_SOURCES / "losses.h").read_text(encoding="utf-8"),
        "whoever loses its connection is told at once",
        _LOST,
    ),
    Edit(
        "3rdparty/ps-lite/include/ps/internal/van.h",
        """  bool IsValidPushpull(const Message &msg);

""",
        """  bool IsValidPushpull(const Message &msg);

  // The scheduler's: no barrier waits for this node any more. For runs that go on without it.
  void EndBarriersWithout(int node);

""",
        "the others shut down when a worker is lost",
        _LOST,
    ),
    Edit(
        "3rdparty/ps-lite/include/ps/internal/van.h",
        """  std::vector<int> barrier_count_;
""",
        """  std::vector<int> barrier_count_;
  std::unordered_map<int, std::unordered_set<int>> at_barrier_;  // by group
  std::unordered_set<int> lost_;  // nodes that are gone, and slots of workers that are still empty
  int IdByNumber(const Node &node);
  size_t NodesAtFirst();
  bool IsBarrierComplete(int group);
  void EndBarrier(int group, int app_id, int customer_id);
""",
        "the others shut down when a worker is lost",
        _LOST,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """void Van::ProcessBarrierCommand(Message *msg) {
""",
        """// Of a worker or a server, by the number that it was started with.
int Van::IdByNumber(const Node &node) {
  const bool is_worker = node.role == Node::WORKER;
  const int slots = is_worker ? Postoffice::Get()->num_workers() : Postoffice::Get()->num_servers();
  CHECK(node.aux_id >= 0 && node.aux_id < slots) << "DMLC_WORKER_ID of a worker, or DMLC_SERVER_ID of a server";
  return is_worker ? Postoffice::WorkerRankToID(node.aux_id) : Postoffice::ServerRankToID(node.aux_id);
}

// How many servers and workers the run begins with. The slots of further workers are empty.
size_t Van::NodesAtFirst() {
  int slots = Postoffice::Get()->num_workers();
  int workers = GetEnv("DYNAMIX_ELASTIC", 0) ? GetEnv("DYNAMIX_FIRST_WORKERS", slots) : slots;
  return Postoffice::Get()->num_servers() + std::min(workers, slots);
}

bool Van::IsBarrierComplete(int group) {
  auto members = Postoffice::Get()->GetNodeIDs(group);
  if (lost_.empty()) return barrier_count_[group] == static_cast<int>(members.size());
  return std::all_of(members.begin(), members.end(), [&](int node) {
    return at_barrier_[group].count(node) || lost_.count(node);
  });
}

void Van::EndBarriersWithout(int node) {
  if (!is_scheduler_ || !GetEnv("DYNAMIX_ELASTIC", 0)) return;
  lost_.insert(node);
  for (size_t group = 0; group < barrier_count_.size(); ++group) {
    if (barrier_count_[group] > 0 && IsBarrierComplete(group)) EndBarrier(group, 0, 0);
  }
}

void Van::ProcessBarrierCommand(Message *msg) {
""",
        "the others shut down when a worker is lost",
        _LOST,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """    ++barrier_count_[group];
    PS_VLOG(1) << "Barrier count for " << group << " : " << barrier_count_[group];
    if (barrier_count_[group] == static_cast<int>(Postoffice::Get()->GetNodeIDs(group).size())) {
      barrier_count_[group] = 0;
      Message res;
      res.meta.request = false;
      res.meta.app_id = msg->meta.app_id;
      res.meta.customer_id = msg->meta.customer_id;
      res.meta.control.cmd = Control::BARRIER;
      for (int r : Postoffice::Get()->GetNodeIDs(group)) {
        int recver_id = r;
        if (shared_node_mapping_.find(r) == shared_node_mapping_.end()) {
          res.meta.recver = recver_id;
          res.meta.timestamp = timestamp_++;
          CHECK_GT(Send(res), 0);
        }
      }
    }
  } else {
    Postoffice::Get()->Manage(*msg);
  }
}
""",
        """    ++barrier_count_[group];
    at_barrier_[group].insert(msg->meta.sender);
    PS_VLOG(1) << "Barrier count for " << group << " : " << barrier_count_[group];
    if (IsBarrierComplete(group)) EndBarrier(group, msg->meta.app_id, msg->meta.customer_id);
  } else {
    Postoffice::Get()->Manage(*msg);
  }
}

void Van::EndBarrier(int group, int app_id, int customer_id) {
  barrier_count_[group] = 0;
  at_barrier_[group].clear();
  Message res;
  res.meta.request = false;
  res.meta.app_id = app_id;
  res.meta.customer_id = customer_id;
  res.meta.control.cmd = Control::BARRIER;
  for (int r : Postoffice::Get()->GetNodeIDs(group)) {
    int recver_id = r;
    if (shared_node_mapping_.find(r) == shared_node_mapping_.end() && !lost_.count(r)) {
      res.meta.recver = recver_id;
      res.meta.timestamp = timestamp_++;
      CHECK_GT(Send(res), 0);
    }
  }
}
""",
        "the others shut down when a worker is lost",
        _LOST,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """  barrier_count_.clear();
""",
        """  barrier_count_.clear();
  at_barrier_.clear();
  lost_.clear();
""",
        "the others shut down when a worker is lost",
        _LOST,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """  time_t t = time(NULL);
  size_t num_nodes = Postoffice::Get()->num_servers() + Postoffice::Get()->num_workers();
""",
        """  time_t t = time(NULL);
  size_t num_nodes = NodesAtFirst();
""",
        "a run begins without those that come later",
        _LATER,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """    nodes->control.node.push_back(my_node_);
    nodes->control.cmd = Control::ADD_NODE;
    Message back;
    back.meta = *nodes;
    for (int r : Postoffice::Get()->GetNodeIDs(kWorkerGroup + kServerGroup)) {
      int recver_id = r;
      if (shared_node_mapping_.find(r) == shared_node_mapping_.end()) {
""",
        """    nodes->control.node.push_back(my_node_);
    nodes->control.cmd = Control::ADD_NODE;
    for (int id : Postoffice::Get()->GetNodeIDs(kWorkerGroup)) lost_.insert(id);
    for (auto &node : nodes->control.node) lost_.erase(node.id);
    Message back;
    back.meta = *nodes;
    for (int r : Postoffice::Get()->GetNodeIDs(kWorkerGroup + kServerGroup)) {
      int recver_id = r;
      if (shared_node_mapping_.find(r) == shared_node_mapping_.end() && !lost_.count(r)) {
""",
        "a run begins without those that come later",
        _LATER,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """      if (r != recovery_nodes->control.node[0].id && dead_set.find(r) != dead_set.end()) {
        // do not try to send anything to dead node
""",
        """      if (r != recovery_nodes->control.node[0].id && (dead_set.count(r) || lost_.count(r))) {
        // do not try to send anything to dead node
""",
        "a run begins without those that come later",
        _LATER,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """  size_t num_nodes = Postoffice::Get()->num_servers() + Postoffice::Get()->num_workers();
  // assign an id
""",
        """  size_t num_nodes = NodesAtFirst();
  // assign an id
""",
        "a run begins without those that come later",
        _LATER,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """          nodes->control.node[i] = recovery_node;
          recovery_nodes->control.node.push_back(recovery_node);
          break;
        }
      }
""",
        """          nodes->control.node[i] = recovery_node;
          recovery_nodes->control.node.push_back(recovery_node);
          break;
        }
      }
      Node &node = ctrl.node[0];
      if (elastic && recovery_nodes->control.node.empty() && node.role == Node::WORKER) {
        node.id = IdByNumber(node);
        node.is_recovery = true;
        nodes->control.node.insert(nodes->control.node.end() - 1, node);  // before the scheduler
        recovery_nodes->control.node.push_back(node);
      }
""",
        "a worker comes into a slot that was empty",
        _LATER,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """        PS_VLOG(1) << "assign rank=" << id << " to node " << node.DebugString();
""",
        """        if (node.aux_id >= 0) id = IdByNumber(node);
        for (auto &other : nodes->control.node) {
          CHECK_NE(other.id, id) << "two workers have one DMLC_WORKER_ID, or two servers one DMLC_SERVER_ID, or only "
                                    "some have one";
        }
        PS_VLOG(1) << "assign rank=" << id << " to node " << node.DebugString();
""",
        "everybody means the same server and the same worker by its number",
        _LOST_SERVERS,
    ),
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
        "3rdparty/ps-lite/src/van.cc",
        """      // some node dies and restarts
      CHECK(ready_.load());
""",
        """      // some node dies and restarts
      CHECK(ready_.load());
      recovery_nodes->control.node.clear();
      const bool elastic = GetEnv("DYNAMIX_ELASTIC", 0);
""",
        "a worker comes late, in the place of one that is lost",
        _LATE,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """        if (deadnodes_set->find(node.id) != deadnodes_set->end() &&
            node.role == ctrl.node[0].role) {
""",
        """        // who is gone is decided elsewhere: the one that comes has the number of that one
        const bool gone = elastic ? node.aux_id == ctrl.node[0].aux_id
                                  : deadnodes_set->find(node.id) != deadnodes_set->end();
        if (gone && node.role == ctrl.node[0].role) {
""",
        "a worker comes late, in the place of one that is lost",
        _LATE,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """    // send back the recovery node
    CHECK_EQ(recovery_nodes->control.node.size(), 1);
""",
        """    // send back the recovery node
    CHECK_EQ(recovery_nodes->control.node.size(), 1);
    const int id = recovery_nodes->control.node[0].id;
    lost_.erase(id);
    for (auto &group : at_barrier_) barrier_count_[group.first] -= group.second.erase(id);  // it is at none yet
""",
        "a worker or a server comes late, in the place of one that is lost",
        _LATE,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """      back.meta = (r == recovery_nodes->control.node[0].id) ? *nodes : *recovery_nodes;
""",
        """      back.meta = (r == recovery_nodes->control.node[0].id) ? *nodes : *recovery_nodes;
      auto &told = back.meta.control.node;
      told.erase(std::remove_if(told.begin(), told.end(),
                                [this](const Node &node) { return lost_.count(node.id) > 0; }),
                 told.end());
""",
        "a worker comes late, in the place of one that is lost",
        _LATE,
    ),
    Edit(
        "3rdparty/ps-lite/src/van.cc",
        """      if (connected_nodes_.find(addr_str) == connected_nodes_.end()) {
        Connect(node);
""",
        """      // one that comes late may have the address of the one whose place it takes
      if (node.is_recovery || connected_nodes_.find(addr_str) == connected_nodes_.end()) {
        Connect(node);
""",
        "a worker comes late, in the place of one that is lost",
        _LATE,
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
