// The scheduler's part of ps-lite's Van: which workers and servers are there, and which barriers wait for whom.
//
// A run may begin before all of its workers are there, go on without those that are lost, and take others in. `lost_`
// has the nodes that are gone and the slots of workers that are still empty. No barrier waits for those.
#include <algorithm>
#include <vector>

#include "ps/internal/postoffice.h"
#include "ps/internal/utils.h"
#include "ps/internal/van.h"

namespace ps {

// The id of a worker or a server, from the number that it was started with.
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

// A scheduler that is started again knows nobody. A member that had lost the scheduler comes to the new one, and names
// itself and those that it is connected to. Workers know all servers, and servers all workers. So this scheduler knows
// all members once one of each kind has come. Until then no barrier ends, and newcomers wait. What a member says of
// others counts more than what one says of itself: that one may be cut off, and another one may be in its place.
void Van::ProcessMembers(const std::vector<Node> &told, Meta *nodes, Meta *recovery_nodes) {
  auto &members = nodes->control.node;
  if (!ready_.load() && !my_node_.is_recovery) {  // the first that comes
    my_node_.is_recovery = true;
    newcomers_.swap(members);
    members.push_back(my_node_);
    nodes->control.cmd = Control::ADD_NODE;
    for (int id : Postoffice::Get()->GetNodeIDs(kWorkerGroup + kServerGroup)) lost_.insert(id);
  }
  for (size_t i = 0; i < told.size() && (i == 0 || !ready_.load()); ++i) {
    Node node = told[i];
    node.is_recovery = true;
    auto known = std::find_if(members.begin(), members.end(), [&](const Node &one) { return one.id == node.id; });
    const bool is_known = known != members.end() && !lost_.count(node.id);
    const bool is_same = is_known && known->hostname == node.hostname && known->port == node.port;
    // who has been told of before its own first word has a connection already, and perhaps messages on it
    const bool is_first_word = i == 0 && my_node_.is_recovery && told_themselves_.insert(node.id).second;
    if (is_known && (i == 0 ? !is_same || is_first_word : is_same)) continue;
    if (known != members.end()) members.erase(known);
    members.insert(members.begin(), node);  // before the scheduler
    lost_.erase(node.id);
    Connect(node);
  }
  kinds_.insert(told.front().role);
  if (ready_.load() || kinds_.size() < 2) return;
  ready_ = true;
  for (const auto &node : newcomers_) {
    Message msg;
    msg.meta.sender = Meta::kEmpty;
    msg.meta.control.cmd = Control::ADD_NODE;
    msg.meta.control.node.push_back(node);
    ProcessAddNodeCommand(&msg, nodes, recovery_nodes);
  }
  newcomers_.clear();
  EndCompleteBarriers();
}

bool Van::IsBarrierComplete(int group) {
  if (!ready_.load()) return false;
  auto members = Postoffice::Get()->GetNodeIDs(group);
  if (lost_.empty()) return barrier_count_[group] == static_cast<int>(members.size());
  return std::all_of(members.begin(), members.end(), [&](int node) {
    return at_barrier_[group].count(node) || lost_.count(node);
  });
}

void Van::EndBarriersWithout(int node) {
  if (!is_scheduler_ || !GetEnv("DYNAMIX_ELASTIC", 0)) return;
  lost_.insert(node);
  EndCompleteBarriers();
}

void Van::EndCompleteBarriers() {
  for (size_t group = 0; group < barrier_count_.size(); ++group) {
    if (barrier_count_[group] > 0 && IsBarrierComplete(group)) EndBarrier(group, 0, 0);
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
  for (int id : Postoffice::Get()->GetNodeIDs(group)) {
    if (shared_node_mapping_.count(id) || lost_.count(id)) continue;
    res.meta.recver = id;
    res.meta.timestamp = timestamp_++;
    CHECK_GT(Send(res), 0);
  }
}

}  // namespace ps
