#pragma once

// A running total of the memory that the grammars of one cache hold: each account adds its changes, so that
// nothing has to sum over all of them.

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace foredraft {

// Thread-safe; its lock is held for a few instructions, never while a mask is made.
class ByteLedger {
 public:
  // The bytes of all open accounts: grammars in the cache, and dropped ones that outputs still follow.
  int64_t held() const {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  // The bytes of listed accounts: grammars in the cache.
  int64_t listed() const {
    const std::lock_guard lock(mutex_);
    return listed_;
  }

 private:
  friend class ByteAccount;
  mutable std::mutex mutex_;
  int64_t held_ = 0;
  int64_t listed_ = 0;
};

// The bytes that one grammar holds. Thread-safe.
class ByteAccount {
 public:
  // `ledger` may be null.
  explicit ByteAccount(std::shared_ptr<ByteLedger> ledger) : ledger_(std::move(ledger)) {}
  ByteAccount(const ByteAccount&) = delete;
  ~ByteAccount() { Add(-bytes()); }

  void Add(int64_t bytes) {
    if (bytes == 0) return;
    const std::lock_guard lock(mutex());
    bytes_ += bytes;
    if (ledger_ == nullptr) return;
    ledger_->held_ += bytes;
    if (is_listed_) ledger_->listed_ += bytes;
  }
  void SetListed(bool is_listed) {
    const std::lock_guard lock(mutex());
    if (is_listed == is_listed_) return;
    is_listed_ = is_listed;
    if (ledger_ != nullptr) ledger_->listed_ += is_listed ? bytes_ : -bytes_;
  }
  int64_t bytes() const {
    const std::lock_guard lock(mutex());
    return bytes_;
  }

 private:
  std::mutex& mutex() const { return ledger_ == nullptr ? own_mutex_ : ledger_->mutex_; }

  const std::shared_ptr<ByteLedger> ledger_;
  mutable std::mutex own_mutex_;  // used without a ledger
  // Guarded by mutex().
  int64_t bytes_ = 0;
  bool is_listed_ = false;
};

}  // namespace foredraft
