#include "client/interrupt.h"

#include <pthread.h>

#include <mutex>
#include <thread>
#include <utility>

namespace foredraft {

struct Interrupt::State {
  std::function<void()> idle;
  std::mutex mutex;
  std::shared_ptr<grpc::ClientContext> call;  // guarded by mutex
};

Interrupt::Interrupt(std::function<void()> idle) : state_(std::make_shared<State>()) {
  state_->idle = std::move(idle);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, state = state_] {
    for (;;) {
      int signal = 0;
      sigwait(&signals, &signal);
      std::shared_ptr<grpc::ClientContext> call;
      {
        std::lock_guard<std::mutex> lock(state->mutex);
        call = state->call;
      }
      if (call != nullptr) {
        call->TryCancel();
      } else {
        state->idle();
      }
    }
  }).detach();
}

void Interrupt::Watch(std::shared_ptr<grpc::ClientContext> call) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->call = std::move(call);
}

}  // namespace foredraft
