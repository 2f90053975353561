#include "pjrt/key_value_store.h"

#include <cstring>

#include "pjrt/error.h"

namespace torch_tpu::pjrt {
namespace {

KeyValueStore& StoreOf(void* user_arg) { return *static_cast<KeyValueStore*>(user_arg); }

// Runs `body`, and makes what it throws an error of the plugin's own.
template <class Body>
PJRT_Error* Reporting(PJRT_CallbackError* make_error, Body body) {
  const auto report = [&](Code code, const char* message) {
    return (*make_error)(static_cast<PJRT_Error_Code>(code), message, std::strlen(message));
  };
  try {
    body();
    return nullptr;
  } catch (const Error& error) {
    return report(error.code(), error.what());
  } catch (const std::exception& error) {
    return report(Code::kUnknown, error.what());
  }
}

void Delete(char* value) { delete[] value; }

// For the plugin, which gives it back to Delete.
template <class Args>
void Return(Args& args, const std::string& value) {
  args.value = new char[value.size()];
  std::memcpy(args.value, value.data(), value.size());
  args.value_size = value.size();
  args.value_deleter_callback = &Delete;
}

PJRT_Error* Get(PJRT_KeyValueGetCallback_Args* args) {
  return Reporting(args->callback_error, [&] {
    const std::string key(args->key, args->key_size);
    Return(*args, StoreOf(args->user_arg).Get(key, std::chrono::milliseconds(args->timeout_in_ms)));
  });
}

PJRT_Error* TryGet(PJRT_KeyValueTryGetCallback_Args* args) {
  return Reporting(args->callback_error, [&] {
    const std::string key(args->key, args->key_size);
    const auto value = StoreOf(args->user_arg).TryGet(key);
    if (!value) throw Error(Code::kNotFound, "there is no key " + key);
    Return(*args, *value);
  });
}

PJRT_Error* Put(PJRT_KeyValuePutCallback_Args* args) {
  return Reporting(args->callback_error, [&] {
    StoreOf(args->user_arg)
        .Put(std::string(args->key, args->key_size), std::string(args->value, args->value_size));
  });
}

}  // namespace

void SetKeyValueStore(PJRT_Client_Create_Args& args, KeyValueStore& store) {
  args.kv_get_callback = &Get;
  args.kv_get_user_arg = &store;
  args.kv_put_callback = &Put;
  args.kv_put_user_arg = &store;
  args.kv_try_get_callback = &TryGet;
  args.kv_try_get_user_arg = &store;
}

}  // namespace torch_tpu::pjrt
