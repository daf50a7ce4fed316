// Force-included into BytePS's torch plugin. Its sources compare TORCH_VERSION with numbers (2013000000
// for 2.13.0), while torch defines it as a string; and they rely on headers torch no longer includes.
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/version.h>

#undef TORCH_VERSION
#define TORCH_VERSION (TORCH_VERSION_MAJOR * 1000000000LL + TORCH_VERSION_MINOR * 1000000LL + TORCH_VERSION_PATCH * 1000LL)
