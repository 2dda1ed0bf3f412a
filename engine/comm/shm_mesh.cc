#include "engine/comm/shm_mesh.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

constexpr int64_t kSlotBytes = 512 << 10;
constexpr int64_t kBlockAlignment = 64;
// How long a rank polls for a post before it sleeps: longer than the time between the posts of ranks of equal
// speed.
constexpr std::chrono::microseconds kSpin(20);
constexpr int kLooksPerTime = 64;  // polls per reading of the clock, which takes as long as several polls
// The longest time until a sleeping rank sees that its own process has called Close.
constexpr std::chrono::milliseconds kSleep(10);

using SegmentId = std::array<uint64_t, 2>;

struct alignas(128) Counter {
  std::atomic<uint32_t> value;
};

struct RankCounters {
  Counter posted;   // the number of the rank's last exchange
  Counter waiters;  // ranks that sleep, or are about to, until it posts
};

struct alignas(kBlockAlignment) SlotHead {
  uint32_t exchange;
  uint32_t operation;
  std::array<int64_t, kMaxRanks> offsets;  // offsets[r]: of the block for rank r, in `data`
  std::array<int64_t, kMaxRanks> bytes;
};

struct Slot {
  static constexpr int64_t kDataBytes = kSlotBytes - static_cast<int64_t>(sizeof(SlotHead));
  SlotHead head;
  std::byte data[kDataBytes];
};
static_assert(sizeof(Slot) == kSlotBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

long Futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

std::string NameOf(const SegmentId& id) { return absl::StrFormat("/foredraft-%016x%016x", id[0], id[1]); }

// Whether a rank that is at exchange `posted` has posted exchange `n`; the numbers wrap around.
bool HasPosted(uint32_t posted, uint32_t n) { return static_cast<int32_t>(posted - n) >= 0; }

}  // namespace

struct ShmMesh::Segment {
  SegmentId id;
  Counter over;  // not 0: the group is over
  std::array<RankCounters, kMaxRanks> ranks;
  Slot slots[kMaxRanks][2];

  // The segment of a group of `ranks` ends after their slots.
  static size_t BytesFor(int ranks) { return offsetof(Segment, slots) + ranks * sizeof(Segment::slots[0]); }
};

// The segment in this process, and its name while it has one.
class ShmMesh::Mapping {
 public:
  Mapping(SegmentId id, int ranks) : id_(id), bytes_(Segment::BytesFor(ranks)) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    Unlink();
    if (segment_ != nullptr) munmap(segment_, bytes_);
  }

  // Reserves the memory at once: a page missing later would raise SIGBUS.
  absl::Status Create() {
    const int file = shm_open(NameOf(id_).c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) return Error("shm_open", errno);
    named_ = true;
    const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes_));
    absl::Status mapped = error == 0 ? Map(file) : Error(absl::StrCat(bytes_, " bytes"), error);
    close(file);
    if (mapped.ok()) segment_->id = id_;
    return mapped;
  }

  absl::Status Open() {
    const int file = shm_open(NameOf(id_).c_str(), O_RDWR | O_CLOEXEC, 0);
    if (file < 0) return Error("shm_open", errno);
    struct stat facts;
    const bool fits = fstat(file, &facts) == 0 && facts.st_size == static_cast<off_t>(bytes_);
    absl::Status mapped = fits ? Map(file) : absl::InternalError("the segment has another size");
    close(file);
    if (mapped.ok() && segment_->id != id_) return absl::InternalError("the segment is another one");
    return mapped;
  }

  void Unlink() {
    if (named_) shm_unlink(NameOf(id_).c_str());
    named_ = false;
  }

  Segment& segment() const { return *segment_; }

 private:
  static absl::Status Error(const std::string& what, int error) {
    return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
  }

  absl::Status Map(int file) {
    void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (memory == MAP_FAILED) return Error("mmap", errno);
    segment_ = static_cast<Segment*>(memory);
    return absl::OkStatus();
  }

  const SegmentId id_;
  const size_t bytes_;
  Segment* segment_ = nullptr;
  bool named_ = false;  // this rank has created the name and removes it
};

