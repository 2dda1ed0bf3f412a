#include "grammar/state_table.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/hash/hash.h"
#include "base/check.h"

namespace foredraft {
namespace {

constexpr int32_t kBottom = 0;

uint64_t MakeConfig(int32_t state, int32_t frame) {
  return static_cast<uint64_t>(state) << 32 | static_cast<uint32_t>(frame);
}
int32_t StateOf(uint64_t config) { return static_cast<int32_t>(config >> 32); }
int32_t FrameOf(uint64_t config) { return static_cast<int32_t>(config & 0xFFFFFFFF); }

bool HasToken(const TokenSet& tokens, int32_t id, bool is_ordinary) {
  const bool is_listed = std::binary_search(tokens.ids.begin(), tokens.ids.end(), id);
  return tokens.is_complement ? is_ordinary && !is_listed : is_listed;
}

}  // namespace

size_t StateTable::ConfigsHash::operator()(std::span<const Config> configs) const {
  return absl::HashOf(std::string_view(reinterpret_cast<const char*>(configs.data()), configs.size_bytes()));
}

bool StateTable::ConfigsEqual::operator()(StateId a, std::span<const Config> b) const {
  const std::span<const Config> configs = table->configs(a);
  return std::equal(configs.begin(), configs.end(), b.begin(), b.end());
}

StateTable::StateTable(const Automaton& automaton, const GrammarLimits& limits)
    : automaton_(automaton), limits_(limits), known_(0, ConfigsHash{this}, ConfigsEqual{this}) {
  frames_.push_back({-1, -1, -1, 0});
  clamped_frames_.push_back(kBottom);
  states_.resize(kFirstState);
  for (StateId id = 0; id < kFirstState; ++id) {
    states_[id].clamped = id;
    transitions_.push_back({.to = id, .walk = 0, .steps = 0});
  }
  Reach(automaton.start, kBottom);
  int64_t steps = 0;
  start_ = Close(steps);
}

int64_t StateTable::byte_count() const {
  // A slot of a hash set has a control byte, and memory blocks have 16 bytes of the allocator.
  size_t bytes = sizeof(*this) + states_.capacity() * sizeof(State) + configs_.capacity() * sizeof(Config);
  bytes += known_.capacity() * (sizeof(StateId) + 1) + transitions_.capacity() * sizeof(Transition);
  bytes +=
      rows_.capacity() * sizeof(rows_[0]) + rows_.size() * (sizeof(int32_t) * automaton_.symbol_count + 16);
  bytes += frames_.capacity() * sizeof(Frame) + clamped_frames_.capacity() * sizeof(int32_t);
  bytes += known_frames_.capacity() * (sizeof(Frame) + sizeof(int32_t) + 1) +
           seen_.capacity() * (sizeof(Config) + 1);
  bytes += (kernel_.capacity() + reached_.capacity()) * sizeof(Config);
  return static_cast<int64_t>(bytes) + mask_bytes_;
}

int32_t StateTable::PushFrame(Frame frame) {
  const auto [place, is_new] = known_frames_.try_emplace(frame, static_cast<int32_t>(frames_.size()));
  if (is_new) {
    frames_.push_back(frame);
    clamped_frames_.push_back(-1);
  }
  return place->second;
}

void StateTable::Reach(int32_t state, int32_t frame) {
  if (automaton_.nesting_need[state] + frames_[frame].depth > limits_.max_depth) return;
  const Config config = MakeConfig(state, frame);
  if (seen_.insert(config).second) kernel_.push_back(config);
}

void StateTable::Expand(int32_t state, int32_t frame) {
  const int32_t depth = frames_[frame].depth;
  for (const Automaton::Edge& edge : automaton_.moves_of(state)) {
    if (automaton_.EdgeNeed(edge) + depth > limits_.max_depth) continue;
    switch (edge.kind) {
      case Automaton::Edge::kCall:
        Reach(edge.label,
              automaton_.is_tail(edge.target) ? frame : PushFrame({edge.target, -1, frame, depth}));
        break;
      case Automaton::Edge::kNestedCall:
        Reach(edge.label, PushFrame({edge.target, -1, frame, depth + 1}));
        break;
      case Automaton::Edge::kLoop:
        Reach(automaton_.loops[edge.label].body, PushFrame({edge.label, 0, frame, depth}));
        break;
      default:
        Reach(edge.target, frame);
        break;
    }
  }
}

void StateTable::End(int32_t index) {
  if (index == kBottom) {
    accepts_ = true;
    return;
  }
  const Frame frame = frames_[index];
  if (frame.count < 0) {
    Reach(frame.target, frame.parent);
    return;
  }
  const Automaton::Loop& loop = automaton_.loops[frame.target];
  const int32_t count = frame.count + 1;
  if (loop.max < 0 || count < loop.max) {
    // Without a maximum, counts past the minimum are equivalent.
    const int32_t kept = loop.max < 0 ? std::min(count, loop.min) : count;
    Reach(loop.body, PushFrame({frame.target, kept, frame.parent, frame.depth}));
  }
  if (count >= loop.min) Reach(loop.exit, frame.parent);
}

StateId StateTable::Close(int64_t& steps) {
  const size_t max_seen = static_cast<size_t>(limits_.max_configurations) * 8;
  reached_.clear();
  accepts_ = false;
  StateId failed = kUnknown;
  int64_t visited = 0;  // configurations and moves not yet counted as steps
  while (!kernel_.empty() && failed == kUnknown) {
    const Config config = kernel_.back();
    kernel_.pop_back();
    const int32_t state = StateOf(config);
    visited += 1 + static_cast<int64_t>(automaton_.moves_of(state).size());
    const int64_t taken = visited / MaskWork::kConfigsPerStep;
    visited -= taken * MaskWork::kConfigsPerStep;
    steps += taken;
    work_->steps += taken;
    if (steps > limits_.max_mask_steps || work_->is_spent()) {
      failed = kTooLong;
      break;
    }
    if (automaton_.reads(state)) reached_.push_back(config);
    Expand(state, FrameOf(config));
    if (automaton_.is_final[state]) End(FrameOf(config));
    if (seen_.size() > max_seen || reached_.size() > static_cast<size_t>(limits_.max_configurations)) {
      failed = kOverflow;
    }
  }
  kernel_.clear();
  // Clearing a set takes time in proportion to its capacity, which stays large after one large state.
  if (seen_.capacity() > 1024 && seen_.size() < seen_.capacity() / 16) {
    seen_ = {};
  } else {
    seen_.clear();
  }
  return failed == kUnknown ? Intern(accepts_) : failed;
}

StateId StateTable::Intern(bool accepts) {
  if (reached_.empty() && !accepts) return kDead;
  std::sort(reached_.begin(), reached_.end());
  if (accepts) reached_.push_back(~Config{0});  // a mark, so that the set tells accepting states apart
  const auto place = known_.find(std::span<const Config>(reached_));
  if (place != known_.end()) return *place;
  const StateId id = static_cast<StateId>(states_.size());
  State& state = states_.emplace_back();
  state.first_config = static_cast<uint32_t>(configs_.size());
  state.config_count = static_cast<uint32_t>(reached_.size());
  state.accepts = accepts;
  configs_.insert(configs_.end(), reached_.begin(), reached_.end());
  for (const Config config : reached_) {
    if (config == ~Config{0}) continue;
    state.has_tokens = state.has_tokens || !automaton_.token_edges_of(StateOf(config)).empty();
  }
  known_.insert(id);
  return id;
}

int32_t StateTable::MakeTransition(StateId from, int symbol) {
  if (from < kFirstState) return from;
  const int byte = automaton_.symbol_bytes[symbol];
  int64_t edges = 0;
  for (const Config config : configs(from)) {
    if (config == ~Config{0}) break;
    edges += static_cast<int64_t>(automaton_.byte_edges_of(StateOf(config)).size());
  }
  // Configurations that the byte leads to are counted by Close.
  int64_t steps =
      1 + states_[from].config_count / MaskWork::kConfigsPerStep + edges / MaskWork::kEdgesPerStep;
  work_->steps += steps;
  if (work_->is_spent()) return kTooLong;
  ByteClass alike = ByteClass::Range(0, 255);  // bytes that no edge tells apart from this one
  bool is_too_long = steps > limits_.max_mask_steps;
  for (const Config config : configs(from)) {
    if (config == ~Config{0} || is_too_long) break;
    for (const Automaton::Edge& edge : automaton_.byte_edges_of(StateOf(config))) {
      const ByteClass& bytes = automaton_.classes[edge.label];
      if (bytes.Has(byte)) {
        alike.Keep(bytes);
        Reach(edge.target, FrameOf(config));
      } else {
        alike.Remove(bytes);
      }
    }
  }
  const StateId to = is_too_long ? kTooLong : kernel_.empty() ? kDead : Close(steps);
  if (to == kTooLong && work_->is_spent()) return kTooLong;
  return KeepTransition(from, alike, {.to = to, .walk = 0, .steps = static_cast<int32_t>(steps)});
}

int32_t StateTable::KeepTransition(StateId from, const ByteClass& bytes, Transition transition) {
  const int32_t symbol_count = automaton_.symbol_count;
  if (states_[from].row == nullptr) {
    rows_.push_back(std::make_unique<int32_t[]>(symbol_count));
    states_[from].row = rows_.back().get();
    std::fill_n(states_[from].row, symbol_count, kUnknown);
  }
  const auto number = static_cast<int32_t>(transitions_.size());
  transitions_.push_back(transition);
  for (int32_t symbol = 0; symbol < symbol_count; ++symbol) {
    if (bytes.Has(automaton_.symbol_bytes[symbol])) states_[from].row[symbol] = number;
  }
  return number;
}

ByteClass StateTable::NextBytes(StateId from, int64_t& steps) {
  ByteClass next;
  const int64_t before = steps;
  for (const Config config : configs(from)) {
    if (config == ~Config{0}) break;
    const auto edges = automaton_.byte_edges_of(StateOf(config));
    steps += 1 + static_cast<int64_t>(edges.size());
    for (const Automaton::Edge& edge : edges) next.Add(automaton_.classes[edge.label]);
  }
  work_->steps += steps - before;
  return next;
}

bool StateTable::ReadsAnyText(StateId from, int utf8, int64_t& steps) {
  steps += states_[from].config_count;
  work_->steps += states_[from].config_count;
  const std::span<const Config> all = configs(from);
  return std::any_of(all.begin(), all.end(), [&](Config config) {
    return config != ~Config{0} && automaton_.text_utf8[StateOf(config)] == utf8;
  });
}

StateId StateTable::StepToken(StateId from, int32_t id, bool is_ordinary, int64_t& steps) {
  if (from < kFirstState) return from;
  const int64_t before = steps;
  for (const Config config : configs(from)) {
    if (config == ~Config{0}) break;
    const auto edges = automaton_.token_edges_of(StateOf(config));
    steps += 1 + static_cast<int64_t>(edges.size());
    for (const Automaton::Edge& edge : edges) {
      if (HasToken(automaton_.token_sets[edge.label], id, is_ordinary)) Reach(edge.target, FrameOf(config));
    }
  }
  work_->steps += steps - before;
  return kernel_.empty() ? kDead : Close(steps);
}

StateId StateTable::Union(StateId a, StateId b) {
  for (const StateId special : {kTooLong, kOverflow}) {
    if (a == special || b == special) return special;
  }
  if (a == kDead) return b;
  if (b == kDead || a == b) return a;
  reached_.clear();
  for (const StateId id : {a, b}) {
    for (const Config config : configs(id)) {
      if (config != ~Config{0}) reached_.push_back(config);
    }
  }
  std::sort(reached_.begin(), reached_.end());
  reached_.erase(std::unique(reached_.begin(), reached_.end()), reached_.end());
  if (reached_.size() > static_cast<size_t>(limits_.max_configurations)) return kOverflow;
  return Intern(states_[a].accepts || states_[b].accepts);
}

std::vector<int32_t> StateTable::NextTokenSets(StateId from, int64_t& steps) {
  std::vector<int32_t> sets;
  if (!states_[from].has_tokens) return sets;
  const int64_t before = steps;
  for (const Config config : configs(from)) {
    if (config == ~Config{0}) break;
    const auto edges = automaton_.token_edges_of(StateOf(config));
    steps += 1 + static_cast<int64_t>(edges.size());
    for (const Automaton::Edge& edge : edges) sets.push_back(edge.label);
  }
  work_->steps += steps - before;
  std::sort(sets.begin(), sets.end());
  sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
  return sets;
}

int32_t StateTable::ClampFrame(int32_t index) {
  std::vector<int32_t> chain;
  int32_t clamped = index;
  for (; clamped_frames_[clamped] < 0; clamped = frames_[clamped].parent) chain.push_back(clamped);
  clamped = clamped_frames_[clamped];
  work_->steps += static_cast<int64_t>(chain.size());
  for (; !chain.empty(); chain.pop_back()) {
    Frame frame = frames_[chain.back()];
    if (frame.count >= 0) {
      // `count` iterations are finished. The next per_token ones depend on it only in whether they reach min
      // or max.
      const Automaton::Loop& loop = automaton_.loops[frame.target];
      if (frame.count >= loop.min && (loop.max < 0 || frame.count < loop.max - loop.per_token)) {
        frame.count = loop.min;
      } else if (frame.count < loop.min - loop.per_token) {
        frame.count = 0;
      }
    }
    frame.parent = clamped;
    clamped = PushFrame(frame);
    clamped_frames_[chain.back()] = clamped;
  }
  return clamped;
}

StateId StateTable::Clamp(StateId from) {
  if (states_[from].clamped != kUnknown) return states_[from].clamped;
  StateId clamped = from;
  if (!automaton_.loops.empty()) {
    std::vector<Config> changed;
    work_->steps += states_[from].config_count;
    for (const Config config : configs(from)) {
      changed.push_back(config == ~Config{0} ? config
                                             : MakeConfig(StateOf(config), ClampFrame(FrameOf(config))));
    }
    if (states_[from].accepts) changed.pop_back();
    std::sort(changed.begin(), changed.end());
    changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
    reached_ = std::move(changed);
    clamped = Intern(states_[from].accepts);
  }
  states_[from].clamped = clamped;
  states_[clamped].clamped = clamped;
  return clamped;
}

int32_t StateTable::ImportFrame(const StateTable& other, int32_t index, std::vector<int32_t>& known) {
  std::vector<int32_t> chain;
  for (; known[index] < 0; index = other.frames_[index].parent) chain.push_back(index);
  int32_t imported = known[index];
  for (; !chain.empty(); chain.pop_back()) {
    Frame frame = other.frames_[chain.back()];
    frame.parent = imported;
    imported = PushFrame(frame);
    known[chain.back()] = imported;
  }
  return imported;
}

StateId StateTable::Import(const StateTable& other, StateId from) {
  if (from < kFirstState) return from;
  std::vector<int32_t> known(other.frames_.size(), -1);
  known[kBottom] = kBottom;
  reached_.clear();
  for (const Config config : other.configs(from)) {
    if (config == ~Config{0}) continue;
    reached_.push_back(MakeConfig(StateOf(config), ImportFrame(other, FrameOf(config), known)));
  }
  return Intern(other.states_[from].accepts);
}

void StateTable::KeepMask(StateId id, std::shared_ptr<const TokenMask> mask) {
  mask_bytes_ += mask->byte_count();
  states_[id].mask = std::move(mask);
}

}  // namespace foredraft
