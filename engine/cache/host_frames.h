#pragma once

// Page-locked host memory for swapped-out bytes: frames of equal size, which need not be adjacent.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace foredraft {

struct HostFrames {
  std::span<uint8_t* const> frames;
  size_t frame_bytes = 0;

  // Calls copy(done, host, bytes) for each piece of the bytes [offset, offset + count) that lies in one
  // frame; `done` is the number of bytes before the piece.
  template <class Copy>
  void ForEachPiece(size_t offset, size_t count, const Copy& copy) const {
    for (size_t done = 0; done < count;) {
      const size_t at = offset + done;
      const size_t in_frame = at % frame_bytes;
      const size_t bytes = std::min(count - done, frame_bytes - in_frame);
      copy(done, frames[at / frame_bytes] + in_frame, bytes);
      done += bytes;
    }
  }
};

}  // namespace foredraft
