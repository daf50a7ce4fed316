"""A scheduler that is started again while an elastic job runs learns from the others who they are."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit

_AGAIN = "test_scheduler_again.py"
_H = "3rdparty/ps-lite/include/ps/internal/van.h"
_CC = "3rdparty/ps-lite/src/van.cc"

EDITS = (
    Edit(
        _H,
        """  void EndBarrier(int group, int app_id, int customer_id);
""",
        """  void EndBarrier(int group, int app_id, int customer_id);
  void EndCompleteBarriers();
  void ProcessMembers(const std::vector<Node> &told, Meta *nodes, Meta *recovery_nodes);
  std::unordered_set<int> kinds_;  // roles of which one has told this scheduler whom it knows
  std::unordered_set<int> told_themselves_;  // nodes that have
  std::vector<Node> newcomers_;  // that wait until this scheduler knows all members
""",
        "a scheduler that is started again knows nobody",
        _AGAIN,
    ),
    Edit(
        _CC,
        """    ++barrier_count_[group];
    at_barrier_[group].insert(msg->meta.sender);
""",
        """    if (at_barrier_[group].insert(msg->meta.sender).second) ++barrier_count_[group];  // it may say so again
""",
        "a scheduler that is started again is told of the barriers at which the others wait",
        _AGAIN,
    ),
    Edit(
        _CC,
        """  at_barrier_.clear();
  lost_.clear();
""",
        """  at_barrier_.clear();
  lost_.clear();
  kinds_.clear();
  told_themselves_.clear();
  newcomers_.clear();
""",
        "a scheduler that is started again knows nobody",
        _AGAIN,
    ),
    Edit(
        _CC,
        """  auto &ctrl = msg->meta.control;

  UpdateLocalID(msg, &dead_set, nodes, recovery_nodes);
""",
        """  auto &ctrl = msg->meta.control;

  if (is_scheduler_ && msg->meta.sender != Meta::kEmpty) {
    ProcessMembers(ctrl.node, nodes, recovery_nodes);
    return;
  }
  if (is_scheduler_ && my_node_.is_recovery && !ready_.load()) {
    newcomers_.push_back(ctrl.node.at(0));
    return;
  }
  UpdateLocalID(msg, &dead_set, nodes, recovery_nodes);
""",
        "a scheduler that is started again knows nobody",
        _AGAIN,
    ),
    Edit(
        _CC,
        """  if (nodes->control.node.size() == num_nodes) {
""",
        """  if (!ready_.load() && nodes->control.node.size() == num_nodes) {
""",
        "a scheduler that is started again may know as many as a run begins with",
        _AGAIN,
    ),
    Edit(
        _CC,
        """  size_t num_nodes = NodesAtFirst();
  // assign an id
""",
        """  // assign an id
""",
        "a scheduler that is started again may know fewer than a run begins with",
        _AGAIN,
    ),
    Edit(
        _CC,
        """    if (static_cast<int>(nodes->control.node.size()) < (int) num_nodes) {
""",
        """    if (!ready_.load()) {
""",
        "a scheduler that is started again may know fewer than a run begins with",
        _AGAIN,
    ),
    Edit(
        _CC,
        """      if (elastic && recovery_nodes->control.node.empty() && node.role == Node::WORKER) {
""",
        """      if (elastic && recovery_nodes->control.node.empty()) {
""",
        "a server comes in a place of which a scheduler that is started again knows nothing",
        _AGAIN,
    ),
    Edit(
        _CC,
        """    Message back;
    for (int r : Postoffice::Get()->GetNodeIDs(kWorkerGroup + kServerGroup)) {
      if (r != recovery_nodes->control.node[0].id && (dead_set.count(r) || lost_.count(r))) {
""",
        """    Message back;
    // the newcomer last: if this scheduler is lost meanwhile, it has told all, or the newcomer asks again
    std::vector<int> ids = Postoffice::Get()->GetNodeIDs(kWorkerGroup + kServerGroup);
    std::stable_partition(ids.begin(), ids.end(), [id](int one) { return one != id; });
    for (int r : ids) {
      if (r != recovery_nodes->control.node[0].id && (dead_set.count(r) || lost_.count(r))) {
""",
        "a scheduler is lost while it takes a newcomer in",
        _AGAIN,
    ),
)
