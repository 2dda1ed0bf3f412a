#include "ranks/plan_codec.h"

#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"

namespace foredraft {
namespace {

using google::protobuf::RepeatedField;
using google::protobuf::RepeatedPtrField;

// A message, const where it is decoded.
template <class Message, class T>
concept Is = std::same_as<std::remove_const_t<Message>, T>;

// FIELD names a field that the struct `value` and its message share. A const message is decoded into `value`;
// a mutable one takes the field from `value`. The field is a scalar, an enum, a struct with a Visit of its
// own, or a vector.
#define FIELD(name)                                                        \
  if constexpr (std::is_const_v<Message>) {                                \
    Decode(message.name(), value.name);                                    \
  } else if constexpr (requires { message.mutable_##name(); }) {           \
    Encode(value.name, *message.mutable_##name());                         \
  } else {                                                                 \
    message.set_##name(static_cast<decltype(message.name())>(value.name)); \
  }

// COLUMN names one member of the structs in the vector `value.list`, which are parallel lists in the message.
#define COLUMN(list, member, name)                                                       \
  if constexpr (std::is_const_v<Message>) {                                              \
    DecodeColumn(message.name(), value.list, &decltype(value.list)::value_type::member); \
  } else {                                                                               \
    for (const auto& entry : value.list) message.add_##name(entry.member);               \
  }

// Each Visit lists the fields of one struct once, for both directions.
struct Codec {
  template <class Value, Is<worker::v1::PlanAcceptance> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(relaxed_topk);
    FIELD(relaxed_delta);
    FIELD(forced_length);
  }

  template <class Value, Is<worker::v1::PlanCalibration> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(slope);
    FIELD(offset);
  }

  template <class Value, Is<worker::v1::PlanGroupBlocks> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(group);
    FIELD(first_index);
    FIELD(block_ids);
  }

  template <class Value, Is<worker::v1::PlanSwap> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(image_id);
    FIELD(slot);
    FIELD(blocks);
  }