absl::StatusOr<std::unique_ptr<ShmMesh>> ShmMesh::Connect(const CommunicatorOptions& options,
                                                          RendezvousStore& store) {
  const auto deadline = Clock::now() + options.connect_timeout;
  const auto answer_key = [](int rank) { return absl::StrCat("shm/answer/", rank); };
  SegmentId id = {};
  if (options.rank == 0) {
    CHECK_EQ(getrandom(&id, sizeof(id), 0), static_cast<ssize_t>(sizeof(id)));
    auto mapping = std::make_unique<Mapping>(id, options.size);
    const absl::Status created = mapping->Create();
    RETURN_IF_ERROR(store.Set("shm/segment", std::string(reinterpret_cast<const char*>(&id), sizeof(id))));
    RETURN_IF_ERROR(store.Set(answer_key(0), std::string(created.message())));
    std::string reason;
    for (int rank = 0; rank < options.size; ++rank) {
      ASSIGN_OR_RETURN(const std::string answer, store.Get(answer_key(rank), deadline));
      if (!answer.empty() && reason.empty()) reason = absl::StrCat("rank ", rank, ": ", answer);
    }
    mapping->Unlink();
    RETURN_IF_ERROR(store.Set("shm/reason", reason));
    if (reason.empty()) return std::unique_ptr<ShmMesh>(new ShmMesh(options, std::move(mapping)));
    Log(LogLevel::kInfo, "no memory is shared by all ranks (%s): they exchange over parallel.interface, %s",
        reason, options.interface);
    return nullptr;
  }
  ASSIGN_OR_RETURN(const std::string bytes, store.Get("shm/segment", deadline));
  if (bytes.size() != sizeof(id)) return absl::UnavailableError("shm/segment: not an id");
  std::memcpy(&id, bytes.data(), sizeof(id));
  auto mapping = std::make_unique<Mapping>(id, options.size);
  RETURN_IF_ERROR(store.Set(answer_key(options.rank), std::string(mapping->Open().message())));
  ASSIGN_OR_RETURN(const std::string reason, store.Get("shm/reason", deadline));
  if (!reason.empty()) return nullptr;
  return std::unique_ptr<ShmMesh>(new ShmMesh(options, std::move(mapping)));
}

ShmMesh::ShmMesh(const CommunicatorOptions& options, std::unique_ptr<Mapping> mapping)
    : rank_(options.rank),
      size_(options.size),
      step_timeout_(options.step_timeout),
      spins_(options.size * options.threads <= AllowedCores()),
      mapping_(std::move(mapping)),
      segment_(mapping_->segment()) {}

ShmMesh::~ShmMesh() { Close(); }

absl::Status ShmMesh::Run(const Exchange& exchange) {
  if (closed_.load() || segment_.over.value.load() != 0) return absl::UnavailableError("the group is over");
  const Clock::time_point deadline = Clock::now() + step_timeout_;
  int64_t piece = Slot::kDataBytes;
  if (!exchange.same_to_all) piece = piece / (size_ - 1) / kBlockAlignment * kBlockAlignment;
  int64_t first = 0;
  do {
    RETURN_IF_ERROR(RunPiece(exchange, first, piece, deadline));
    first += piece;
  } while (first < exchange.largest_bytes);
  return absl::OkStatus();
}

absl::Status ShmMesh::RunPiece(const Exchange& exchange, int64_t first, int64_t bytes,
                               Clock::time_point deadline) {
  ++exchange_count_;
  Post(exchange, first, bytes);
  for (int step = 1; step < size_; ++step) {
    const int peer = waiting_for_ = (rank_ + step) % size_;
    RETURN_IF_ERROR(WaitFor(peer, deadline));
    Take(exchange, peer, first, bytes);
  }
  return absl::OkStatus();
}

