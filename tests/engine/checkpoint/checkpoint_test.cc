#include "engine/checkpoint/checkpoint.h"

#include <functional>

#include "absl/strings/str_replace.h"
#include "engine/checkpoint/checkpoint_check.h"
#include "engine/model/deepseek_v3/deepseek_v3_kind.h"
#include "engine/model/model_kind.h"
#include "engine/model_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/checkpoint_files.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;

constexpr char kIndex[] = "/model.safetensors.index.json";

// Shards one.safetensors {a} and two.safetensors {b}, and this index.
std::string WriteShards(const std::string& index) {
  const std::string dir = MakeTestDir("shards");
  WriteSafetensors(dir + "/one.safetensors", {{"a", "U8", {1}, "x"}});
  WriteSafetensors(dir + "/two.safetensors", {{"b", "U8", {1}, "y"}});
  WriteFile(dir + kIndex, index);
  return dir;
}

TEST(Checkpoint, FindsTensorsInShards) {
  auto checkpoint = Checkpoint::Open(WriteShards(R"({"metadata": {"total_size": 2},
                      "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->tensors().size(), 2u);
  const TensorLocation b = checkpoint->Find("b");
  ASSERT_NE(b.entry, nullptr);
  char byte = 0;
  ASSERT_TRUE(b.file->Read(*b.entry, 0, 1, &byte).ok());
  EXPECT_EQ(byte, 'y');
  EXPECT_EQ(checkpoint->Find("c").entry, nullptr);
}

TEST(Checkpoint, ASingleFileNeedsNoIndex) {
  const std::string dir = MakeTestDir("single");
  WriteSafetensors(dir + "/model.safetensors", {{"a", "U8", {1}, "x"}});
  auto checkpoint = Checkpoint::Open(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_NE(checkpoint->Find("a").entry, nullptr);
}

TEST(Checkpoint, AnEmptyDirectoryIsNoCheckpoint) {
  const absl::Status status = Checkpoint::Open(MakeTestDir("empty")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no checkpoint"));
}

struct BrokenIndex {
  const char* name;
  const char* index;
  const char* error;
};

class CheckpointRefusesIndex : public ::testing::TestWithParam<BrokenIndex> {};

TEST_P(CheckpointRefusesIndex, NamingTheFile) {
  const absl::Status status = Checkpoint::Open(WriteShards(GetParam().index)).status();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().error));
}

const BrokenIndex kBrokenIndexes[] = {
    {"NotJson", "{", "index.json: not JSON"},
    {"NoMap", R"({"metadata": {}})", "index.json: weight_map: missing"},
    {"MapIsAList", R"({"weight_map": []})", "index.json: weight_map: missing"},
    {"Number", R"({"weight_map": {"a": 1}})", "weight_map.a: 1, allowed names of .safetensors files"},
    {"Empty", R"({"weight_map": {"a": ""}})", R"(weight_map.a: "", allowed names)"},
    {"WayOut", R"({"weight_map": {"a": "../one.safetensors"}})",
     R"(weight_map.a: "../one.safetensors", allowed)"},
    {"Absolute", R"({"weight_map": {"a": "/tmp/one.safetensors"}})",
     "weight_map.a: \"/tmp/one.safetensors\""},
    {"Backslash", R"({"weight_map": {"a": "..\\one.safetensors"}})", "allowed names of .safetensors files"},
    {"Nul", R"({"weight_map": {"a": "one.safetensors\u0000.safetensors"}})", "allowed names of .safetensors"},
    {"OtherKind", R"({"weight_map": {"a": "pytorch_model.bin"}})", "allowed names of .safetensors files"},
    {"TensorTwice", R"({"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}})",
     "key \"a\" given twice"},
    {"ShardMissing", R"({"weight_map": {"a": "one.safetensors", "b": "three.safetensors"}})",
     "/three.safetensors: cannot be opened: No such file"},
    {"WrongShard", R"({"weight_map": {"a": "two.safetensors", "b": "two.safetensors"}})",
     "/two.safetensors: tensor a: missing, but the index puts it here"},
    {"Swapped", R"({"weight_map": {"a": "two.safetensors", "b": "one.safetensors"}})",
     "/one.safetensors: tensor a: model.safetensors.index.json puts it in two.safetensors"},
    {"NotInTheIndex", R"({"weight_map": {"a": "one.safetensors", "c": "two.safetensors"}})",
     "/two.safetensors: tensor b: model.safetensors.index.json puts it in no file"},
};
INSTANTIATE_TEST_SUITE_P(Cases, CheckpointRefusesIndex, ::testing::ValuesIn(kBrokenIndexes),
                         [](const auto& info) { return info.param.name; });

