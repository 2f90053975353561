// What a plugin's own compiler leaks, by the name of the function that allocates it. The sanitizer
// looks this function up, so it is visible whatever the build's default.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions();

const char* __lsan_default_suppressions() {
  return "leak:xla::detail::IndexingMapAttrStorage::construct\n";
}
