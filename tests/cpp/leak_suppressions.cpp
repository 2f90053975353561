// What a plugin's own compiler leaks, by the name of the function that allocates it.
extern "C" const char* __lsan_default_suppressions() {  // NOLINT: LeakSanitizer calls it so
  return "leak:xla::detail::IndexingMapAttrStorage::construct\n";
}
