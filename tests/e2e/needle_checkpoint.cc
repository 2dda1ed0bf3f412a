#include "tests/e2e/needle_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "base/check.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/model_config.h"
#include "tests/e2e/daemon_fixture.h"
#include "tests/engine/checkpoint/checkpoint_files.h"

namespace foredraft {
namespace {

constexpr int kSymbols = kNeedleSymbols;
constexpr int kNoise = 100;  // kinds of noise tokens

// Token ids.
constexpr int kFirstSymbol = 4, kFirstNeedle = kFirstSymbol + kSymbols;
constexpr int kFirstNoise = kFirstNeedle + kSymbols * kSymbols, kVocab = kFirstNoise + kNoise;
int32_t SymbolId(int symbol) { return kFirstSymbol + symbol; }
int32_t NeedleId(int symbol, int next) { return kFirstNeedle + symbol * kSymbols + next; }

// Where in a hidden state a token's features are: the symbol that a needle is about, the one that it names,
// the symbol that asks, what noise is made of, a one, and the answer.
constexpr int kAbout = 0, kNames = kSymbols, kAsks = 2 * kSymbols, kOther = 3 * kSymbols;
constexpr int kOtherDims = 16, kOne = kOther + kOtherDims, kAnswer = kOne + 8, kHidden = 128;
static_assert(kAnswer + kSymbols <= kHidden);

constexpr int kHeads = 2, kNope = kSymbols, kRope = 8, kValue = kSymbols, kQueryLatent = 32, kLatent = 64;
constexpr int kIndexHeads = 2, kIndexDim = kRope + kSymbols;
// A symbol's score of its needle is 4 kQueryGain, since both normed latents have a value of about 4 and 5.7
// there; noise scores a third at most.
constexpr float kQueryGain = 12;

class Tensors {
 public:
  explicit Tensors(const ModelConfig& config) : tensors_(TensorsFor(config)) {
    for (RawTensor& tensor : tensors_) {
      const float value = tensor.name.ends_with("norm.weight") ? 1.0f : 0.0f;
      for (size_t at = 0; at < tensor.bytes.size(); at += sizeof(float)) Store(tensor, at, value);
    }
  }

  bool Has(const std::string& name) const {
    return std::any_of(tensors_.begin(), tensors_.end(), [&](const RawTensor& t) { return t.name == name; });
  }
  void Set(const std::string& name, int row, int column, float value) {
    RawTensor& tensor = Named(tensors_, name);
    CHECK(tensor.shape.size() == 2 && row < tensor.shape[0] && column < tensor.shape[1]) << name;
    Store(tensor, (row * tensor.shape[1] + column) * sizeof(float), value);
  }
  // value at (row + i, column + i), i < count.
  void Diagonal(const std::string& name, int row, int column, int count, float value = 1) {
    for (int i = 0; i < count; ++i) Set(name, row + i, column + i, value);
  }
  void Write(const std::string& path) const { WriteSafetensors(path, tensors_); }

 private:
  static void Store(RawTensor& tensor, size_t at, float value) {
    std::memcpy(tensor.bytes.data() + at, &value, sizeof(value));
  }

