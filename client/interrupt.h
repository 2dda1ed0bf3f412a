#pragma once

// Ctrl-C and SIGTERM for commands that wait for a daemon: cancels the running call or, if there is none,
// calls `idle`.

#include <grpcpp/client_context.h>
#include <signal.h>

#include <functional>
#include <memory>

namespace foredraft {

class Interrupt {
 public:
  // Blocks the signals in this thread, and so in the threads that it starts later: construct before gRPC
  // starts any. `idle` is called on a thread of its own.
  explicit Interrupt(std::function<void()> idle = [] {});

  // The call that a signal cancels from now on; null: none.
  void Watch(std::shared_ptr<grpc::ClientContext> call);

 private:
  struct State;
  // Shared with the thread, which waits for signals until the process ends.
  const std::shared_ptr<State> state_;
};

}  // namespace foredraft