absl::Status Check(const std::vector<RawTensor>& tensors, const ModelConfig& config) {
  const std::string dir = MakeTestDir("model");
  WriteSafetensors(dir + "/model.safetensors", tensors);
  auto checkpoint = Checkpoint::Open(dir);
  if (!checkpoint.ok()) return checkpoint.status();
  return CheckTensors(*checkpoint, DescribeModel(config, config.num_nextn_predict_layers));
}

void Erase(std::vector<RawTensor>& tensors, const std::string& name) {
  tensors.erase(tensors.begin() + (&Named(tensors, name) - tensors.data()));
}

// 8 x 8 zeros in FP8 for `name`, and its scale.
void MakeF8(std::vector<RawTensor>& tensors, const std::string& name) {
  RawTensor& tensor = Named(tensors, name);
  tensor.dtype = "F8_E4M3";
  tensor.bytes.resize(tensor.bytes.size() / 4);
  tensors.push_back({name + "_scale_inv", "F32", {1, 1}, std::string(4, '\0')});
}

TEST(CheckTensors, AcceptsWhatTheConfigDescribes) {
  EXPECT_EQ(Check(TensorsFor(TinyConfig()), TinyConfig()), absl::OkStatus());
}

TEST(CheckTensors, MtpCopiesAndOldFrequenciesAreOptional) {
  std::vector<RawTensor> tensors = TensorsFor(TinyConfig());
  Erase(tensors, "model.layers.2.embed_tokens.weight");
  Erase(tensors, "model.layers.3.shared_head.head.weight");
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}, "1234"});
  EXPECT_EQ(Check(tensors, TinyConfig()), absl::OkStatus());
}

// A checkpoint of a multimodal model: a prefix in front of the text model's names, and a vision part.
std::vector<RawTensor> MultimodalTensors(const ModelConfig& config) {
  std::vector<RawTensor> tensors = TensorsFor(config);
  for (const char* name : {"vision_tower.patch_embed.proj.weight", "mm_projector.proj.0.bias",
                           "multi_modal_projector.linear_1.weight"}) {
    tensors.push_back({name, "F32", {1}, "1234"});
  }
  return tensors;
}

TEST(CheckTensors, ReadsPastTheVisionPart) {
  ModelConfig config = TinyConfig();
  config.tensor_prefix = "language_model.";
  std::vector<RawTensor> tensors = MultimodalTensors(config);
  Named(tensors, "language_model.lm_head.weight");
  Named(tensors, "language_model.model.layers.1.mlp.experts.0.up_proj.weight");
  EXPECT_EQ(Check(tensors, config), absl::OkStatus());
  EXPECT_THAT(std::string(Check(tensors, TinyConfig()).message()),
              HasSubstr("tensor model.embed_tokens.weight: missing"));
  tensors.push_back({"audio_tower.weight", "F32", {1}, "1234"});
  EXPECT_THAT(std::string(Check(tensors, config).message()),
              HasSubstr("tensor audio_tower.weight: not part of DeepseekV3ForCausalLM"));
  // A text model has no vision part.
  tensors = TensorsFor(TinyConfig());
  tensors.push_back({"vision_tower.weight", "F32", {1}, "1234"});
  EXPECT_THAT(std::string(Check(tensors, TinyConfig()).message()),
              HasSubstr("tensor vision_tower.weight: not part of"));
}

// Older NVFP4 files leave "model." out behind the prefix.
TEST(OpenCheckpoint, GivesOldNamesOfMultimodalFilesTheNewOnes) {
  ModelConfig config = TinyConfig();
  config.tensor_prefix = "language_model.";
  std::vector<RawTensor> tensors = MultimodalTensors(config);
  for (RawTensor& tensor : tensors) {
    absl::StrReplaceAll({{"language_model.model.", "language_model."}}, &tensor.name);
  }
  const std::string dir = MakeTestDir("old_names");
  WriteSafetensors(dir + "/model.safetensors", tensors);
  const auto checkpoint = OpenCheckpoint(dir, config);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(CheckTensors(*checkpoint, DescribeModel(config, 2)), absl::OkStatus());
  EXPECT_EQ(checkpoint->tensors().size(), tensors.size());
}

TEST(CheckTensors, ATiedHeadMayBeAbsent) {
  ModelConfig config = TinyConfig();
  config.tie_word_embeddings = true;
  std::vector<RawTensor> tensors = TensorsFor(config);
  EXPECT_EQ(Check(tensors, config), absl::OkStatus());
  Erase(tensors, "lm_head.weight");
  EXPECT_EQ(Check(tensors, config), absl::OkStatus());
}

