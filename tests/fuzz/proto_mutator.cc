// libFuzzer's hooks for targets of proto_input.h: a mutation changes one field, element or value of a
// message, so that what comes out is a message again. Strings stay UTF-8, as gRPC refuses others before a
// service sees them.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "server/text/utf8.h"
#include "tests/fuzz/proto_input.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace foredraft {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kMostGrowth = 64;  // bytes that one mutation adds to a string
constexpr int kMostElements = 512;

class ProtoMutator {
 public:
  explicit ProtoMutator(uint32_t seed) : random_(seed) {}

  void Mutate(Message& root);
  // Takes about half of the fields of `other` into `message`, which has the same type.
  void Cross(const Message& other, Message& message);
  bool OneIn(int count) { return Below(count) == 0; }
  int Below(int count) { return static_cast<int>(random_() % static_cast<uint32_t>(count)); }

 private:
  void Collect(Message& message, std::vector<Message*>& all);
  void MutateRepeated(Message& message, const FieldDescriptor* field);
  void MutateSingular(Message& message, const FieldDescriptor* field);
  void AddElement(Message& message, const FieldDescriptor* field);
  void MutateElement(Message& message, const FieldDescriptor* field, int index);
  template <class T>
  T Integer(T value);
  template <class T>
  T Real(T value);
  std::string Text(std::string value, bool is_bytes);

  std::mt19937 random_;
};

void ProtoMutator::Collect(Message& message, std::vector<Message*>& all) {
  all.push_back(&message);
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      Collect(*reflection.MutableMessage(&message, field), all);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      Collect(*reflection.MutableRepeatedMessage(&message, field, i), all);
    }
  }
}

void ProtoMutator::Mutate(Message& root) {
  std::vector<Message*> all;
  Collect(root, all);
  // The root has most of the fields.
  Message& message = OneIn(2) ? root : *all[Below(static_cast<int>(all.size()))];
  const auto* type = message.GetDescriptor();
  if (type->field_count() == 0) return;
  const FieldDescriptor* field = type->field(Below(type->field_count()));
  field->is_repeated() ? MutateRepeated(message, field) : MutateSingular(message, field);
}

void ProtoMutator::MutateRepeated(Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  const int size = reflection.FieldSize(message, field);
  const int choice = size == 0 ? 0 : Below(8);
  if (choice <= 1) return AddElement(message, field);
  if (choice <= 4) return MutateElement(message, field, Below(size));
  if (choice == 5) return reflection.SwapElements(&message, field, Below(size), Below(size));
  if (choice == 6) {
    reflection.SwapElements(&message, field, Below(size), size - 1);
    return reflection.RemoveLast(&message, field);
  }
  for (int count = std::min(size, kMostElements - size); count > 0; --count) AddElement(message, field);
}

void ProtoMutator::AddElement(Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.AddInt32(&message, field, Integer<int32_t>(0));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.AddInt64(&message, field, Integer<int64_t>(0));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.AddUInt32(&message, field, Integer<uint32_t>(0));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.AddUInt64(&message, field, Integer<uint64_t>(0));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.AddDouble(&message, field, Real<double>(0));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.AddFloat(&message, field, Real<float>(0));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.AddBool(&message, field, OneIn(2));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.AddEnumValue(&message, field, Below(5));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.AddString(&message, field, Text("", field->type() == FieldDescriptor::TYPE_BYTES));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      reflection.AddMessage(&message, field);
  }
}