namespace {

// The part of `block` that belongs to the piece of bytes [first, first + bytes).
ExchangeBlock PieceOf(const ExchangeBlock& block, int64_t first, int64_t bytes) {
  if (first >= block.bytes) return {};
  return {static_cast<std::byte*>(block.data) + first, std::min(bytes, block.bytes - first)};
}

}  // namespace

void ShmMesh::Post(const Exchange& exchange, int64_t first, int64_t bytes) {
  Slot& slot = segment_.slots[rank_][exchange_count_ % 2];
  slot.head.exchange = exchange_count_;
  slot.head.operation = exchange.operation;
  int64_t next = 0;
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    const ExchangeBlock piece = PieceOf(exchange.outgoing[peer], first, bytes);
    slot.head.bytes[peer] = piece.bytes;
    slot.head.offsets[peer] = next;
    if (exchange.same_to_all && step > 1) continue;  // written for the first one
    CHECK_LE(next + piece.bytes, Slot::kDataBytes);
    if (piece.bytes > 0) std::memcpy(slot.data + next, piece.data, static_cast<size_t>(piece.bytes));
    if (!exchange.same_to_all)
      next += (piece.bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  }
  RankCounters& own = segment_.ranks[rank_];
  // Sequentially consistent with the waiters' accesses: either a waiter sees this number, or this rank sees
  // the waiter.
  own.posted.value.store(exchange_count_, std::memory_order_seq_cst);
  if (own.waiters.value.load(std::memory_order_seq_cst) != 0) {
    Futex(own.posted.value, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

absl::Status ShmMesh::WaitFor(int peer, Clock::time_point deadline) {
  RankCounters& counters = segment_.ranks[peer];
  std::atomic<uint32_t>& posted = counters.posted.value;
  const auto is_there = [&] { return HasPosted(posted.load(std::memory_order_acquire), exchange_count_); };
  if (is_there()) return absl::OkStatus();
  if (spins_) {
    const Clock::time_point end = Clock::now() + kSpin;
    do {
      for (int look = 0; look < kLooksPerTime; ++look) {
        if (is_there()) return absl::OkStatus();
        Pause();
      }
    } while (Clock::now() < end);
  }
  const timespec timeout = {.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kSleep).count()};
  while (true) {
    counters.waiters.value.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = posted.load(std::memory_order_seq_cst);
    const bool over = closed_.load() || segment_.over.value.load() != 0;
    if (!HasPosted(seen, exchange_count_) && !over) Futex(posted, FUTEX_WAIT, seen, &timeout);
    counters.waiters.value.fetch_sub(1, std::memory_order_relaxed);
    // An exchange that was posted before the end of the group is still valid.
    if (is_there()) return absl::OkStatus();
    if (over) return absl::UnavailableError("the group is over");
    if (Clock::now() >= deadline) return absl::DeadlineExceededError("");
  }
}

void ShmMesh::Take(const Exchange& exchange, int peer, int64_t first, int64_t bytes) const {
  const Slot& slot = segment_.slots[peer][exchange_count_ % 2];
  const ExchangeBlock piece = PieceOf(exchange.incoming[peer], first, bytes);
  const int64_t offset = slot.head.offsets[rank_];
  CHECK(slot.head.exchange == exchange_count_ && slot.head.operation == exchange.operation &&
        slot.head.bytes[rank_] == piece.bytes && offset >= 0 && offset + piece.bytes <= Slot::kDataBytes)
      << "lockstep: rank " << peer << " is in exchange " << slot.head.exchange << ", operation "
      << slot.head.operation << " of " << slot.head.bytes[rank_] << " bytes, rank " << rank_
      << " in exchange " << exchange_count_ << ", operation " << exchange.operation << " of " << piece.bytes
      << " bytes";
  if (piece.bytes > 0) std::memcpy(piece.data, slot.data + offset, static_cast<size_t>(piece.bytes));
}

void ShmMesh::Close() {
  if (closed_.exchange(true)) return;
  segment_.over.value.store(1);
  for (int rank = 0; rank < size_; ++rank) {
    Futex(segment_.ranks[rank].posted.value, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

}  // namespace foredraft
