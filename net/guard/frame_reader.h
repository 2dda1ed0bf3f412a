#pragma once

// Reads an HTTP/2 client's bytes as far as a guard in front of a server needs them: the preface and the nine
// bytes at the head of each frame. It decodes no headers. gRPC 1.51 parses a header block again from its
// start with each piece that arrives and has no bound on its pieces (CVE-2023-33953), so a block is released
// as a whole, and its size and number of pieces are bounded. No I/O, no clock. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_set>

namespace foredraft {

enum class FrameKind {
  kData,      // DATA of kSmallData bytes or more
  kStream,    // HEADERS that open a stream
  kReset,     // RST_STREAM frames
  kPing,      // also answers
  kSettings,  // also answers
  kOther,     // everything else that costs a server time: small DATA, trailers, WINDOW_UPDATE, unknown types
};

struct Frame {
  FrameKind kind = FrameKind::kOther;
  int64_t header_bytes = 0;  // of a frame of a header block: payload and frame header
};

// The rule that was broken; no correct client breaks one.
enum class FrameFault {
  kPreface,  // not HTTP/2's preface and then SETTINGS
  kFrame,    // a length that the frame's type cannot have, or a frame between the pieces of a header block
  kHeaderBlock,  // a header block of too many bytes or pieces
};

// Decides for each frame, in the order in which the client has sent them, whether it may pass.
class FrameGate {
 public:
  virtual ~FrameGate() = default;
  // False: this frame and what follows it wait. The next Read asks again.
  virtual bool Admit(const Frame& frame) = 0;
};

class FrameReader {
 public:
  static constexpr size_t kSmallData = 256;
  static constexpr int kMaxPieces = 16;  // of a header block

  explicit FrameReader(int64_t max_block_bytes) : max_block_bytes_(max_block_bytes) {}

  struct Result {
    size_t ready = 0;  // bytes at the front that may go on to the server
    bool waits = false;
    std::optional<FrameFault> fault;
  };
  // `bytes`: all bytes that have come and were not ready yet, those of earlier calls first. The caller
  // removes the ready bytes before the next call.
  Result Read(std::string_view bytes, FrameGate& gate);

  // The client's preface and first SETTINGS have been released.
  bool started() const { return started_; }
  // The reader is within a header block or the first frames, and holds back what it has read of them.
  bool holds() const { return !started_ || in_block_; }
  // The client has opened a stream.
  bool has_opened() const { return last_stream_ > 0; }
  // Streams that the client has opened and neither finished nor reset. Counted until StopCounting.
  size_t unfinished_streams() const { return unfinished_.size(); }
  void StopCounting();
  void set_max_block_bytes(int64_t bytes) { max_block_bytes_ = bytes; }

 private:
  struct Head;  // the nine bytes, parsed

  // Reads bytes of the preface from `at` on. False: they are not the preface's.
  bool ReadPreface(std::string_view bytes, size_t& at);
  std::optional<FrameFault> Check(const Head& head);
  Frame Describe(const Head& head) const;
  void Enter(const Head& head);

  int64_t max_block_bytes_;
  size_t held_ = 0;  // bytes that have been read and are not ready
  size_t preface_read_ = 0;
  bool started_ = false;
  bool in_block_ = false;    // from HEADERS to the end of the block's last frame
  bool block_ends_ = false;  // the current frame is the block's last
  uint32_t block_stream_ = 0;
  int64_t block_bytes_ = 0;
  int pieces_ = 0;
  size_t payload_left_ = 0;  // of the current frame
  uint32_t last_stream_ = 0;
  bool counts_ = true;
  std::unordered_set<uint32_t> unfinished_;
};

}  // namespace foredraft
