#include "tests/bench/stream_clients.h"

#include <grpcpp/create_channel.h>

#include "base/check.h"

namespace foredraft {

// One call; deletes itself in OnDone.
class StreamClients::Stream : public grpc::ClientReadReactor<v1::GenerateChunk> {
 public:
  Stream(StreamClients& clients, int channel) : clients_(clients), channel_(channel) {}

  void Start(v1::GenerationService::Stub& stub) {
    stub.async()->GenerateStream(&context_, &clients_.options_.request, this);
    StartRead(&chunk_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }
  int channel() const { return channel_; }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    clients_.tokens_.fetch_add(chunk_.token_ids_size(), std::memory_order_relaxed);
    clients_.chunks_.fetch_add(1, std::memory_order_relaxed);
    StartRead(&chunk_);
  }
  void OnDone(const grpc::Status& status) override {
    clients_.Ended(this, status);
    delete this;
  }

 private:
  StreamClients& clients_;
  const int channel_;
  grpc::ClientContext context_;
  v1::GenerateChunk chunk_;
};

StreamClients::StreamClients(const StreamClientsOptions& options) : options_(options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection each
  for (int i = 0; i < options.channels; ++i) {
    stubs_.push_back(v1::GenerationService::NewStub(
        grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments)));
  }
  for (int i = 0; i < options.streams; ++i) StartNext(i % options.channels);
}

StreamClients::~StreamClients() {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  for (Stream* stream : streams_) stream->Cancel();
  changed_.wait(lock, [this] { return streams_.empty(); });
}

void StreamClients::StartNext(int channel) {
  auto* stream = new Stream(*this, channel);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    streams_.insert(stream);
    if (stopping_) stream->Cancel();
  }
  stream->Start(*stubs_[channel]);
}

void StreamClients::Ended(Stream* stream, const grpc::Status& status) {
  bool stopping;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping = stopping_;
  }
  if (!stopping) {
    CHECK(status.ok()) << "a stream ended with " << status.error_code() << ": " << status.error_message();
    requests_.fetch_add(1, std::memory_order_relaxed);
    StartNext(stream->channel());
  }
  std::lock_guard<std::mutex> lock(mutex_);
  streams_.erase(stream);
  changed_.notify_all();
}

}  // namespace foredraft
