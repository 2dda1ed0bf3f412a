// Exchanges through windows (kernels/cuda/exchange), of ranks that are streams of this thread: while one
// waits for another's flag, the emulation lets the others run.

#include "kernels/cuda/exchange/push_exchange.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/ops/test_backend.h"

namespace foredraft {
namespace {

// What one exchange moves: rows[s][r] rows from rank s to rank r, of every part.
struct Traffic {
  std::vector<std::vector<int32_t>> rows;
  std::vector<int64_t> row_bytes;  // of each part
  bool to_all = false;             // a rank sends the same rows to all
};

// What a rank should have in `rows`.
struct Received {
  int exchange;
  int rank;
  int part;
  std::byte* rows;
  std::vector<std::byte> expected;
};

class PushExchangeTest : public ::testing::TestWithParam<int> {
 protected:
  PushExchangeTest() {
    CHECK_EQ(cudaMallocHost(&over_, sizeof(*over_)), cudaSuccess);
    *over_ = 0;
    windows_.over = over_;
    windows_.ranks = ranks();
    for (int rank = 0; rank < ranks(); ++rank) {
      devices_.push_back(*CreateDevice(TestBackend(), {}));
      streams_.push_back(devices_[rank]->CreateStream());
      windows_.of[rank] = static_cast<PushWindow*>(*devices_[rank]->Allocate(sizeof(PushWindow)));
      cudaMemset(windows_.of[rank], 0, offsetof(PushWindow, slots));
    }
  }
  ~PushExchangeTest() override { cudaFreeHost(over_); }

  int ranks() const { return GetParam(); }

  // Submits one exchange: its calls, whose bytes are of its number, sender and place.
  void Submit(const Traffic& traffic) {
    const int parts = static_cast<int>(traffic.row_bytes.size());
    int32_t largest = 0;
    for (const auto& from : traffic.rows) {
      for (const int32_t count : from) largest = std::max(largest, count);
    }
    std::vector<PushExchangeParams> calls(ranks());
    for (int rank = 0; rank < ranks(); ++rank) {
      PushExchangeParams& call = calls[rank];
      call.windows = windows_;
      call.windows.rank = rank;
      int32_t sent = 0, received = 0;
      for (int peer = 0; peer < ranks(); ++peer) {
        const int32_t to = traffic.rows[rank][peer], from = traffic.rows[peer][rank];
        call.sent[peer] = {traffic.to_all ? 0 : sent, to};
        call.received[peer] = {received, from};
        sent += to;
        received += from;
      }
      if (traffic.to_all) sent = traffic.rows[rank][rank];
      for (int i = 0; i < parts; ++i) {
        const int64_t row_bytes = traffic.row_bytes[i];
        call.parts[i] = {Bytes(rank, Sent(rank, i, sent * row_bytes)),
                         Bytes(rank, std::vector<std::byte>(received * row_bytes, std::byte{0x5a})),
                         row_bytes};
      }
      call.largest_bytes = PushedBytes(call.parts, largest);
    }
    for (int rank = 0; rank < ranks(); ++rank) {
      for (int i = 0; i < parts; ++i) {
        Received& received =
            received_.emplace_back(Received{exchange_, rank, i, calls[rank].parts[i].out, {}});
        for (int peer = 0; peer < ranks(); ++peer) {
          const PushRows& rows = calls[peer].sent[rank];
          const auto whole = Sent(peer, i, (rows.first + rows.count) * traffic.row_bytes[i]);
          received.expected.insert(received.expected.end(), whole.begin() + rows.first * traffic.row_bytes[i],
                                   whole.end());
        }
      }
      PushExchange(*streams_[rank], calls[rank]);
    }
    ++exchange_;
  }

  // Runs what was submitted, in which a rank may be an exchange ahead.
  void ExpectReceived() {
    for (Received& received : received_) {
      std::vector<std::byte> got(received.expected.size());
      Stream& stream = *streams_[received.rank];
      devices_[received.rank]->CopyToHost(stream, got.data(), received.rows, got.size());
      stream.Synchronize();
      EXPECT_TRUE(got == received.expected)
          << "rank " << received.rank << ", part " << received.part << " of exchange " << received.exchange
          << ": rows of a peer are missing";
    }
  }

