#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/grouped_digits.h"
#include "base/status_macros.h"
#include "server/cli/byte_progress.h"
#include "server/cli/commands.h"
#include "tools/quantize/quantize_checkpoint.h"

namespace foredraft {
namespace {

absl::Status Quantize(const QuantizeOptions& options) {
  ByteProgress progress("quantizing");
  const auto show = [&](int64_t done_bytes, int64_t total_bytes) { progress.Show(done_bytes, total_bytes); };
  ASSIGN_OR_RETURN(const QuantizeReport report, QuantizeCheckpoint(options, show));
  QuantizationError sum;
  const QuantizedTensor* worst = nullptr;
  for (const QuantizedTensor& tensor : report.tensors) {
    sum += tensor.error;
    if (worst == nullptr || tensor.error.relative() > worst->error.relative()) worst = &tensor;
  }
  printf("%s: %s tensors, %s bytes (from %s), of which %s with %s elements are quantised\n",
         options.out_dir.c_str(), Grouped(report.written.tensor_count).c_str(),
         Grouped(report.written.bytes).c_str(), Grouped(report.bytes_read).c_str(),
         Grouped(static_cast<int64_t>(report.tensors.size())).c_str(), Grouped(sum.count).c_str());
  if (!report.left_out.empty()) printf("left out: the checkpoint's drafter, %s\n", report.left_out.c_str());
  if (worst == nullptr) return absl::OkStatus();
  printf("error over root mean square: %.4f; largest %.4f, %s; every tensor in %s/%s\n", sum.relative(),
         worst->error.relative(), worst->name.c_str(), options.out_dir.c_str(), kQuantizationReportFile);
  return absl::OkStatus();
}

}  // namespace

void AddQuantize(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("quantize",
                                         "Write a BF16 checkpoint again with its projections in 4 or 8 bits; "
                                         "int4 and fp8 include MTP modules, and nvfp4 has no scales of "
                                         "inputs, which need a calibration");
  auto options = std::make_shared<QuantizeOptions>();
  options->threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  command->add_option("in", options->in_dir, "Hugging Face checkpoint directory in BF16")
      ->required()
      ->type_name("IN");
  command->add_option("out", options->out_dir, "directory to write; must be new or empty")
      ->required()
      ->type_name("OUT");
  auto dtype = std::make_shared<std::string>();
  std::vector<std::string> names, what;
  for (const NamedFormat& row : kNamedFormats) {
    if (row.written == nullptr) continue;
    names.emplace_back(row.name);
    what.push_back(absl::StrCat(row.name, ": ", row.written));
  }
  command->add_option("--dtype", *dtype, absl::StrJoin(what, "; "))->required()->check(CLI::IsMember(names));
  auto group = std::make_shared<int>(kInt4Format.columns);
  command->add_option("--group", *group, "inputs that share a scale, of int4")
      ->check(CLI::IsMember(std::vector<int>(std::begin(kInt4Groups), std::end(kInt4Groups))))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "threads that round weights")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([options, dtype, group, exit_code] {
    options->format = FindFormat(*dtype)->format;
    if (options->format.code == DType::kInt4) options->format.columns = *group;
    const absl::Status status = Quantize(*options);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
