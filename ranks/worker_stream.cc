#include "ranks/worker_stream.h"

namespace foredraft {

WorkerStream::WorkerStream(v1::WorkerService::Stub& stub, const std::string& secret, v1::WorkerMessage join,
                           WorkerStreamCallbacks callbacks)
    : callbacks_(std::move(callbacks)) {
  if (!secret.empty()) context_.AddMetadata("authorization", "Bearer " + secret);
  stub.async()->Work(&context_, this);
  AddHold();  // other threads start writes; Start removes it at kEnd
  StartRead(&incoming_);
  StartCall();
  Send(std::move(join));
}

void WorkerStream::Cut() {
  outbox_.Break();
  context_.TryCancel();
  Start(outbox_.End());
}

void WorkerStream::OnReadDone(bool ok) {
  if (!ok) return Start(outbox_.End());
  callbacks_.received(std::move(incoming_));
  incoming_.Clear();
  StartRead(&incoming_);
}

void WorkerStream::OnDone(const grpc::Status& status) {
  const auto gone = callbacks_.gone;  // a copy: the owner may destroy this object during the call
  gone(status);
}

void WorkerStream::Start(Outbox<v1::WorkerMessage>::Next next) {
  switch (next) {
    case Outbox<v1::WorkerMessage>::Next::kWrite:
      StartWrite(&outbox_.current());
      break;
    case Outbox<v1::WorkerMessage>::Next::kEnd:
      StartWritesDone();
      RemoveHold();
      break;
    case Outbox<v1::WorkerMessage>::Next::kNothing:
      break;
  }
}

}  // namespace foredraft