TEST(CheckTensors, FP8NeedsAQuantizationConfig) {
  ModelConfig config = TinyConfig();
  std::vector<RawTensor> tensors = TensorsFor(config);
  MakeF8(tensors, "model.layers.0.self_attn.o_proj.weight");
  EXPECT_THAT(std::string(Check(tensors, config).message()),
              HasSubstr("o_proj.weight: dtype: F8_E4M3, allowed BF16, F32"));
  config.projections = kFp8Format;
  EXPECT_EQ(Check(tensors, config), absl::OkStatus());
}

struct BrokenCheckpoint {
  const char* name;
  std::function<void(std::vector<RawTensor>&)> breaks;
  const char* error;  // after the path of the file
};

class CheckTensorsRefuses : public ::testing::TestWithParam<BrokenCheckpoint> {};

TEST_P(CheckTensorsRefuses, NamingFileAndTensor) {
  ModelConfig config = TinyConfig();
  config.projections = kFp8Format;
  std::vector<RawTensor> tensors = TensorsFor(config);
  GetParam().breaks(tensors);
  const absl::Status status = Check(tensors, config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(std::string("/model.safetensors: tensor ") + GetParam().error));
}

const BrokenCheckpoint kBrokenCheckpoints[] = {
    {"NoEmbedding", [](auto& t) { Erase(t, "model.embed_tokens.weight"); },
     "model.embed_tokens.weight: missing"},
    {"NoHead", [](auto& t) { Erase(t, "lm_head.weight"); }, "lm_head.weight: missing"},
    {"NoExpert", [](auto& t) { Erase(t, "model.layers.1.mlp.experts.3.up_proj.weight"); },
     "model.layers.1.mlp.experts.3.up_proj.weight: missing"},
    {"NoMtpNorm", [](auto& t) { Erase(t, "model.layers.3.shared_head.norm.weight"); },
     "model.layers.3.shared_head.norm.weight: missing"},
    {"ExtraName",
     [](auto& t) {
       t.push_back({"model.layers.0.bias", "U8", {1}, "x"});
     },
     "model.layers.0.bias: not part of DeepseekV3ForCausalLM with num_hidden_layers 2, "
     "num_nextn_predict_layers 2"},
    {"MtpLayerTooMany",
     [](auto& t) {
       t.push_back({"model.layers.4.enorm.weight", "U8", {1}, "x"});
     },
     "model.layers.4.enorm.weight: not part of"},
    {"ExpertTooMany",
     [](auto& t) {
       t.push_back({"model.layers.1.mlp.experts.4.up_proj.weight", "U8", {1}, "x"});
     },
     "model.layers.1.mlp.experts.4.up_proj.weight: not part of"},
    {"Transposed",
     [](auto& t) {
       Named(t, "model.layers.0.self_attn.q_b_proj.weight").shape = {4, 12};
     },
     "model.layers.0.self_attn.q_b_proj.weight: shape: [4, 12], config.json makes it [12, 4]"},
    {"Flattened", [](auto& t) { Named(t, "model.layers.0.self_attn.q_b_proj.weight").shape = {48}; },
     "model.layers.0.self_attn.q_b_proj.weight: shape: [48], config.json makes it [12, 4]"},
    {"CopyOfWrongShape",
     [](auto& t) {
       Named(t, "model.layers.2.embed_tokens.weight").shape = {8, 12};
     },
     "model.layers.2.embed_tokens.weight: shape: [8, 12]"},
    {"Half",
     [](auto& t) {
       RawTensor& norm = Named(t, "model.norm.weight");
       norm.dtype = "F16";
       norm.bytes.resize(16);
     },
     "model.norm.weight: dtype: F16, allowed BF16, F32"},
    {"EmbeddingInF8", [](auto& t) { MakeF8(t, "model.embed_tokens.weight"); },
     "model.embed_tokens.weight: dtype: F8_E4M3, allowed BF16, F32"},
    {"F8WithoutScale",
     [](auto& t) {
       MakeF8(t, "model.layers.0.mlp.up_proj.weight");
       t.pop_back();
     },
     "model.layers.0.mlp.up_proj.weight_scale_inv: missing: the weight is F8_E4M3"},
    {"ScaleWithoutF8",
     [](auto& t) {
       t.push_back({"model.layers.0.mlp.up_proj.weight_scale_inv", "F32", {1, 1}, "1234"});
     },
     "model.layers.0.mlp.up_proj.weight_scale_inv: unexpected scales: the weight is F32"},
    {"ScaleShape",
     [](auto& t) {
       MakeF8(t, "model.layers.0.mlp.up_proj.weight");
       t.back().shape = {1};
     },
     "model.layers.0.mlp.up_proj.weight_scale_inv: shape: [1], config.json makes it [1, 1]"},
    {"ScaleInBf16",
     [](auto& t) {
       MakeF8(t, "model.layers.0.mlp.up_proj.weight");
       t.back().dtype = "BF16";
       t.back().bytes.resize(2);
     },
     "model.layers.0.mlp.up_proj.weight_scale_inv: dtype: BF16, allowed F32"},
};
INSTANTIATE_TEST_SUITE_P(Cases, CheckTensorsRefuses, ::testing::ValuesIn(kBrokenCheckpoints),
                         [](const auto& info) { return info.param.name; });

