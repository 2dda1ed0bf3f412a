#include "server/api/health_service.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/out_of_memory.h"

namespace foredraft {
namespace {

using grpc::internal::RpcMethod;
using grpc::internal::RpcServiceMethod;

constexpr int kCheck = 0;  // index of the method, in the order of AddMethod
constexpr int kWatch = 1;

// HealthCheckResponse.ServingStatus.
constexpr int kServing = 1;
constexpr int kNotServing = 2;
constexpr int kServiceUnknown = 3;

// Each of the service's messages has one field, a service's name or a status, with the number and type of one
// of google.protobuf's wrappers.
using NameMessage = google::protobuf::StringValue;
using StatusMessage = google::protobuf::Int32Value;

// Names that a request may ask for; the empty one is the server as a whole.
constexpr std::array<std::string_view, 4> kNames = {
    "", "foredraft.v1.GenerationService", "foredraft.v1.AdminService", "vllm.grpc.engine.VllmEngine"};
constexpr size_t kLongestRequest = 256;  // bytes; longer than any name, short enough to be read at once

// The name in a request; nullopt if `bytes` are no request. Looks at no more than kLongestRequest bytes.
std::optional<std::string> NameIn(grpc::ByteBuffer& bytes) {
  if (bytes.Length() > kLongestRequest) return std::nullopt;
  std::vector<grpc::Slice> slices;
  if (!bytes.Dump(&slices).ok()) return std::nullopt;
  std::string text;
  for (const grpc::Slice& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  NameMessage request;
  if (!request.ParseFromString(text)) return std::nullopt;
  return request.value();
}

grpc::Status NoRequest() {
  return {grpc::StatusCode::INVALID_ARGUMENT,
          absl::StrCat("allowed a HealthCheckRequest of at most ", kLongestRequest, " bytes")};
}

bool IsKnown(const std::string& name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

grpc::ByteBuffer Encode(int status) {
  StatusMessage response;
  response.set_value(status);
  const grpc::Slice slice(response.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

// What the completion queue returns: an Event's address is the tag of one operation of a call.
struct HealthService::Event {
  std::function<void(bool ok)> run;
};

// Deletes itself with its last event. Thread: the service's.
class HealthService::CheckCall {
 public:
  explicit CheckCall(HealthService& service) : service_(service) {
    service_.RequestAsyncUnary(kCheck, &context_, &request_, &responder_, service_.queue_.get(),
                               service_.queue_.get(), &received_);
  }

 private:
  void Received(bool ok) {
    if (!ok) {  // the server has shut down
      delete this;
      return;
    }
    service_.AcceptCheck();
    const std::optional<std::string> name = NameIn(request_);
    if (!name.has_value()) {
      responder_.FinishWithError(NoRequest(), &finished_);
    } else if (!IsKnown(*name)) {
      responder_.FinishWithError({grpc::StatusCode::NOT_FOUND, "no such service"}, &finished_);
    } else {
      std::unique_lock<std::mutex> lock(service_.mutex_);
      const int status = service_.serving_ ? kServing : kNotServing;
      lock.unlock();
      responder_.Finish(Encode(status), grpc::Status::OK, &finished_);
    }
  }

  HealthService& service_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> responder_{&context_};
  Event received_{[this](bool ok) {
    HealthService& service = service_;
    Received(ok);  // may delete the call, and with it what this function has captured
    service.Accepted();
  }};
  Event finished_{[this](bool) { delete this; }};
};

// Sends the status, and each change of it, until its client leaves or the server shuts down; then deletes
// itself. Its events run on the service's thread; any thread may call Send.
class HealthService::WatchCall {
 public:
  explicit WatchCall(HealthService& service) : service_(service) {
    context_.AsyncNotifyWhenDone(&gone_event_);
    service_.RequestAsyncServerStreaming(kWatch, &context_, &request_, &writer_, service_.queue_.get(),
                                         service_.queue_.get(), &received_);
  }

  // The caller holds the service's mutex_. A change during a write is sent after the write.
  void Send() {
    if (service_.stopped_ || writing_ || gone_ || finishing_) return;
    const int status = !known_ ? kServiceUnknown : service_.serving_ ? kServing : kNotServing;
    if (status == sent_) return;
    sent_ = status;
    writing_ = true;
    writer_.Write(Encode(status), &written_);
  }

 private:
  void Received(bool ok) {
    if (!ok) {  // the server has shut down; then gone_event_ does not come
      delete this;
      return;
    }
    service_.AcceptWatch();
    const std::optional<std::string> name = NameIn(request_);
    std::lock_guard<std::mutex> lock(service_.mutex_);
    if (!name.has_value()) {
      finishing_ = writing_ = true;
      writer_.Finish(NoRequest(), &written_);
      return;
    }
    known_ = IsKnown(*name);
    service_.watchers_.insert(this);
    Send();
  }
  void Written() {
    std::unique_lock<std::mutex> lock(service_.mutex_);
    writing_ = false;
    Send();
    DeleteIfOver(lock);
  }
  void Gone() {
    std::unique_lock<std::mutex> lock(service_.mutex_);
    gone_ = true;
    service_.watchers_.erase(this);
    DeleteIfOver(lock);
  }
  void DeleteIfOver(std::unique_lock<std::mutex>& lock) {
    const bool over = gone_ && !writing_;
    lock.unlock();
    if (over) delete this;
  }

  HealthService& service_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncWriter<grpc::ByteBuffer> writer_{&context_};
  // Guarded by the service's mutex_.
  bool known_ = false;
  bool writing_ = false;  // an operation is outstanding
  bool finishing_ = false;
  bool gone_ = false;
  int sent_ = 0;  // none yet
  Event received_{[this](bool ok) {
    HealthService& service = service_;
    Received(ok);  // may delete the call, and with it what this function has captured
    service.Accepted();
  }};
  Event written_{[this](bool) { Written(); }};
  Event gone_event_{[this](bool) { Gone(); }};
};

HealthService::HealthService() {
  AddMethod(new RpcServiceMethod("/grpc.health.v1.Health/Check", RpcMethod::NORMAL_RPC, nullptr));
  AddMethod(new RpcServiceMethod("/grpc.health.v1.Health/Watch", RpcMethod::SERVER_STREAMING, nullptr));
  MarkMethodAsync(kCheck);
  MarkMethodAsync(kWatch);
}

HealthService::~HealthService() { Stop(); }

void HealthService::Register(grpc::ServerBuilder& builder) {
  queue_ = builder.AddCompletionQueue();
  builder.RegisterService(this);
}

void HealthService::Start() {
  AcceptCheck();
  AcceptWatch();
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "health");
}

void HealthService::Stop() {
  if (!thread_.joinable()) return;
  // The server has shut down, so every call that is accepted from now on fails at once.
  Event stop{[this](bool) {
    stopping_ = true;
    ++accepting_;  // this event
    Accepted();
  }};
  stop_.Set(queue_.get(), std::chrono::system_clock::now(), &stop);
  thread_.join();
}

// Calls that arrived at the server's shutdown may reach the queue after the event of Stop. When they are
// taken out, both gRPC and this service begin operations, which a queue that is shut down does not survive.
// So the queue is shut down only after the last call that was asked for.
void HealthService::Accepted() {
  if (--accepting_ > 0 || !stopping_) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;  // no write follows one that ends from now on
  }
  queue_->Shutdown();
}

void HealthService::Run() {
  const MustHaveMemory scope;
  void* event = nullptr;
  bool ok = false;
  while (queue_->Next(&event, &ok)) static_cast<Event*>(event)->run(ok);
}

// Each call deletes itself.
void HealthService::AcceptCheck() {
  if (stopping_) return;
  ++accepting_;
  new CheckCall(*this);
}
void HealthService::AcceptWatch() {
  if (stopping_) return;
  ++accepting_;
  new WatchCall(*this);
}

void HealthService::SetServing(bool serving) {
  std::lock_guard<std::mutex> lock(mutex_);
  serving_ = serving;
  for (WatchCall* call : watchers_) call->Send();
}

}  // namespace foredraft
