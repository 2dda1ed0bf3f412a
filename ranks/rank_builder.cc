#include "ranks/rank_builder.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/status_macros.h"
#include "config/config_defaults.h"
#include "engine/comm/communicator_factory.h"
#include "engine/rank_engine.h"
#include "ranks/engine_setup.h"
#include "ranks/model_files.h"

namespace foredraft {

absl::StatusOr<std::unique_ptr<Device>> CreateRankDevice(const Config& config) {
  if (config.backend == Backend::kCuda) {
    // CUDA reads this at its first call. Loading a kernel at its first launch would wait for the whole
    // device, and the warm-up does not launch the kernels of every number of rows, so a request would wait.
    setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  }
  return CreateDevice(NameOf(config.backend), {.threads = config.cpu.threads,
                                               .pin = config.cpu.pin.value_or(false),
                                               .ranks_here = LocalRankCount(config),
                                               .numa = config.cpu.numa == CpuNuma::kAuto,
                                               .topology = "",
                                               .isa = NameOf(config.cpu.isa),
                                               .int8_inputs = config.cpu.inputs == CpuInputs::kInt8,
                                               .tuning_file = config.cublaslt.tuning_file,
                                               .side_stream = config.cuda.side_stream,
                                               .pdl = config.cuda.pdl});
}

absl::StatusOr<BuiltRank> BuildRank(const Config& config, const ModelConfig& model,
                                    std::unique_ptr<Device> device, const GroupLink& link,
                                    const LoadProgress& progress) {
  const EngineOptions options = EngineOptionsOf(config, model);
  std::unique_ptr<Communicator> communicator;
  if (link.store != nullptr) {
    RETURN_IF_ERROR(link.wait_for_all("joined"));
    ASSIGN_OR_RETURN(communicator, CreateCommunicator({.rank = link.rank,
                                                       .size = options.layout.world_size(),
                                                       .backend = config.backend,
                                                       .interface = config.parallel.interface,
                                                       .step_timeout = options.step_timeout,
                                                       .threads = config.cpu.threads,
                                                       .shared_memory = config.parallel.shared_memory},
                                                      *device, link.store));
  }
  ASSIGN_OR_RETURN(LoadedWeights weights, LoadModel(config, model, *device, progress,
                                                    {.layout = options.layout, .rank = link.rank}));
  // The first exchange has a step's deadline, which is too short where ranks load at different speeds.
  if (link.store != nullptr) RETURN_IF_ERROR(link.wait_for_all("loaded"));
  ASSIGN_OR_RETURN(
      std::unique_ptr<RankEngine> engine,
      RankEngine::Create(options, model, std::move(device), std::move(weights), std::move(communicator)));
  BuiltRank built;
  ASSIGN_OR_RETURN(built.graph_count, engine->WarmUp());
  built.block_count = engine->options().block_count;
  built.communicator = engine->rank().comm.get();
  built.executor = std::make_unique<LocalExecutor>(std::move(engine));
  return built;
}

}  // namespace foredraft
