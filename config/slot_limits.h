#pragma once

// How much a request may ask of its slot: sizes of the device's arrays, which requests, plans and results
// keep to.

namespace foredraft {

inline constexpr int kMaxDraftLen = 7;
inline constexpr int kMaxStopIds = 64;
inline constexpr int kMaxLogprobs = 20;   // of the most probable tokens, besides the chosen token's
inline constexpr int kMaxTriggerIds = 3;  // of a constraint
// Tokens that end a thought whose budget is spent: a text, and the token that ends the thinking phase.
inline constexpr int kMaxThoughtEndIds = 32;

}  // namespace foredraft
