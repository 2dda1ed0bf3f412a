#include "net/guard/frame_reader.h"

#include <algorithm>

namespace foredraft {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kHeadBytes = 9;
constexpr size_t kMaxSettingsBytes = 6 * 64;
constexpr size_t kMaxOtherBytes = 16384;  // the largest frame that a client may send unasked (RFC 9113, 4.2)

// Types of frames (RFC 9113, section 6).
constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kPriority = 2;
constexpr uint8_t kRstStream = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kPing = 6;
constexpr uint8_t kWindowUpdate = 8;
constexpr uint8_t kContinuation = 9;

constexpr uint8_t kAck = 0x1;
constexpr uint8_t kEndStream = 0x1;
constexpr uint8_t kEndHeaders = 0x4;

}  // namespace

struct FrameReader::Head {
  size_t length;
  uint8_t type;
  uint8_t flags;
  uint32_t stream;

  static Head Parse(std::string_view bytes) {
    const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])); };
    return {.length = byte(0) << 16 | byte(1) << 8 | byte(2),
            .type = static_cast<uint8_t>(byte(3)),
            .flags = static_cast<uint8_t>(byte(4)),
            .stream = (byte(5) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8)) & 0x7fffffff};
  }
};

FrameReader::Result FrameReader::Read(std::string_view bytes, FrameGate& gate) {
  Result result;
  size_t at = held_;
  if (!ReadPreface(bytes, at)) return {.fault = FrameFault::kPreface};
  while (preface_read_ == kPreface.size()) {
    const size_t taken = std::min(payload_left_, bytes.size() - at);
    at += taken;
    payload_left_ -= taken;
    if (payload_left_ == 0) {
      started_ |= at > kPreface.size();  // the first frame has ended
      if (in_block_ && block_ends_) in_block_ = block_ends_ = false;
    }
    if (!holds()) result.ready = at;
    if (payload_left_ > 0 || bytes.size() - at < kHeadBytes) break;
    const Head head = Head::Parse(bytes.substr(at, kHeadBytes));
    result.fault = Check(head);
    if (result.fault.has_value()) return result;
    result.waits = !gate.Admit(Describe(head));
    if (result.waits) break;
    Enter(head);
    at += kHeadBytes;
  }
  held_ = at - result.ready;
  return result;
}

bool FrameReader::ReadPreface(std::string_view bytes, size_t& at) {
  const size_t count = std::min(kPreface.size() - preface_read_, bytes.size() - at);
  if (bytes.substr(at, count) != kPreface.substr(preface_read_, count)) return false;
  preface_read_ += count;
  at += count;
  return true;
}

std::optional<FrameFault> FrameReader::Check(const Head& head) {
  if (!started_ && (head.type != kSettings || (head.flags & kAck) != 0)) return FrameFault::kPreface;
  if (in_block_ != (head.type == kContinuation)) return FrameFault::kFrame;
  if (in_block_ && head.stream != block_stream_) return FrameFault::kFrame;
  bool possible = true;
  switch (head.type) {
    case kData:  // gRPC announces the largest size, and changes it
      break;
    case kHeaders:
    case kContinuation: {
      const int64_t before = in_block_ ? block_bytes_ : 0;
      const int pieces = in_block_ ? pieces_ : 0;
      const bool fits = before + static_cast<int64_t>(head.length) <= max_block_bytes_;
      if (!fits || pieces >= kMaxPieces) return FrameFault::kHeaderBlock;
      break;
    }
    case kPriority:
      possible = head.length == 5;
      break;
    case kRstStream:
    case kWindowUpdate:
      possible = head.length == 4;
      break;
    case kPing:
      possible = head.length == 8;
      break;
    case kSettings:
      possible = head.length % 6 == 0 && head.length <= kMaxSettingsBytes;
      break;
    default:
      possible = head.length <= kMaxOtherBytes;
  }
  return possible ? std::nullopt : std::optional(FrameFault::kFrame);
}

Frame FrameReader::Describe(const Head& head) const {
  Frame frame;
  switch (head.type) {
    case kData:
      if (head.length >= kSmallData) frame.kind = FrameKind::kData;
      break;
    case kHeaders:
      if (head.stream > last_stream_) frame.kind = FrameKind::kStream;
      [[fallthrough]];
    case kContinuation:
      frame.header_bytes = static_cast<int64_t>(head.length + kHeadBytes);
      break;
    case kRstStream:
      frame.kind = FrameKind::kReset;
      break;
    case kPing:
      frame.kind = FrameKind::kPing;
      break;
    case kSettings:
      frame.kind = FrameKind::kSettings;
      break;
    default:
      break;
  }
  return frame;
}

void FrameReader::Enter(const Head& head) {
  payload_left_ = head.length;
  if (head.type == kHeaders) {
    in_block_ = true;
    block_stream_ = head.stream;
    block_bytes_ = 0;
    pieces_ = 0;
    if (counts_ && head.stream > last_stream_) unfinished_.insert(head.stream);
    last_stream_ = std::max(last_stream_, head.stream);
  }
  if (in_block_) {
    block_bytes_ += static_cast<int64_t>(head.length);
    ++pieces_;
    block_ends_ = (head.flags & kEndHeaders) != 0;
  }
  const bool ends =
      head.type == kData || head.type == kHeaders ? (head.flags & kEndStream) != 0 : head.type == kRstStream;
  if (ends && counts_) unfinished_.erase(head.stream);
}

void FrameReader::StopCounting() {
  counts_ = false;
  unfinished_ = {};
}

}  // namespace foredraft
