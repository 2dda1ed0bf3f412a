#pragma once

// Sees when a connection has sent nothing for a while. On the connection's strand alone.

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <memory>

namespace foredraft {

class SilenceWatch {
 public:
  explicit SilenceWatch(boost::asio::any_io_executor executor);
  ~SilenceWatch();

  // Calls `passed` whenever Sent was not called for `interval`, until End.
  void Begin(std::chrono::milliseconds interval, std::function<void()> passed);
  void Sent();
  void End();

 private:
  struct Watched;
  static void Await(const std::shared_ptr<Watched>& watched, std::chrono::steady_clock::duration left);

  const boost::asio::any_io_executor executor_;
  std::shared_ptr<Watched> watched_;  // null: nothing is watched
};

}  // namespace foredraft
