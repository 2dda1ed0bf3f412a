#pragma once

// A leader on loopback and what its tests know of it.

#include <grpcpp/security/server_credentials.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "ranks/leader.h"

namespace foredraft {

inline constexpr std::chrono::milliseconds kHeartbeatTimeout(1500);
inline constexpr std::chrono::milliseconds kPatience(30'000);
inline constexpr char kSecret[] = "the-secret-of-the-group-0123456789";
inline constexpr int kBlockCount = 100;

inline GroupIdentity Identity() {
  return {.version = "0.1.0",
          .model_hash = "aaaaaaaa",
          .config_keys = {"backend: cpu", "max_batch_size: 16"},
          .numerics_class = ""};
}

inline PlanLimits TestLimits(int rank_count) {
  return {.rank_count = rank_count,
          .vocab_size = 1 << 20,
          .slot_count = 16,
          .largest_bucket = 16,
          .max_num_tokens = 64,
          .max_seq_len = 4096,
          .max_draft_len = 3};
}

// Two ranks unless a test says otherwise.
inline LeaderOptions TestLeaderOptions() {
  LeaderOptions options;
  options.rank_count = 2;
  options.address = "127.0.0.1:0";
  options.credentials = grpc::InsecureServerCredentials();
  options.secrets = {"another-secret-of-the-group-01234567", kSecret};
  options.limits = TestLimits(/*rank_count=*/2);
  options.block_count = kBlockCount;
  options.identity = Identity();
  options.token_count = 1'000'000;
  options.missing_tokens = {3, 999'999};
  options.heartbeat_timeout = kHeartbeatTimeout;
  return options;
}

class LeaderFixture : public testing::Test {
 protected:
  void SetUp() override {
    InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
  }
  void TearDown() override {
    leader_.reset();
    InstallLogSink(nullptr);
  }
  void Open(const LeaderOptions& options) {
    leader_.reset();
    auto leader = Leader::Listen(options);
    ASSERT_TRUE(leader.ok()) << leader.status();
    leader_ = *std::move(leader);
    leader_->BeginGroup();
  }
  bool WaitUntil(const std::function<bool(const std::vector<WorkerView>&)>& condition) {
    GroupView view;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < deadline) {
      view = leader_->Watch(view.version, std::chrono::milliseconds(100));
      if (condition(view.workers)) return true;
    }
    return false;
  }
  bool WaitReady() {
    return WaitUntil([](const std::vector<WorkerView>& views) {
      return std::all_of(views.begin(), views.end(),
                         [](const WorkerView& view) { return view.state == WorkerState::kReady; });
    });
  }
  absl::Status WaitLost() {
    EXPECT_TRUE(WaitUntil([this](const auto&) { return !leader_->health().ok(); }));
    return leader_->health();
  }

  std::unique_ptr<Leader> leader_;
};

}  // namespace foredraft
