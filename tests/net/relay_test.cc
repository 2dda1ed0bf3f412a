// A relay between two sockets of the test.

#include "net/guard/relay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>

#include "tests/net/http2_frames.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::array<int, 2> Pair() {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  return ends;
}

class RelayTest : public testing::Test {
 protected:
  RelayTest() : client_(Pair()), server_(Pair()) {
    relay_ = std::make_unique<Relay>(Relay::Options{.fd = client_[0],
                                                    .handshake_timeout = seconds(20),
                                                    .open_server =
                                                        [this] {
                                                          was_opened_ = true;
                                                          return server_[0];
                                                        }},
                                     address_, now_);
  }
  ~RelayTest() override {
    if (!was_opened_) close(server_[0]);
    relay_.reset();
    close(client_[1]);
    close(server_[1]);
  }

  void Send(const std::string& text) {
    EXPECT_EQ(send(client_[1], text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    Advance();
  }
  void Advance() { relay_->Advance(now_, area_, {}); }
  static std::string Received(int fd) {
    std::string text(1 << 20, ' ');
    const ssize_t size = recv(fd, text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
    return text;
  }

  GuardTime now_{seconds(1000)};
  StreamBudget address_{kAddressRates, now_};
  std::array<int, 2> client_, server_;  // the first of each is the relay's
  std::array<char, 65536> area_;
  bool was_opened_ = false;
  std::unique_ptr<Relay> relay_;
};

TEST_F(RelayTest, PassesBothWaysAndTheServerSeesNothingBeforeThePreface) {
  Send(kClientBegin.substr(0, 30));
  EXPECT_TRUE(relay_->is_opening());
  Send(kClientBegin.substr(30) + "");
  EXPECT_FALSE(relay_->is_opening());
  EXPECT_EQ(Received(server_[1]), kClientBegin);
  send(server_[1], "answer", 6, 0);
  Advance();
  EXPECT_EQ(Received(client_[1]), "answer");
  close(client_[1]);
  client_[1] = -1;
  Advance();
  EXPECT_TRUE(relay_->is_over());
}

TEST_F(RelayTest, WhatTheServerSentBeforeItClosedIsPassedOn) {
  Send(kClientBegin);
  send(server_[1], "goodbye", 7, 0);
  close(server_[1]);
  server_[1] = -1;
  Advance();
  EXPECT_EQ(Received(client_[1]), "goodbye");
  EXPECT_TRUE(relay_->is_over());
}

TEST_F(RelayTest, AServerThatDoesNotReadStopsTheClient) {
  Send(kClientBegin);
  const std::string data = Http2Frame(kData, 0, 1, std::string(16384, 'd'));
  int sent = 0;
  while (send(client_[1], data.data(), data.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(data.size())) {
    Advance();
    ASSERT_LT(++sent, 1000) << "memory without bound";
  }
  EXPECT_EQ(relay_->client_events(), 0u);
  EXPECT_NE(relay_->server_events() & EPOLLOUT, 0u);
}

TEST_F(RelayTest, AClientThatDoesNotReadIsNotReadEither) {
  Send(kClientBegin);
  const std::string answer(65536, 'a');
  while (relay_->client_events() != EPOLLOUT) {
    send(server_[1], answer.data(), answer.size(), 0);
    Advance();
  }
  EXPECT_EQ(relay_->server_events(), 0u);
  const GuardTime given_up = relay_->wake_at();
  EXPECT_GT(given_up, now_ + seconds(10));
  now_ = given_up;
  Advance();
  EXPECT_TRUE(relay_->is_over());
}

TEST_F(RelayTest, TheFirstFramesAndAHeaderBlockHaveADeadline) {
  Send(kClientBegin.substr(0, 5));
  EXPECT_EQ(relay_->wake_at(), now_ + seconds(20));
  now_ += seconds(19);
  Send(kClientBegin.substr(5));
  EXPECT_EQ(relay_->wake_at(), GuardTime::max()) << "an idle connection stays";
  Send(HeadersFrame(1, "half", 0));
  EXPECT_EQ(relay_->wake_at(), now_ + seconds(20));
  now_ += seconds(10);
  Send(Http2Frame(kContinuation, 0, 1, "more"));
  EXPECT_EQ(relay_->wake_at(), now_ + seconds(10)) << "a piece in time does not prolong it";
  now_ += seconds(10);
  Advance();
  EXPECT_TRUE(relay_->is_over());
  EXPECT_EQ(relay_->TakeEvent(), GuardEvent::kHandshake);
}

TEST_F(RelayTest, AStrangerThatOpensTooManyStreamsIsSlowedUntilItIsAClient) {
  Send(kClientBegin);
  std::string text;
  for (uint32_t stream = 1; stream < 4000; stream += 2) {
    text += HeadersFrame(stream, "h", kEndHeaders | kEndStream);
  }
  Send(text);
  EXPECT_EQ(relay_->TakeEvent(), GuardEvent::kSlowedStranger);
  EXPECT_EQ(relay_->client_events(), 0u);
  const size_t passed = Received(server_[1]).size();
  EXPECT_LT(passed, text.size() * 3 / 5);
  EXPECT_GT(relay_->wake_at(), now_);
  EXPECT_LT(relay_->wake_at(), now_ + milliseconds(100));
  relay_->BecomeClient(now_);
  now_ = relay_->wake_at();
  Advance();
  EXPECT_EQ(passed + Received(server_[1]).size(), kClientBegin.size() + text.size());
  EXPECT_NE(relay_->client_events() & EPOLLIN, 0u);
}

TEST_F(RelayTest, AFloodEndsAStranger) {
  Send(kClientBegin);
  std::string text;
  for (int i = 0; i < 200; ++i) text += Http2Frame(kPing, 0, 0, "12345678");
  Send(text);
  EXPECT_EQ(relay_->TakeEvent(), GuardEvent::kPings);
  EXPECT_EQ(Received(server_[1]), kClientBegin) << "nothing of the flood arrives";
  EXPECT_EQ(recv(server_[1], text.data(), 1, 0), 0) << "the server is rid of it at once";
  EXPECT_EQ(relay_->client_events(), 0u) << "its next connection comes a little later";
  EXPECT_EQ(relay_->wake_at(), now_ + seconds(1));
  now_ += seconds(1);
  Advance();
  EXPECT_TRUE(relay_->is_over());
  EXPECT_FALSE(relay_->TakeEvent().has_value());
}

}  // namespace
}  // namespace foredraft
