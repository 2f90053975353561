#include <Python.h>
#include <frameobject.h>
#include <torch/csrc/Exceptions.h>

#include <string>
#include <string_view>
#include <vector>

#include "python/hooks.h"

namespace torch_tpu::python {
namespace {

// The directory of a loaded package, or "" if it is not loaded.
std::string DirectoryOf(const char* package) {
  std::string directory;
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* module = modules != nullptr ? PyDict_GetItemString(modules, package) : nullptr;
  PyObject* file = module != nullptr ? PyObject_GetAttrString(module, "__file__") : nullptr;
  if (file != nullptr && PyUnicode_Check(file)) {
    if (const char* text = PyUnicode_AsUTF8(file)) directory = text;
    directory.resize(directory.rfind('/') + 1);
  }
  Py_XDECREF(file);
  PyErr_Clear();
  return directory;
}

// Frames of PyTorch, of this package and of frozen modules are not where the user's mistake is.
bool IsUserFile(std::string_view file) {
  static const auto* others =
      new std::vector<std::string>{DirectoryOf("torch"), DirectoryOf("torch_tpu"), "<frozen"};
  for (const std::string& prefix : *others) {
    if (!prefix.empty() && file.rfind(prefix, 0) == 0) return false;
  }
  return true;
}

}  // namespace

std::string SourceLine() {
  if (!Py_IsInitialized()) return "";
  const PyGILState_STATE gil = PyGILState_Ensure();
  std::string line, innermost;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr && line.empty()) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (const char* file = PyUnicode_AsUTF8(code->co_filename)) {
      std::string here = std::string(file) + ":" + std::to_string(PyFrame_GetLineNumber(frame));
      if (IsUserFile(file)) line = here;
      if (innermost.empty()) innermost = std::move(here);
    } else {
      PyErr_Clear();
    }
    Py_DECREF(code);
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  PyGILState_Release(gil);
  return line.empty() ? innermost : line;
}

void Warn(const std::string& message) {
  if (!Py_IsInitialized()) return;
  const PyGILState_STATE gil = PyGILState_Ensure();
  const bool raised = PyErr_WarnEx(PyExc_UserWarning, message.c_str(), 1) != 0;
  python_error error;  // warnings may be errors (python -W error)
  if (raised) error.persist();
  PyGILState_Release(gil);
  if (raised) throw std::move(error);
}

}  // namespace torch_tpu::python
