#include "server/http/silence_watch.h"

#include <boost/asio/steady_timer.hpp>
#include <utility>

namespace foredraft {

using std::chrono::steady_clock;

struct SilenceWatch::Watched {
  boost::asio::steady_timer timer;
  std::chrono::milliseconds interval;
  std::function<void()> passed;  // empty after End
  steady_clock::time_point last_sent = steady_clock::now();
};

SilenceWatch::SilenceWatch(boost::asio::any_io_executor executor) : executor_(std::move(executor)) {}

SilenceWatch::~SilenceWatch() { End(); }

void SilenceWatch::Begin(std::chrono::milliseconds interval, std::function<void()> passed) {
  End();
  watched_ = std::make_shared<Watched>(Watched{
      .timer = boost::asio::steady_timer(executor_), .interval = interval, .passed = std::move(passed)});
  Await(watched_, interval);
}

// The timer is not set again for every write: a stream has thousands, and each would cancel a wait.
void SilenceWatch::Sent() {
  if (watched_ != nullptr) watched_->last_sent = steady_clock::now();
}

void SilenceWatch::End() {
  if (watched_ == nullptr) return;
  watched_->passed = nullptr;
  watched_->timer.cancel();
  watched_ = nullptr;
}

void SilenceWatch::Await(const std::shared_ptr<Watched>& watched, steady_clock::duration left) {
  watched->timer.expires_after(left);
  watched->timer.async_wait([watched](const boost::system::error_code& error) {
    if (error || !watched->passed) return;
    const steady_clock::time_point now = steady_clock::now();
    const steady_clock::time_point due = watched->last_sent + watched->interval;
    if (now < due) return Await(watched, due - now);
    const std::function<void()> passed = watched->passed;
    passed();
    Await(watched, watched->interval);
  });
}

}  // namespace foredraft
