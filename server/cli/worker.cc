#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "config/config_warnings.h"
#include "ranks/worker_rank.h"
#include "ranks/worker_trust.h"
#include "server/cli/commands.h"
#include "server/cli/explain_memory.h"
#include "server/daemon.h"
#include "server/output/request_log.h"

namespace foredraft {
namespace {

struct WorkerCommandOptions {
  ConfigOptions config;
  std::string leader;
  int rank = 0;
  pid_t parent = 0;
  int secret_file = -1;  // -1: none
};

absl::Status CheckRank(int rank, const LoadedConfig& loaded) {
  const ParallelConfig& parallel = loaded.config.parallel;
  const int ranks = parallel.world_size();
  const char* const key = parallel.attention_tp > 1 ? "parallel.attention_tp" : "parallel.attention_dp";
  const std::string where = absl::StrCat(key, " is ", ranks, ", ", OriginOf(loaded, key));
  if (ranks == 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": a daemon with one rank needs no workers; allowed 2, 4, 8"));
  }
  if (rank >= 0 && rank < ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--rank: ", rank, ", allowed 0..", ranks - 1, " (", where, ")"));
}

absl::Status Work(const WorkerCommandOptions& options) {
  RETURN_IF_ERROR(PrepareWorkerProcess(options.rank, options.parent));
  std::string secret;
  if (options.secret_file >= 0) {
    ASSIGN_OR_RETURN(secret, TakeInheritedSecret(options.secret_file));
  }
  ASSIGN_OR_RETURN(LoadedConfig loaded, options.config.Read());
  ASSIGN_OR_RETURN(const ResolvedConfig resolved, ResolveConfig(std::move(loaded)));
  const Config& config = resolved.loaded.config;
  RETURN_IF_ERROR(CheckRank(options.rank, resolved.loaded));
  InstallLog(config.log.level, config.log.format);
  // A worker with a parent is on the daemon's host, whose memory `serve` has looked at for all ranks.
  if (options.parent == 0) RETURN_IF_ERROR(LookAtMemory(config, resolved.model));
  return RunWorkerRank(config, resolved.model, options.leader, options.rank, secret);
}

}  // namespace

void AddWorker(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "worker",
      "Run one rank of a daemon; serve starts the ranks of its own host by itself (parallel.local_workers)");
  auto options = std::make_shared<WorkerCommandOptions>();
  options->config.Add(*command);
  command
      ->add_option("--leader", options->leader,
                   "the daemon's parallel.leader_address, as reachable from this host")
      ->required()
      ->type_name("HOST:PORT");
  command
      ->add_option("--rank", options->rank,
                   "the number of the rank, from 0, below parallel.attention_dp times attention_tp")
      ->required()
      ->type_name("N");
  command->add_option("--parent", options->parent, "the process that started this one: end when it ends")
      ->group("");
  command
      ->add_option("--secret-fd", options->secret_file,
                   "an open file with the secret of the daemon's own workers")
      ->group("");
  command->footer(
      "Exits 0 when the daemon stops it and 1 when the group is lost; its supervisor must then start it "
      "again.\n"
      "SIGTERM, SIGINT: the worker goes on until the daemon has drained; a second one ends it at once.");
  command->callback([options, exit_code] {
    const absl::Status status = Work(*options);
    *exit_code = status.ok() ? 0
                             : Fail(absl::Status(status.code(), absl::StrFormat("rank %d: %s", options->rank,
                                                                                status.message())));
  });
}

}  // namespace foredraft