void ProtoMutator::MutateElement(Message& message, const FieldDescriptor* field, int index) {
  const Reflection& reflection = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetRepeatedInt32(&message, field, index,
                                         Integer(reflection.GetRepeatedInt32(message, field, index)));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetRepeatedInt64(&message, field, index,
                                         Integer(reflection.GetRepeatedInt64(message, field, index)));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetRepeatedUInt32(&message, field, index,
                                          Integer(reflection.GetRepeatedUInt32(message, field, index)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetRepeatedUInt64(&message, field, index,
                                          Integer(reflection.GetRepeatedUInt64(message, field, index)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetRepeatedDouble(&message, field, index,
                                          Real(reflection.GetRepeatedDouble(message, field, index)));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetRepeatedFloat(&message, field, index,
                                         Real(reflection.GetRepeatedFloat(message, field, index)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetRepeatedBool(&message, field, index, OneIn(2));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetRepeatedEnumValue(&message, field, index, Below(5));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetRepeatedString(&message, field, index,
                                          Text(reflection.GetRepeatedString(message, field, index),
                                               field->type() == FieldDescriptor::TYPE_BYTES));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      Mutate(*reflection.MutableRepeatedMessage(&message, field, index));
  }
}

void ProtoMutator::MutateSingular(Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  if (OneIn(5)) return reflection.ClearField(&message, field);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(&message, field, Integer(reflection.GetInt32(message, field)));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetInt64(&message, field, Integer(reflection.GetInt64(message, field)));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(&message, field, Integer(reflection.GetUInt32(message, field)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(&message, field, Integer(reflection.GetUInt64(message, field)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetDouble(&message, field, Real(reflection.GetDouble(message, field)));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetFloat(&message, field, Real(reflection.GetFloat(message, field)));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(&message, field, OneIn(2));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnumValue(&message, field, Below(5));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(
          &message, field,
          Text(reflection.GetString(message, field), field->type() == FieldDescriptor::TYPE_BYTES));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      Mutate(*reflection.MutableMessage(&message, field));
  }
}

template <class T>
T ProtoMutator::Integer(T value) {
  switch (Below(6)) {
    case 0:
      return static_cast<T>(Below(32));
    case 1:
      return static_cast<T>(Below(600));  // ids of abacus' vocabulary, and some beyond
    case 2: {
      const T limits[] = {std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), static_cast<T>(-1),
                          static_cast<T>(std::numeric_limits<int32_t>::max()),
                          static_cast<T>(uint64_t{1} << 31)};
      return limits[Below(std::size(limits))];
    }
    case 3:
      return static_cast<T>(value ^ static_cast<T>(T{1} << Below(8 * sizeof(T) - 1)));
    case 4:
      return static_cast<T>(static_cast<uint64_t>(value) + Below(9) - 4);
    default:
      return static_cast<T>(uint64_t{random_()} << 32 | random_());
  }
}

template <class T>
T ProtoMutator::Real(T value) {
  switch (Below(5)) {
    case 0: {
      const T special[] = {0,
                           T(-0.0),
                           1,
                           2,
                           -2,
                           100,
                           std::numeric_limits<T>::infinity(),
                           std::numeric_limits<T>::quiet_NaN(),
                           std::numeric_limits<T>::denorm_min(),
                           std::numeric_limits<T>::max(),
                           std::numeric_limits<T>::lowest()};
      return special[Below(std::size(special))];
    }
    case 1:
      return static_cast<T>(Below(1001)) / 1000;
    case 2:
      return -value;
    case 3:
      return value * 2;
    default:
      return static_cast<T>(Below(4001) - 2000) / 10;
  }
}

std::string ProtoMutator::Text(std::string value, bool is_bytes) {
  const size_t most = value.size() + kMostGrowth;
  std::vector<uint8_t> buffer(most);
  std::memcpy(buffer.data(), value.data(), value.size());
  const size_t size = LLVMFuzzerMutate(buffer.data(), value.size(), most);
  value.assign(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(size));
  if (is_bytes) return value;
  Utf8Repair repair;
  std::string text = repair.Append(value);
  return text + repair.Flush();
}

void ProtoMutator::Cross(const Message& other, Message& message) {
  const std::unique_ptr<Message> part(other.New());
  part->CopyFrom(other);
  std::vector<const FieldDescriptor*> fields;
  other.GetReflection()->ListFields(other, &fields);
  for (const FieldDescriptor* field : fields) {
    if (OneIn(2)) {
      part->GetReflection()->ClearField(part.get(), field);
    } else if (OneIn(2)) {
      message.GetReflection()->ClearField(&message, field);
    }
  }
  message.MergeFrom(*part);
}

size_t Store(const Message& message, size_t old_size, uint8_t* data, size_t max_size) {
  const std::string text = PrintProtoInput(message);
  if (text.size() > max_size) return old_size;
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace
}  // namespace foredraft

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  foredraft::ProtoMutator mutator(seed);
  auto message = foredraft::ParseProtoInput({reinterpret_cast<const char*>(data), size});
  if (message == nullptr || mutator.OneIn(200)) {
    const auto& types = foredraft::FuzzedMessages();
    message.reset(types[mutator.Below(static_cast<int>(types.size()))]->New());
  }
  for (int count = 1 + mutator.Below(4); count > 0; --count) mutator.Mutate(*message);
  return foredraft::Store(*message, size, data, max_size);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data1, size_t size1, const uint8_t* data2,
                                            size_t size2, uint8_t* out, size_t max_out_size,
                                            unsigned int seed) {
  foredraft::ProtoMutator mutator(seed);
  const auto message = foredraft::ParseProtoInput({reinterpret_cast<const char*>(data1), size1});
  const auto other = foredraft::ParseProtoInput({reinterpret_cast<const char*>(data2), size2});
  if (message == nullptr || other == nullptr || message->GetDescriptor() != other->GetDescriptor()) return 0;
  mutator.Cross(*other, *message);
  return foredraft::Store(*message, 0, out, max_out_size);
}
