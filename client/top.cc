#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/client_options.h"
#include "client/commands.h"
#include "client/connection/http_get.h"
#include "client/live_screen.h"
#include "client/terminal.h"
#include "client/top_frame.h"
#include "foredraft/v1/admin.grpc.pb.h"
#include "foredraft/v1/generation.grpc.pb.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kAnswerTimeout{2};  // of a call: how long a key may wait for its effect
constexpr int kPlainWidth = 100;                   // of a frame that goes to a file

struct TopOptions {
  ServerAddress server;
  std::string metrics_address;  // empty = as the daemon's configuration has it
  double interval_s = 1;
  bool once = false;
};

// HOST:PORT at which this client reaches the page of metrics. A daemon that listens on all addresses is
// reached where its API is.
std::string MetricsAddress(const std::string& configured, const std::string& server) {
  for (const char* any : {"0.0.0.0:", "[::]:"}) {
    if (!absl::StartsWith(configured, any)) continue;
    return absl::StrCat(server.substr(0, server.rfind(':') + 1),
                        configured.substr(configured.rfind(':') + 1));
  }
  return configured;
}

class TopClient {
 public:
  TopClient(const TopOptions& options, const std::shared_ptr<grpc::Channel>& channel, std::string token)
      : options_(options),
        token_(std::move(token)),
        generation_(v1::GenerationService::NewStub(channel)),
        admin_(v1::AdminService::NewStub(channel)) {}

  absl::StatusOr<TopServer> Describe() {
    TopServer server{.address = options_.server.address};
    RETURN_IF_ERROR(WithListener(
        Call([&](grpc::ClientContext* context) { return generation_->GetModel(context, {}, &server.model); }),
        options_.server.address));
    v1::GetConfigResponse config;
    RETURN_IF_ERROR(
        Call([&](grpc::ClientContext* context) { return admin_->GetConfig(context, {}, &config); }));
    try {
      const YAML::Node yaml = YAML::Load(config.yaml());
      server.slots = yaml["max_batch_size"].as<int>(0) * yaml["parallel"]["attention_dp"].as<int>(1);
      server.metrics_address =
          MetricsAddress(yaml["server"]["metrics_address"].as<std::string>(""), options_.server.address);
    } catch (const YAML::Exception& error) {
      return absl::InternalError(
          absl::StrCat(options_.server.address, ": GetConfig gives no YAML: ", error.what()));
    }
    if (!options_.metrics_address.empty()) server.metrics_address = options_.metrics_address;
    return server;
  }

  TopSample Sample(const TopServer& server) {
    TopSample sample;
    const absl::Status status =
        Call([&](grpc::ClientContext* context) { return admin_->GetLoad(context, {}, &sample.load); });
    sample.time = steady_clock::now();
    if (!status.ok()) {
      sample.error = std::string(status.message());
    } else if (server.metrics_address.empty()) {
      sample.metrics_error = "server.metrics_address is empty";
    } else if (absl::StatusOr<std::string> page =
                   HttpGet(server.metrics_address, "/metrics", kAnswerTimeout, token_);
               page.ok()) {
      sample.time = steady_clock::now();
      sample.metrics.emplace(*page);
    } else {
      sample.metrics_error = absl::StrCat(page.status().message(), " (--metrics A gives another address)");
    }
    return sample;
  }

 private:
  template <class Function>
  absl::Status Call(Function&& function) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kAnswerTimeout);
    const grpc::Status status = function(&context);
    return status.ok() ? absl::OkStatus() : CallError(options_.server.address, status);
  }

  const TopOptions& options_;
  const std::string token_;
  std::unique_ptr<v1::GenerationService::Stub> generation_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

std::string FrameText(const TopServer& server, const TopHistory& history, int width, bool colour) {
  std::string text;
  for (const TopLine& line : TopFrame(server, history, width)) text += TopText(line, width, colour) + "\n";
  return text;
}

steady_clock::duration Interval(const TopOptions& options) {
  return std::chrono::duration_cast<steady_clock::duration>(
      std::chrono::duration<double>(options.interval_s));
}

// One frame; its rates need two samples.
absl::Status PrintOnce(const TopOptions& options, TopClient& client) {
  ASSIGN_OR_RETURN(const TopServer server, client.Describe());
  TopHistory history;
  history.Add(client.Sample(server));
  std::this_thread::sleep_for(Interval(options));
  history.Add(client.Sample(server));
  if (!history.newest().error.empty()) return absl::UnavailableError(history.newest().error);
  fputs(FrameText(server, history, kPlainWidth, HasColour(STDOUT_FILENO)).c_str(), stdout);
  return absl::OkStatus();
}

absl::Status ShowLive(const TopOptions& options, TopClient& client) {
  ASSIGN_OR_RETURN(TopServer server, client.Describe());
  ASSIGN_OR_RETURN(LiveScreen screen, LiveScreen::Open());
  TopHistory history;
  const bool colour = HasColour(STDOUT_FILENO);
  bool answered = true;
  for (;;) {
    const steady_clock::time_point next = steady_clock::now() + Interval(options);
    TopSample sample = client.Sample(server);
    // A daemon that comes back may be another one.
    if (sample.error.empty() && !answered) {
      if (absl::StatusOr<TopServer> again = client.Describe(); again.ok()) server = *std::move(again);
    }
    answered = sample.error.empty();
    history.Add(std::move(sample));
    LiveScreen::Event event;
    do {
      screen.Draw(FrameText(server, history, screen.width(), colour));
      event = screen.Wait(next);
      if (event == LiveScreen::Event::kQuit) return absl::OkStatus();
    } while (event == LiveScreen::Event::kResized);
  }
}

absl::Status Top(const TopOptions& options) {
  if (!(options.interval_s >= 0.1 && options.interval_s <= 60)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--interval: ", options.interval_s, ", allowed 0.1..60 seconds"));
  }
  if (!options.once) LiveScreen::BlockSignals();  // before credentials, which start gRPC's threads
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);  // a daemon that comes back is seen soon
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, OpenChannel(options.server, arguments));
  ASSIGN_OR_RETURN(std::string token, ReadToken(options.server));
  TopClient client(options, channel, std::move(token));
  return options.once ? PrintOnce(options, client) : ShowLive(options, client);
}

}  // namespace

void AddTop(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "top", "Watch a daemon: tokens per second, drafts, slots, queue, KV cache; q or Ctrl-C ends it");
  auto options = std::make_shared<TopOptions>();
  AddServerOptions(*command, options->server);
  command
      ->add_option("--metrics", options->metrics_address,
                   "HOST:PORT of the daemon's metrics [server.metrics_address of its configuration]")
      ->type_name("A");
  command->add_option("--interval", options->interval_s, "seconds between two looks, 0.1..60")
      ->capture_default_str()
      ->type_name("S");
  command->add_flag("--once", options->once, "print one frame, after one interval, and end");
  command->callback([options, exit_code] {
    const absl::Status status = Top(*options);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
