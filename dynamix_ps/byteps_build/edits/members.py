"""Members of a run: some come later, some are lost, others come in their places. Barriers wait for those left.

The functions that do this are in sources/members.cc.
"""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit, added

_LOST = "test_workers_lost.py"
_LATE = "test_late_workers.py"
_LATER = "test_workers_later.py"
_LOST_SERVERS = "test_lost_servers.py"

_H = "3rdparty/ps-lite/include/ps/internal/van.h"
_CC = "3rdparty/ps-lite/src/van.cc"

EDITS = (
    Edit(
        _H,
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
        _H,
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
    added("3rdparty/ps-lite/src/members.cc", "the others shut down when a worker is lost", _LOST),
    Edit(
        "3rdparty/ps-lite/Makefile",
        """customer.o postoffice.o van.o)""",
        """customer.o members.o postoffice.o van.o)""",
        "the others shut down when a worker is lost",
        _LOST,
    ),
    Edit(
        _CC,
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
""",
        "the others shut down when a worker is lost",
        _LOST,
    ),
    Edit(
        _CC,
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
        _CC,
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
        _CC,
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
        _CC,
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
        _CC,
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
        _CC,
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
        _CC,
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
        _CC,
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
        _CC,
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
        _CC,
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
        _CC,
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
        _CC,
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
)