  std::byte* Bytes(int rank, const std::vector<std::byte>& bytes) {
    auto* const memory =
        static_cast<std::byte*>(*devices_[rank]->Allocate(std::max<size_t>(bytes.size(), 1)));
    devices_[rank]->CopyToDevice(*streams_[rank], memory, bytes.data(), bytes.size());
    return memory;
  }

  // A rank's bytes of a part, the first of any number.
  std::vector<std::byte> Sent(int rank, int part, int64_t count) const {
    std::mt19937 random(static_cast<uint32_t>(exchange_ * 64 + rank * 4 + part));
    std::vector<std::byte> bytes(count);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }

  uint32_t* over_ = nullptr;
  PushWindows windows_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Stream>> streams_;
  int exchange_ = 0;
  std::vector<Received> received_;
};

INSTANTIATE_TEST_SUITE_P(Ranks, PushExchangeTest, ::testing::Values(2, 4, 8));

// The slots are used several times, by ranks with more and fewer rows, and with none.
TEST_P(PushExchangeTest, EveryRankGetsTheRowsOfAll) {
  std::mt19937 random(5);
  for (int repeat = 0; repeat < 6; ++repeat) {
    Traffic traffic = {.row_bytes = {28 * 16, 12, 4 * 1031}, .to_all = true};
    for (int rank = 0; rank < ranks(); ++rank) {
      traffic.rows.emplace_back(ranks(), static_cast<int32_t>(random() % 4));
    }
    Submit(traffic);
  }
  ExpectReceived();
}

TEST_P(PushExchangeTest, RowsGoToTheirOwners) {
  std::mt19937 random(6);
  for (int repeat = 0; repeat < 5; ++repeat) {
    Traffic traffic = {.row_bytes = {repeat % 2 == 0 ? 4096 : 1020}};
    for (int rank = 0; rank < ranks(); ++rank) {
      traffic.rows.emplace_back();
      for (int peer = 0; peer < ranks(); ++peer)
        traffic.rows[rank].push_back(static_cast<int32_t>(random() % 5));
    }
    Submit(traffic);
  }
  ExpectReceived();
}

// Ranks of a set that have nothing for the other one keep step with it.
TEST_P(PushExchangeTest, SetsExchangeAmongThemselves) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    Traffic traffic = {.row_bytes = {64}, .to_all = true};
    for (int rank = 0; rank < ranks(); ++rank) {
      traffic.rows.emplace_back(ranks(), 0);
      for (int peer = 0; peer < ranks(); ++peer) {
        if (peer % 2 == rank % 2) traffic.rows[rank][peer] = 1 + rank % 2;
      }
    }
    Submit(traffic);
  }
  ExpectReceived();
}

TEST_P(PushExchangeTest, MoreBytesThanBlocksTakeAUnitOf) {
  if (ranks() > 2) return;
  const auto rows = static_cast<int32_t>(kPushSlotBytes / 4096);
  Submit({.rows = {{rows, rows}, {rows - 3, rows - 3}}, .row_bytes = {4096}, .to_all = true});
  Submit({.rows = {{0, 0}, {0, 0}}, .row_bytes = {4096}, .to_all = true});
  ExpectReceived();
}

TEST_P(PushExchangeTest, EndsWithoutAPeerOnceTheGroupIsOver) {
  PushExchangeParams call = {.windows = windows_, .largest_bytes = 16};
  call.parts[0] = {Bytes(0, std::vector<std::byte>(16)), Bytes(0, std::vector<std::byte>(16 * ranks())), 16};
  for (int peer = 0; peer < ranks(); ++peer) {
    call.sent[peer] = {0, 1};
    call.received[peer] = {peer, 1};
  }
  PushExchange(*streams_[0], call);
  std::unique_ptr<Event> end = devices_[0]->CreateEvent();
  end->Record(*streams_[0]);
  EXPECT_FALSE(end->Wait(std::chrono::steady_clock::now() + std::chrono::milliseconds(50)));
  *over_ = 1;
  EXPECT_TRUE(end->Wait(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
}

}  // namespace
}  // namespace foredraft
