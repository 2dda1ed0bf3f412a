#pragma once

// grpc.health.v1.Health of one gRPC server, answered on a thread of its own.
//
// gRPC's own health service answers on the threads that also run every other method. They are half as many as
// the cores, at least two, so a few requests that tokenize a long text make each probe wait for them. Here
// only the service's own thread polls the completion queue, and it also reads and writes connections while
// the others are in requests. So no answer waits for a request.
//
// Life: Register before the server is built, Start after it, then the server's Shutdown, then Stop.
// SetServing may be called by any thread from Start to Stop; the rest by the owner's thread.

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/async_unary_call.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace foredraft {

class HealthService final : public grpc::Service {
 public:
  HealthService();
  ~HealthService() override;  // Stop

  void Register(grpc::ServerBuilder& builder);
  void Start();
  // Returns once the last call has ended; the server's Shutdown has cancelled all calls. Safe to call twice.
  void Stop();

  // Sets the status of all services of the server, false at first, and tells clients that watch.
  void SetServing(bool serving);

 private:
  class CheckCall;
  class WatchCall;
  struct Event;

  void Run();  // thread_
  // Each asks for one call, unless the service is stopping. Accepted is called once it has come or cannot
  // come.
  void AcceptCheck();
  void AcceptWatch();
  void Accepted();

  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  grpc::Alarm stop_;
  std::thread thread_;
  int accepting_ = 0;  // calls asked for that have not come; thread_ owns it, and stopping_, once it runs
  bool stopping_ = false;

  std::mutex mutex_;
  bool serving_ = false;           // guarded by mutex_
  bool stopped_ = false;           // guarded by mutex_: no operation may begin
  std::set<WatchCall*> watchers_;  // guarded by mutex_
};

}  // namespace foredraft
