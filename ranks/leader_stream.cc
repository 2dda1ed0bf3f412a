#include "ranks/leader_stream.h"

#include <string>
#include <utility>

namespace foredraft {

LeaderStream::LeaderStream(Leader& leader, grpc::CallbackServerContext& context, const Opening& opening)
    : leader_(leader), context_(context) {
  worker::v1::LeaderMessage message;
  worker::v1::WorkerChallenge& challenge = *message.mutable_challenge();
  if (!opening.secret.empty()) {
    const std::string nonce = MakeNonce();
    challenge.set_nonce(nonce);
    challenge.set_proof(ProofOf(GroupEnd::kLeader, opening.secret, opening.worker_nonce, nonce));
    expected_proof_ = ProofOf(GroupEnd::kWorker, opening.secret, opening.worker_nonce, nonce);
  }
  leader_.StreamOpened(this);
  Send(std::move(message));
  StartRead(&incoming_);
}

void LeaderStream::End(const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!end_known_) {
      end_status_ = grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
    }
    end_known_ = true;
  }
  Start(outbox_.End());
}

void LeaderStream::Cut() {
  outbox_.Break();
  context_.TryCancel();
  End(absl::CancelledError("the leader cut the stream"));
}

void LeaderStream::OnReadDone(bool ok) {
  if (!ok) {
    leader_.StreamBroke(this);
    End(absl::OkStatus());
    return;
  }
  if (joined_) {
    leader_.Receive(this, incoming_);
  } else {
    if (const absl::Status status = leader_.Join(this, context_.peer(), incoming_); !status.ok())
      return End(status);
    joined_ = true;
  }
  incoming_.Clear();
  StartRead(&incoming_);
}

void LeaderStream::OnWriteDone(bool ok) { Start(outbox_.Written(ok)); }

void LeaderStream::OnCancel() {
  leader_.StreamBroke(this);
  outbox_.Break();
  End(absl::CancelledError("the stream was cancelled"));
}

void LeaderStream::OnDone() {
  leader_.StreamBroke(this);
  Leader& leader = leader_;
  delete this;
  leader.StreamGone();
}

void LeaderStream::Start(Outbox<worker::v1::LeaderMessage>::Next next) {
  switch (next) {
    case Outbox<worker::v1::LeaderMessage>::Next::kWrite:
      StartWrite(&outbox_.current());
      break;
    case Outbox<worker::v1::LeaderMessage>::Next::kEnd: {
      grpc::Status status;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        status = end_status_;
      }
      Finish(status);
      break;
    }
    case Outbox<worker::v1::LeaderMessage>::Next::kNothing:
      break;
  }
}

}  // namespace foredraft
