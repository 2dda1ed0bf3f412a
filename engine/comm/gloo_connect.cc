#include "engine/comm/gloo_connect.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace foredraft {
namespace {

using Clock = std::chrono::steady_clock;

// Gloo's view of the store. Its own wait ignores its timeout in the base class: here everything ends by one
// deadline. Errors leave as exceptions, which ConnectGloo catches.
class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(RendezvousStore& store, Clock::time_point deadline) : store_(store), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    Check(store_.Set(Key(key), std::string(data.begin(), data.end())));
  }

  std::vector<char> get(const std::string& key) override {
    const absl::StatusOr<std::string> value = store_.Get(Key(key), deadline_);
    Check(value.status());
    return {value->begin(), value->end()};
  }

  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  static std::string Key(const std::string& key) { return "gloo/" + key; }
  static void Check(const absl::Status& status) {
    if (!status.ok()) throw gloo::IoException(std::string(status.message()));
  }

  RendezvousStore& store_;
  const Clock::time_point deadline_;
};

// Without the file and line Gloo puts in front.
std::string ReasonOf(const std::exception& error) {
  const std::string text = error.what();
  const size_t reason = text.find("] ");
  return reason == std::string::npos ? text : text.substr(reason + 2);
}

}  // namespace

absl::StatusOr<std::shared_ptr<gloo::Context>> ConnectGloo(const CommunicatorOptions& options,
                                                           RendezvousStore& store) {
  std::shared_ptr<gloo::transport::Device> device;
  try {
    gloo::transport::tcp::attr attributes;
    attributes.iface = options.interface;
    device = gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception&) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parallel.interface: \"%s\", this host has no such interface with an address", options.interface));
  }
  try {
    auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
    // Gloo waits five times this for a connection to come up.
    context->setTimeout(std::chrono::milliseconds(options.connect_timeout) / 5);
    GlooStore gloo_store(store, Clock::now() + options.connect_timeout);
    context->connectFullMesh(gloo_store, device);
    context->setTimeout(options.step_timeout);
    return std::shared_ptr<gloo::Context>(std::move(context));
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrFormat("rank %d: the %d ranks did not come together within %d s: %s", options.rank,
                        options.size, options.connect_timeout.count(), ReasonOf(error)));
  }
}

}  // namespace foredraft
