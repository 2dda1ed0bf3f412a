// What a client of HTTP/2 may send, byte by byte and in pieces of every size.

#include "net/guard/frame_reader.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/net/http2_frames.h"

namespace foredraft {
namespace {

class Open final : public FrameGate {
 public:
  bool Admit(const Frame& frame) override {
    frames.push_back(frame);
    return true;
  }
  std::vector<Frame> frames;
};

struct Outcome {
  std::string passed;
  std::optional<FrameFault> fault;
};

// Feeds `text` in pieces of `step` bytes, as a relay does; 0: of random sizes.
Outcome Feed(FrameReader& reader, FrameGate& gate, std::string_view text, size_t step) {
  std::mt19937 random(7);
  Outcome outcome;
  std::string kept;
  while (!text.empty()) {
    const size_t size = std::min(text.size(), step == 0 ? 1 + random() % 40 : step);
    kept += text.substr(0, size);
    text.remove_prefix(size);
    const FrameReader::Result result = reader.Read(kept, gate);
    outcome.fault = result.fault;
    if (outcome.fault.has_value()) return outcome;
    outcome.passed += kept.substr(0, result.ready);
    kept.erase(0, result.ready);
  }
  return outcome;
}

std::string ACall(uint32_t stream) {
  return HeadersFrame(stream, std::string(100, 'h'), kEndHeaders) +
         Http2Frame(kData, 0, stream, std::string(40'000, 'd')) +
         Http2Frame(kData, kEndStream, stream, "end");
}

TEST(FrameReader, PassesACorrectClientInAnyPieces) {
  const std::string text = kClientBegin + ACall(1) + Http2Frame(kPing, 0, 0, "12345678") +
                           HeadersFrame(3, std::string(9000, 'h'), 0) +
                           Http2Frame(kContinuation, 0, 3, std::string(9000, 'c')) +
                           Http2Frame(kContinuation, kEndHeaders, 3, std::string(100, 'c')) +
                           Http2Frame(kRstStream, 0, 3, kFourBytes) + Http2Frame(99, 0xff, 77, "unknown") +
                           Http2Frame(kWindowUpdate, 0, 0, kFourBytes) + ACall(5);
  for (const size_t step :
       {size_t{0}, size_t{1}, size_t{8}, size_t{9}, size_t{10}, size_t{4096}, text.size()}) {
    FrameReader reader(32 << 10);
    Open gate;
    const Outcome outcome = Feed(reader, gate, text, step);
    EXPECT_FALSE(outcome.fault.has_value()) << step;
    EXPECT_TRUE(outcome.passed == text) << step;
    EXPECT_EQ(gate.frames.size(), 14u) << step;
    EXPECT_EQ(reader.unfinished_streams(), 0u) << step;
  }
}

TEST(FrameReader, HoldsAHeaderBlockUntilItIsWhole) {
  const std::string begin = HeadersFrame(1, std::string(50, 'h'), 0);
  const std::string end = Http2Frame(kContinuation, kEndHeaders, 1, std::string(50, 'c'));
  FrameReader reader(32 << 10);
  Open gate;
  EXPECT_EQ(reader.Read(kClientBegin, gate).ready, kClientBegin.size());
  EXPECT_EQ(reader.Read(begin, gate).ready, 0u);
  EXPECT_TRUE(reader.holds());
  EXPECT_EQ(reader.Read(begin + end.substr(0, end.size() - 1), gate).ready, 0u);
  EXPECT_EQ(reader.Read(begin + end, gate).ready, begin.size() + end.size());
  EXPECT_FALSE(reader.holds());
}

TEST(FrameReader, NothingPassesBeforePrefaceAndSettings) {
  FrameReader reader(32 << 10);
  Open gate;
  for (size_t size = 0; size < kClientBegin.size(); ++size) {
    EXPECT_EQ(reader.Read(kClientBegin.substr(0, size), gate).ready, 0u) << size;
    EXPECT_FALSE(reader.started());
  }
  EXPECT_EQ(reader.Read(kClientBegin, gate).ready, kClientBegin.size());
  EXPECT_TRUE(reader.started());
}

struct Case {
  const char* name;
  std::string text;
  FrameFault fault;
};

TEST(FrameReader, RefusesWhatNoClientSends) {
  std::string pieces = HeadersFrame(1, "", 0);
  for (int i = 0; i < 20; ++i) pieces += Http2Frame(kContinuation, 0, 1, "");
  std::string block = HeadersFrame(1, std::string(16384, 'h'), 0);
  for (int i = 0; i < 3; ++i) block += Http2Frame(kContinuation, 0, 1, std::string(16384, 'c'));
  const std::vector<Case> cases = {
      {"HTTP/1", "GET / HTTP/1.1\r\n", FrameFault::kPreface},
      {"TLS in clear", "\x16\x03\x01", FrameFault::kPreface},
      {"no settings", kPreface + Http2Frame(kPing, 0, 0, "12345678"), FrameFault::kPreface},
      {"an answer to settings first", kPreface + Http2Frame(kSettings, 1, 0, ""), FrameFault::kPreface},
      {"a block of many pieces", kClientBegin + pieces, FrameFault::kHeaderBlock},
      {"a block of many bytes", kClientBegin + block, FrameFault::kHeaderBlock},
      {"one large HEADERS", kClientBegin + HeadersFrame(1, std::string(33 << 10, 'h'), kEndHeaders),
       FrameFault::kHeaderBlock},
      {"CONTINUATION of nothing", kClientBegin + Http2Frame(kContinuation, 0, 1, ""), FrameFault::kFrame},
      {"CONTINUATION of another stream",
       kClientBegin + HeadersFrame(1, "", 0) + Http2Frame(kContinuation, 0, 3, ""), FrameFault::kFrame},
      {"DATA within a block", kClientBegin + HeadersFrame(1, "", 0) + Http2Frame(kData, 0, 1, "d"),
       FrameFault::kFrame},
      {"a long ping", kClientBegin + Http2Frame(kPing, 0, 0, "123456789"), FrameFault::kFrame},
      {"a short reset", kClientBegin + Http2Frame(kRstStream, 0, 1, "123"), FrameFault::kFrame},
      {"settings without end", kClientBegin + Http2Frame(kSettings, 0, 0, std::string(6 * 65, 's')),
       FrameFault::kFrame},
      {"a large unknown frame", kClientBegin + Http2Frame(200, 0, 0, std::string(16385, 'u')),
       FrameFault::kFrame},
  };
  for (const Case& c : cases) {
    for (const size_t step : {size_t{1}, size_t{0}, c.text.size()}) {
      FrameReader reader(32 << 10);
      Open gate;
      const Outcome outcome = Feed(reader, gate, c.text, step);
      ASSERT_TRUE(outcome.fault.has_value()) << c.name;
      EXPECT_EQ(*outcome.fault, c.fault) << c.name;
    }
  }
}

// A gate that lets `left` frames pass.
class Few final : public FrameGate {
 public:
  bool Admit(const Frame&) override { return left-- > 0; }
  int left = 0;
};

TEST(FrameReader, WaitsBeforeAFrameAndGoesOnWithIt) {
  const std::string text = kClientBegin + ACall(1) + ACall(3);
  Few gate;
  gate.left = 4;  // settings, a call
  FrameReader reader(32 << 10);
  const FrameReader::Result first = reader.Read(text, gate);
  EXPECT_TRUE(first.waits);
  EXPECT_EQ(first.ready, (kClientBegin + ACall(1)).size());
  const std::string rest = text.substr(first.ready);
  EXPECT_EQ(reader.Read(rest, gate).ready, 0u);
  gate.left = 100;
  const FrameReader::Result last = reader.Read(rest, gate);
  EXPECT_FALSE(last.waits);
  EXPECT_EQ(last.ready, rest.size());
}

TEST(FrameReader, CountsStreamsThatAreLeftUnfinished) {
  FrameReader reader(32 << 10);
  Open gate;
  std::string text = kClientBegin;
  for (uint32_t stream = 1; stream < 21; stream += 2) text += HeadersFrame(stream, "h", kEndHeaders);
  text += Http2Frame(kRstStream, 0, 1, "1234") + Http2Frame(kData, kEndStream, 3, "") +
          HeadersFrame(5, "trailers", kEndHeaders | kEndStream);
  EXPECT_EQ(Feed(reader, gate, text, 0).passed, text);
  EXPECT_EQ(reader.unfinished_streams(), 7u);
  EXPECT_EQ(gate.frames.back().kind, FrameKind::kOther) << "trailers open no stream";
  reader.StopCounting();
  EXPECT_EQ(reader.unfinished_streams(), 0u);
}

// Bytes of any kind never pass what the checks would have held back.
TEST(FrameReader, SurvivesNoise) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::string text = kClientBegin;
    for (int i = 0; i < 20; ++i) {
      std::string frame = Http2Frame(static_cast<uint8_t>(random() % 12), static_cast<uint8_t>(random()),
                                     random() % 4, std::string(random() % 64, 'x'));
      if (random() % 8 == 0) frame[random() % frame.size()] = static_cast<char>(random());
      text += frame;
    }
    FrameReader reader(1 << 10);
    Open gate;
    const Outcome outcome = Feed(reader, gate, text, 0);
    EXPECT_EQ(outcome.passed, text.substr(0, outcome.passed.size()));
  }
}

}  // namespace
}  // namespace foredraft
