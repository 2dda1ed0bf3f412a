#include "server/output/stderr_sink.h"

#include <fcntl.h>
#include <spdlog/logger.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

// A pipe, a logger that writes to it, and its reader.
class LogPipe {
 public:
  LogPipe() {
    EXPECT_EQ(pipe(fds_), 0);
    sink_ = std::make_shared<StderrSink>(fds_[1]);
    logger_ = std::make_unique<spdlog::logger>("test", sink_);
    logger_->set_pattern("%v");
  }
  ~LogPipe() {
    close(fds_[0]);
    close(fds_[1]);
  }

  void Log(const std::string& line) { logger_->info(line); }
  StderrSink& sink() { return *sink_; }
  uint64_t dropped() const { return sink_->dropped_lines(); }

  std::string ReadAll() {
    fcntl(fds_[0], F_SETFL, O_NONBLOCK);
    std::string text;
    char buffer[4096];
    for (ssize_t count = 0; (count = read(fds_[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, count);
    return text;
  }

 private:
  int fds_[2];
  std::shared_ptr<StderrSink> sink_;
  std::unique_ptr<spdlog::logger> logger_;
};

TEST(StderrSink, WritesLines) {
  LogPipe pipe;
  pipe.Log("one");
  pipe.Log("two");
  EXPECT_EQ(pipe.ReadAll(), "one\ntwo\n");
  EXPECT_EQ(pipe.dropped(), 0u);
}

// As a terminal shows it: a carriage return, ESC [ n A and ESC [ J are all that the sink uses.
std::string Shown(const std::string& text) {
  std::vector<std::string> lines = {""};
  size_t row = 0, column = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') {
      column = 0;
      if (++row == lines.size()) lines.emplace_back();
    } else if (text[i] == '\r') {
      column = 0;
    } else if (text[i] == '\x1b') {
      const size_t end = text.find_first_of("AJ", i);
      if (text[end] == 'A') row -= std::stoul(text.substr(i + 2));
      if (text[end] == 'J') {
        lines.resize(row + 1);
        lines[row].resize(column);
      }
      i = end;
    } else {
      lines[row].resize(std::max(lines[row].size(), column + 1), ' ');
      lines[row][column++] = text[i];
    }
  }
  return absl::StrJoin(lines, "|");
}

TEST(StderrSink, LogLinesComeAboveTheLinesThatStayBelow) {
  LogPipe pipe;
  std::string text;
  const auto shown = [&] { return Shown(text += pipe.ReadAll()); };
  pipe.Log("before");
  pipe.sink().KeepBelow("loading  10 MB\nwaits");
  EXPECT_EQ(shown(), "before|loading  10 MB|waits");
  pipe.Log("a request");
  EXPECT_EQ(shown(), "before|a request|loading  10 MB|waits");
  pipe.sink().KeepBelow("loading  20 MB\nloading  5 MB");
  pipe.sink().WriteLine("model  abacus");
  EXPECT_EQ(shown(), "before|a request|model  abacus|loading  20 MB|loading  5 MB");
  pipe.sink().KeepBelow("done");
  pipe.Log("another");
  EXPECT_EQ(shown(), "before|a request|model  abacus|another|done");
  pipe.sink().KeepBelow("");
  pipe.sink().KeepBelow("");
  pipe.Log("after");
  EXPECT_EQ(shown(), "before|a request|model  abacus|another|done|after|");
}

TEST(StderrSink, DropsWhatNobodyReadsAndSaysSo) {
  LogPipe pipe;
  const std::string line(1000, 'x');
  for (int i = 0; i < 500; ++i) pipe.Log(line);  // seven times what a pipe holds; must not wait
  EXPECT_GT(pipe.dropped(), 400u);
  EXPECT_LT(pipe.dropped(), 500u);
  const std::string before = pipe.ReadAll();
  pipe.Log("after");
  const std::string after = pipe.ReadAll();
  EXPECT_THAT(after, HasSubstr(" log lines were dropped: nobody read this output\n"));
  EXPECT_THAT(after, EndsWith("after\n"));
  // Every line that was not dropped is whole.
  const std::string all = before + after.substr(0, after.find("foredraft: "));
  EXPECT_EQ(all.size() % (line.size() + 1), 0u);
  EXPECT_EQ(all.size() / (line.size() + 1) + pipe.dropped(), 500u);
  pipe.Log("more");
  EXPECT_EQ(pipe.ReadAll(), "more\n");
}

TEST(StderrSink, LeavesTheDescriptionOfOthersBlocking) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const StderrSink sink(fds[1]);
  EXPECT_EQ(fcntl(fds[1], F_GETFL) & O_NONBLOCK, 0);
  close(fds[0]);
  close(fds[1]);
}

// What others write to the same descriptor must not land on the log's lines.
TEST(StderrSink, SharesTheOffsetOfAFile) {
  const std::string path = testing::TempDir() + "/stderr_sink";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  ASSERT_GE(fd, 0);
  spdlog::logger logger("test", std::make_shared<StderrSink>(fd));
  logger.set_pattern("%v");
  logger.info("one");
  EXPECT_EQ(write(fd, "two\n", 4), 4);
  logger.info("three");
  char buffer[64] = {};
  EXPECT_EQ(pread(fd, buffer, sizeof(buffer), 0), 14);
  EXPECT_STREQ(buffer, "one\ntwo\nthree\n");
  close(fd);
}

}  // namespace
}  // namespace foredraft
