#include "ranks/membership.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace foredraft {

Membership::Membership(int rank_count, const GroupIdentity& identity)
    : identity_(identity), members_(rank_count) {}

void Membership::Begin() {
  CHECK(life_ == Life::kNone || life_ == Life::kOver);
  CHECK(empty());
  life_ = Life::kOpen;
  health_ = absl::OkStatus();
  numerics_class_ = identity_.numerics_class;
  std::fill(members_.begin(), members_.end(), Member{});
}

bool Membership::End(const absl::Status& reason) {
  if (life_ == Life::kOver) return false;
  life_ = Life::kOver;
  health_ = reason;
  return true;
}

absl::Status Membership::Join(const worker::v1::WorkerJoin& join, LeaderStream* stream, TimePoint now) {
  const int rank = join.rank();
  if (rank < 0 || rank >= size()) {
    return absl::FailedPreconditionError(absl::StrFormat("rank: %d, allowed 0..%d", rank, size() - 1));
  }
  GroupIdentity expected = identity_;
  expected.numerics_class = numerics_class_;
  const absl::Status same =
      CheckSameIdentity(expected, {.version = join.version(),
                                   .model_hash = join.model_hash(),
                                   .config_keys = {join.config_keys().begin(), join.config_keys().end()},
                                   .numerics_class = join.numerics_class()});
  if (!same.ok()) return same;
  if (life_ != Life::kOpen) return absl::UnavailableError("the group is not open, dial again");
  Member& member = members_[rank];
  if (member.stream != nullptr) {
    return absl::UnavailableError(absl::StrFormat("rank %d is taken by process %d on %s, dial again", rank,
                                                  member.view.pid, member.view.host));
  }
  if (absl::Status own_gpu = CheckOwnGpu(join); !own_gpu.ok()) return own_gpu;
  numerics_class_ = join.numerics_class();
  member = {.stream = stream,
            .view = {.state = WorkerState::kJoined,
                     .device = join.device(),
                     .numerics_class = join.numerics_class(),
                     .host = join.host(),
                     .pid = join.pid(),
                     .gpu = join.gpu()},
            .last_heard = now};
  return absl::OkStatus();
}

// Two ranks on one GPU would halve its memory and its speed, and NCCL refuses them.
absl::Status Membership::CheckOwnGpu(const worker::v1::WorkerJoin& join) const {
  for (int rank = 0; rank < size() && !join.gpu().empty(); ++rank) {
    const Member& other = members_[rank];
    if (rank == join.rank() || other.stream == nullptr || other.view.gpu != join.gpu()) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: rank %d, process %d on %s, has this GPU; set CUDA_VISIBLE_DEVICES of each worker, or "
        "parallel.local_workers to the number of workers on the host",
        join.gpu(), rank, other.view.pid, other.view.host));
  }
  return absl::OkStatus();
}

bool Membership::empty() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.stream == nullptr; });
}

std::optional<int> Membership::RankOf(const LeaderStream* stream) const {
  for (int rank = 0; rank < size(); ++rank) {
    if (members_[rank].stream == stream) return rank;
  }
  return std::nullopt;
}

std::optional<Membership::SilentRank> Membership::FindSilent(TimePoint now,
                                                             std::chrono::milliseconds timeout) const {
  for (int rank = 0; rank < size(); ++rank) {
    const TimePoint::duration silence = now - members_[rank].last_heard;
    if (members_[rank].stream != nullptr && silence > timeout) return SilentRank{rank, silence};
  }
  return std::nullopt;
}

std::vector<WorkerView> Membership::views() const {
  std::vector<WorkerView> views;
  for (const Member& member : members_) views.push_back(member.view);
  return views;
}

}  // namespace foredraft
