// The callbacks by which a client uses a store, called as a plugin calls them.

#include "pjrt/key_value_store.h"

#include <gtest/gtest.h>

#include <map>

#include "pjrt/error.h"

namespace torch_tpu::pjrt {
namespace {

class Map final : public KeyValueStore {
 public:
  std::string Get(const std::string& key, std::chrono::milliseconds timeout) override {
    if (auto value = TryGet(key)) return *value;
    throw Error(Code::kDeadlineExceeded, key + " after " + std::to_string(timeout.count()));
  }
  std::optional<std::string> TryGet(const std::string& key) override {
    if (key == "broken") throw std::runtime_error("no connection");
    const auto it = map_.find(key);
    return it == map_.end() ? std::nullopt : std::optional(it->second);
  }
  void Put(const std::string& key, const std::string& value) override { map_[key] = value; }

 private:
  std::map<std::string, std::string> map_;
};

// What the plugin would make an error of.
PJRT_Error_Code reported_code;
std::string reported;
PJRT_Error* Report(PJRT_Error_Code code, const char* message, size_t size) {
  reported_code = code;
  reported.assign(message, size);
  return reinterpret_cast<PJRT_Error*>(&reported);
}

struct KeyValueStoreTest : ::testing::Test {
  KeyValueStoreTest() { SetKeyValueStore(create, store); }

  template <class Args>
  Args For(const std::string& key, void* user_arg) {
    Args args{};
    args.key = key.data();
    args.key_size = key.size();
    args.callback_error = &report;
    args.user_arg = user_arg;
    return args;
  }
  PJRT_Error* Put(const std::string& key, const std::string& value) {
    auto args = For<PJRT_KeyValuePutCallback_Args>(key, create.kv_put_user_arg);
    args.value = value.data();
    args.value_size = value.size();
    return create.kv_put_callback(&args);
  }

  Map store;
  PJRT_Client_Create_Args create{};
  PJRT_CallbackError report = &Report;
};

TEST_F(KeyValueStoreTest, WhatWasPutIsThere) {
  const std::string value("a\0b", 3);
  ASSERT_EQ(Put("key", value), nullptr);
  const std::string key = "key";
  auto get = For<PJRT_KeyValueGetCallback_Args>(key, create.kv_get_user_arg);
  ASSERT_EQ(create.kv_get_callback(&get), nullptr);
  EXPECT_EQ(std::string(get.value, get.value_size), value);
  get.value_deleter_callback(get.value);
  auto again = For<PJRT_KeyValueTryGetCallback_Args>(key, create.kv_try_get_user_arg);
  ASSERT_EQ(create.kv_try_get_callback(&again), nullptr);
  EXPECT_EQ(std::string(again.value, again.value_size), value);
  again.value_deleter_callback(again.value);
}

TEST_F(KeyValueStoreTest, WhatIsNotThereIsAnError) {
  const std::string key = "absent";
  auto get = For<PJRT_KeyValueGetCallback_Args>(key, create.kv_get_user_arg);
  get.timeout_in_ms = 70;
  EXPECT_NE(create.kv_get_callback(&get), nullptr);
  EXPECT_EQ(reported_code, PJRT_Error_Code_DEADLINE_EXCEEDED);
  EXPECT_EQ(reported, "absent after 70");
  auto attempt = For<PJRT_KeyValueTryGetCallback_Args>(key, create.kv_try_get_user_arg);
  EXPECT_NE(create.kv_try_get_callback(&attempt), nullptr);
  EXPECT_EQ(reported_code, PJRT_Error_Code_NOT_FOUND);
}

TEST_F(KeyValueStoreTest, NothingIsThrownIntoThePlugin) {
  const std::string key = "broken";
  auto attempt = For<PJRT_KeyValueTryGetCallback_Args>(key, create.kv_try_get_user_arg);
  EXPECT_NE(create.kv_try_get_callback(&attempt), nullptr);
  EXPECT_EQ(reported_code, PJRT_Error_Code_UNKNOWN);
  EXPECT_EQ(reported, "no connection");
}

}  // namespace
}  // namespace torch_tpu::pjrt