constexpr char kUnlisted[] = "mtp-1-of-1.safetensors";

TEST(Checkpoint, OpensAFileThatTheIndexLeavesOut) {
  const std::string dir = WriteShards(R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  EXPECT_EQ(Checkpoint::Open(dir, kUnlisted)->tensors().size(), 2u);
  WriteSafetensors(dir + "/" + kUnlisted, {{"c", "U8", {1}, "z"}});
  EXPECT_EQ(Checkpoint::Open(dir)->tensors().size(), 2u);
  EXPECT_NE(Checkpoint::Open(dir, kUnlisted)->Find("c").entry, nullptr);
  WriteFile(
      dir + kIndex,
      R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "mtp-1-of-1.safetensors"}})");
  EXPECT_EQ(Checkpoint::Open(dir, kUnlisted)->tensors().size(), 3u) << "listed after all";
}

TEST(Checkpoint, RefusesATensorInTwoFiles) {
  const std::string dir = WriteShards(R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  WriteSafetensors(dir + "/" + kUnlisted, {{"b", "U8", {1}, "z"}});
  EXPECT_THAT(std::string(Checkpoint::Open(dir, kUnlisted).status().message()),
              HasSubstr("/mtp-1-of-1.safetensors: tensor b: also in "));
}

// Writes the tensors and runs CheckCheckpoint with `declared` MTP modules in config.json.
absl::StatusOr<int> LoadableModules(const std::vector<RawTensor>& tensors, int declared) {
  const std::string dir = MakeTestDir("model");
  WriteSafetensors(dir + "/model.safetensors", tensors);
  ModelConfig config = TinyConfig();
  config.num_nextn_predict_layers = declared;
  auto checkpoint = Checkpoint::Open(dir);
  if (!checkpoint.ok()) return checkpoint.status();
  return CheckCheckpoint(*checkpoint, config);
}

std::vector<RawTensor> TensorsWithModules(int count) {
  ModelConfig config = TinyConfig();
  config.num_nextn_predict_layers = count;
  return TensorsFor(config);
}

TEST(CheckCheckpoint, FindsTheModulesThatCanBeLoaded) {
  EXPECT_EQ(*LoadableModules(TensorsWithModules(2), 2), 2);
  EXPECT_EQ(*LoadableModules(TensorsWithModules(0), 2), 0) << "saved again by transformers";
  EXPECT_EQ(*LoadableModules(TensorsWithModules(2), 0), 0) << "present but not declared";
  EXPECT_EQ(*LoadableModules(TensorsWithModules(0), 0), 0);
  EXPECT_EQ(*LoadableModules(TensorsWithModules(1), 3), 1) << "the last ones are not there";
  EXPECT_EQ(*LoadableModules(TensorsWithModules(2), 3), 2);
}

TEST(CheckCheckpoint, RefusesAModuleInPart) {
  std::vector<RawTensor> second = TensorsWithModules(2);
  std::erase_if(second, [](const RawTensor& tensor) { return tensor.name.starts_with("model.layers.2."); });
  EXPECT_THAT(std::string(LoadableModules(second, 2).status().message()),
              HasSubstr("model.layers.2.enorm.weight: missing"))
      << "a module that later ones stand on";
  std::vector<RawTensor> tensors = TensorsWithModules(1);
  Erase(tensors, "model.layers.2.enorm.weight");
  EXPECT_THAT(std::string(LoadableModules(tensors, 1).status().message()),
              HasSubstr("model.layers.2.enorm.weight: missing"));
  EXPECT_THAT(std::string(LoadableModules(tensors, 0).status().message()),
              HasSubstr("model.layers.2.enorm.weight: missing"));
}

TEST(CheckModuleCount, SaysWhatToDo) {
  ModelConfig config = TinyConfig();
  EXPECT_EQ(CheckModuleCount("dir", config, 2, 2), absl::OkStatus());
  EXPECT_EQ(std::string(CheckModuleCount("dir", config, 3, 2).message()),
            "dir: MTP modules: 3, allowed 0..2: config.json declares no more (num_nextn_predict_layers)");
  EXPECT_EQ(std::string(CheckModuleCount("dir", config, 1, 0).message()),
            "dir: MTP modules: 1, allowed 0..0: config.json declares 2 (num_nextn_predict_layers), but the "
            "checkpoint has no tensor of them, as after transformers has saved it; serve without "
            "speculative_config (--drafts 0), or use the original checkpoint");
  EXPECT_EQ(std::string(CheckModuleCount("dir", config, 2, 1).message()),
            "dir: MTP modules: 2, allowed 0..1: config.json declares 2 (num_nextn_predict_layers), but the "
            "checkpoint has tensors of the first 1 alone; set speculative_config.use_mtp_vanilla: false, "
            "which drafts with the first one, or use the original checkpoint");
}

ModelConfig SparseConfig() {
  ModelConfig config = TinyConfig();
  config.architecture = "DeepseekV32ForCausalLM";
  config.kind = &kDeepseekV3Kind;
  config.index_topk = 16;
  config.index_n_heads = 2;
  config.index_head_dim = 4;
  config.projections = kFp8Format;
  return config;
}

TEST(CheckTensors, NeedsTheIndexerOfEachLayerThatDoesNotShare) {
  ModelConfig config = SparseConfig();
  config.runs_indexer = true;
  std::vector<RawTensor> tensors = TensorsFor(config);
  EXPECT_EQ(Check(tensors, config), absl::OkStatus());
  MakeF8(tensors, "model.layers.0.self_attn.indexer.wk.weight");
  EXPECT_EQ(Check(tensors, config), absl::OkStatus());
  Erase(tensors, "model.layers.1.self_attn.indexer.k_norm.bias");
  EXPECT_THAT(std::string(Check(tensors, config).message()),
              HasSubstr("model.layers.1.self_attn.indexer.k_norm.bias: missing"));
  config.shares_selection = {false, true};
  config.shares_selection.resize(config.num_hidden_layers);
  EXPECT_EQ(Check(tensors, config), absl::OkStatus()) << "an unused part of an indexer";
}

// An indexer that does not run.
TEST(CheckTensors, ReadsPastTheIndexer) {
  std::vector<RawTensor> tensors = TensorsFor(SparseConfig());
  EXPECT_EQ(Named(tensors, "model.layers.2.self_attn.indexer.wq_b.weight").shape,
            (std::vector<int64_t>{8, 4}));
  EXPECT_EQ(Check(tensors, SparseConfig()), absl::OkStatus());
  MakeF8(tensors, "model.layers.0.self_attn.indexer.wk.weight");
  EXPECT_EQ(Check(tensors, SparseConfig()), absl::OkStatus());
  for (const char* name : {"wk.weight_scale_inv", "wk.weight", "wq_b.weight", "weights_proj.weight",
                           "k_norm.weight", "k_norm.bias"}) {
    Erase(tensors, std::string("model.layers.0.self_attn.indexer.") + name);
  }
  EXPECT_EQ(Check(tensors, SparseConfig()), absl::OkStatus()) << "a layer that shares another one's indexer";
  EXPECT_THAT(std::string(Check(tensors, TinyConfig()).message()),
              HasSubstr("self_attn.indexer.wq_b.weight: not part of DeepseekV3ForCausalLM"));
  Named(tensors, "model.layers.1.self_attn.indexer.k_norm.bias").shape = {2, 2};
  EXPECT_THAT(std::string(Check(tensors, SparseConfig()).message()),
              HasSubstr("indexer.k_norm.bias: shape: [2, 2], config.json makes it [4]"));
}

TEST(CheckTensors, MtpModulesMayBeDense) {
  ModelConfig config = TinyConfig();
  config.dense_mtp = true;
  std::vector<RawTensor> tensors = TensorsFor(config);
  EXPECT_EQ(Named(tensors, "model.layers.2.mlp.up_proj.weight").shape, (std::vector<int64_t>{10, 8}));
  EXPECT_EQ(Check(tensors, config), absl::OkStatus());
  EXPECT_THAT(std::string(Check(tensors, TinyConfig()).message()), HasSubstr("tensor model.layers.2.mlp."));
}

}  // namespace
}  // namespace foredraft
