#pragma once

#include <string>

namespace foredraft {

struct SynthVocabulary {
  int size = 0;
  int bos_id = -1;  // -1: none
  int eos_id = -1;  // -1: none
};

// A tokenizer.json for a random checkpoint: one token per byte, and the chat markup, as far as the vocabulary
// has room.
std::string SynthTokenizerJson(const SynthVocabulary& vocabulary);

}  // namespace foredraft