  std::vector<RawTensor> tensors_;
};

void SetEmbeddings(Tensors& tensors) {
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (int id = 0; id < kVocab; ++id) tensors.Set(embedding, id, kOne, 1);
  for (int symbol = 0; symbol < kSymbols; ++symbol) {
    tensors.Set(embedding, SymbolId(symbol), kAsks + symbol, 1);
    tensors.Set(head, SymbolId(symbol), kAnswer + symbol, 1);
    for (int next = 0; next < kSymbols; ++next) {
      tensors.Set(embedding, NeedleId(symbol, next), kAbout + symbol, 1);
      tensors.Set(embedding, NeedleId(symbol, next), kNames + next, 1);
    }
  }
  for (int id = kFirstNoise; id < kVocab; ++id) {
    for (int i = 0; i < kSymbols; ++i) tensors.Set(embedding, id, kAbout + i, 0.08f * normal(random));
    for (int i = 0; i < kSymbols; ++i) tensors.Set(embedding, id, kNames + i, 0.1f * normal(random));
    for (int i = 0; i < kOtherDims; ++i) tensors.Set(embedding, id, kOther + i, 0.35f * normal(random));
  }
}

void SetIndexer(Tensors& tensors, const std::string& layer, bool blind) {
  const std::string indexer = layer + "self_attn.indexer.";
  if (!tensors.Has(indexer + "wk.weight")) return;  // the layer shares a selection
  for (int head = 0; head < kIndexHeads; ++head) {
    if (!blind) tensors.Diagonal(indexer + "wq_b.weight", head * kIndexDim + kRope, 0, kSymbols);
    tensors.Set(indexer + "weights_proj.weight", head, kOne, 0.5f);
  }
  tensors.Diagonal(indexer + "wk.weight", kRope, kAbout, kSymbols);
}

// `attends`: else its output is zero.
void SetAttention(Tensors& tensors, const std::string& layer, bool attends, bool blind) {
  const std::string attention = layer + "self_attn.";
  tensors.Diagonal(attention + "q_a_proj.weight", 0, kAsks, kSymbols);
  tensors.Set(attention + "q_a_proj.weight", kSymbols, kOne, 1);
  tensors.Diagonal(attention + "kv_a_proj_with_mqa.weight", 0, kAbout, 2 * kSymbols);
  tensors.Diagonal(attention + "kv_a_proj_with_mqa.weight", 2 * kSymbols, kOther, kOtherDims);
  for (int head = 0; head < kHeads; ++head) {
    tensors.Diagonal(attention + "q_b_proj.weight", head * (kNope + kRope), 0, kSymbols, kQueryGain);
    tensors.Diagonal(attention + "kv_b_proj.weight", head * (kNope + kValue), 0, kSymbols);
    tensors.Diagonal(attention + "kv_b_proj.weight", head * (kNope + kValue) + kNope, kSymbols, kSymbols);
    if (attends) tensors.Diagonal(attention + "o_proj.weight", kAnswer, head * kValue, kSymbols);
  }
  SetIndexer(tensors, layer, blind);
}

nlohmann::json Config(const NeedleShape& shape) {
  std::ifstream in("tests/golden/checkpoints/" + shape.family + "/config.json");
  nlohmann::json config = nlohmann::json::parse(in);
  config.update({{"vocab_size", kVocab},
                 {"hidden_size", kHidden},
                 {"num_hidden_layers", 2},
                 {"num_nextn_predict_layers", 1},
                 {"first_k_dense_replace", 2},
                 {"num_attention_heads", kHeads},
                 {"num_key_value_heads", kHeads},
                 {"q_lora_rank", kQueryLatent},
                 {"kv_lora_rank", kLatent},
                 {"qk_nope_head_dim", kNope},
                 {"qk_rope_head_dim", kRope},
                 {"v_head_dim", kValue},
                 {"max_position_embeddings", shape.max_positions},
                 {"index_topk", shape.index_topk},
                 {"index_n_heads", kIndexHeads},
                 {"index_head_dim", kIndexDim}});
  config.erase("rope_scaling");
  config.erase("index_share_for_mtp_iteration");
  if (shape.shares_lists) config["index_share_for_mtp_iteration"] = true;
  return config;
}

}  // namespace

std::string WriteNeedleCheckpoint(const NeedleShape& shape) {
  const std::string dir = TestDir("needle_" + shape.family + (shape.blind ? "_blind" : "") +
                                  (shape.shares_lists ? "_shares" : ""));
  WriteText(dir + "/config.json", Config(shape).dump());
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(dir + "/config.json");
  CHECK(config.ok()) << config.status().ToString();
  Tensors tensors(*config);
  SetEmbeddings(tensors);
  SetAttention(tensors, "model.layers.0.", /*attends=*/false, shape.blind);
  SetAttention(tensors, "model.layers.1.", /*attends=*/true, shape.blind);
  SetAttention(tensors, "model.layers.2.", /*attends=*/true, shape.blind);
  tensors.Diagonal("model.layers.2.eh_proj.weight", 0, 0, kHidden);  // the embedding alone
  tensors.Write(dir + "/model.safetensors");
  // Any will do, since prompts and answers are ids.
  std::filesystem::copy("deploy/models/abacus/tokenizer.json", dir + "/tokenizer.json");
  return dir;
}

NeedlePrompt MakeNeedlePrompt(int length, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int> chain(kSymbols);
  std::iota(chain.begin(), chain.end(), 0);
  std::shuffle(chain.begin(), chain.end(), random);
  NeedlePrompt prompt;
  for (int i = 0; i < length; ++i)
    prompt.ids.push_back(kFirstNoise + static_cast<int32_t>(random() % kNoise));
  for (int i = 0; i + 1 < kSymbols; ++i) {
    const uint32_t among = i == kSymbols / 2 ? 100 : static_cast<uint32_t>(length - 1);
    size_t place = random() % among;
    while (prompt.ids[place] < kFirstNoise) place = random() % among;  // another needle's
    prompt.ids[place] = NeedleId(chain[i], chain[i + 1]);
    prompt.answer.push_back(SymbolId(chain[i + 1]));
  }
  prompt.ids.back() = SymbolId(chain[0]);
  return prompt;
}

}  // namespace foredraft