  template <class Value, Is<worker::v1::PlanSampling> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(temperature);
    FIELD(top_p);
    FIELD(top_k);
    FIELD(min_p);
    FIELD(repetition_penalty);
    FIELD(presence_penalty);
    FIELD(frequency_penalty);
    FIELD(seed);
    FIELD(min_tokens);
    FIELD(logit_bias);
  }

  template <class Value, Is<worker::v1::PlanTokenBias> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(token_id);
    FIELD(bias);
  }

  template <class Value, Is<worker::v1::PlanThinking> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(begin);
    FIELD(end);
  }

  template <class Value, Is<worker::v1::PlanGate> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(constrained);
    FIELD(first);
    FIELD(opens_thought);
    FIELD(trigger_ids);
    FIELD(barred_stop_count);
  }

  template <class Value, Is<worker::v1::PlanSlotMasks> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(slot);
    FIELD(mask_indices);
    FIELD(forced_drafts);
  }

  template <class Value, Is<worker::v1::PlanFirstMask> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(slot);
    FIELD(mask_index);
  }

  // Most masks allow few tokens, whose distances are small numbers.
  static void Visit(const std::shared_ptr<const TokenMask>& mask, worker::v1::PlanMask& message) {
    message.set_vocab_size(mask->vocab_size);
    message.set_count(mask->count);
    Encode(mask->words, *message.mutable_words());
    uint32_t last = 0;
    for (const int32_t id : mask->ids) {
      message.add_ids(static_cast<uint32_t>(id) - last);
      last = static_cast<uint32_t>(id);
    }
  }
  static void Visit(std::shared_ptr<const TokenMask>& mask, const worker::v1::PlanMask& message) {
    TokenMask value;
    value.vocab_size = message.vocab_size();
    value.count = message.count();
    Decode(message.words(), value.words);
    uint32_t id = 0;
    for (const uint32_t distance : message.ids()) {
      id += distance;  // wraps around: plan_check.h judges it
      value.ids.push_back(static_cast<int32_t>(id));
    }
    mask = std::make_shared<const TokenMask>(std::move(value));
  }

  template <class Value, Is<worker::v1::PlanAdmission> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(slot);
    FIELD(sampling);
    FIELD(logprob_count);
    FIELD(phase);
    FIELD(thinking);
    FIELD(draft_cap);
    FIELD(strict);
    FIELD(prompt_len);
    FIELD(length_limit);
    FIELD(stop_ids);
    FIELD(reused_len);
    FIELD(boundary_block);
    FIELD(reused_ids);
    FIELD(gate);
  }

  template <class Value, Is<worker::v1::PlanTableDelta> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(slot);
    FIELD(group);
    FIELD(first_index);
    FIELD(block_ids);
  }

  template <class Value, Is<worker::v1::PlanChunk> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(slot);
    FIELD(first_position);
    FIELD(token_ids);
    FIELD(last);
  }

  template <class Value, Is<worker::v1::PlanGivenTokens> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(slot);
    FIELD(token_ids);
  }

  // The fields of an IterationPlan, except `ranks`.
  template <class Value, Is<worker::v1::WorkerPlan> Message>
  static void VisitGroup(Value& value, Message& message) {
    FIELD(number);
    FIELD(draft_len);
    FIELD(acceptance);
    FIELD(verify_rows);
    FIELD(calibration);
    FIELD(decode_bucket);
    FIELD(prefill_rows);
    FIELD(ended_prompts);
  }

  // The fields of a RankPlan.
  template <class Value, Is<worker::v1::WorkerPlan> Message>
  static void VisitRank(Value& value, Message& message) {
    FIELD(releases);
    FIELD(dropped_images);
    FIELD(swaps_out);
    FIELD(swaps_in);
    FIELD(admissions);
    FIELD(block_table_deltas);
    FIELD(prefill_chunks);
    FIELD(live_slots);
    FIELD(given_tokens);
    FIELD(masks);
    FIELD(slot_masks);
    FIELD(first_masks);
  }

  template <class Value, Is<worker::v1::ResultLogprob> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(token_id);
    FIELD(logprob);
    COLUMN(top, token_id, top_ids);
    COLUMN(top, logprob, top_logprobs);
  }

  template <class Value, Is<worker::v1::ResultSlot> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(slot);
    FIELD(token_ids);
    FIELD(first_token);
    FIELD(length);
    FIELD(drafts_verified);
    FIELD(relaxed_count);
    FIELD(ends_in_draft);
    FIELD(finished);
    FIELD(logprobs);
    FIELD(confidences);
    FIELD(nonfinite_logits);
    FIELD(drafts);
  }

  template <class Value, Is<worker::v1::WorkerResult> Message>
  static void Visit(Value& value, Message& message) {
    FIELD(number);
    FIELD(slots);
    FIELD(prefill_seconds);
    FIELD(decode_seconds);
    FIELD(replayed);
  }

  template <class T, class Message>
  static void Encode(const T& value, Message& message) {
    Visit(value, message);
  }
  template <class T>
  static void Encode(const std::vector<T>& values, RepeatedField<T>& field) {
    field.Add(values.begin(), values.end());
  }
  template <class T, class Message>
  static void Encode(const std::vector<T>& values, RepeatedPtrField<Message>& field) {
    for (const T& value : values) Visit(value, *field.Add());
  }

  template <class Message, class T>
  static void Decode(const Message& message, T& value) {
    if constexpr (std::is_class_v<T>) {
      Visit(value, message);
    } else {
      value = static_cast<T>(message);  // a scalar or an enum
    }
  }
  template <class T>
  static void Decode(const RepeatedField<T>& field, std::vector<T>& values) {
    values.assign(field.begin(), field.end());
  }
  template <class Message, class T>
  static void Decode(const RepeatedPtrField<Message>& field, std::vector<T>& values) {
    for (const Message& message : field) Visit(values.emplace_back(), message);
  }

  template <class T, class Entry>
  static void DecodeColumn(const RepeatedField<T>& field, std::vector<Entry>& entries, T Entry::*member) {
    if (entries.empty()) entries.resize(field.size());
    CHECK_EQ(entries.size(), static_cast<size_t>(field.size()));
    for (int i = 0; i < field.size(); ++i) entries[i].*member = field[i];
  }
};

#undef FIELD
#undef COLUMN

}  // namespace

worker::v1::WorkerPlan EncodePlan(const IterationPlan& plan, int rank) {
  worker::v1::WorkerPlan message;
  Codec::VisitGroup(plan, message);
  Codec::VisitRank(plan.ranks[rank], message);
  return message;
}

IterationPlan DecodePlan(const worker::v1::WorkerPlan& message, int rank) {
  IterationPlan plan;
  Codec::VisitGroup(plan, message);
  plan.ranks.resize(std::max(plan.prefill_rows.size(), static_cast<size_t>(rank) + 1));
  Codec::VisitRank(plan.ranks[rank], message);
  return plan;
}

worker::v1::WorkerResult EncodeResult(const RankResult& result) {
  worker::v1::WorkerResult message;
  Codec::Visit(result, message);
  return message;
}

RankResult DecodeResult(const worker::v1::WorkerResult& message) {
  RankResult result;
  Codec::Visit(result, message);
  return result;
}

}  // namespace foredraft
