// Stand-in for the CUDA runtime on machines without a GPU: every call works on host memory.
//
// BytePS calls these functions even when all tensors live in host memory. With one process per worker
// a "device" pointer is the host pointer itself, a copy is memcpy, and streams and events have nothing
// to wait for. Asking for any device but number 0 is refused.
#ifndef DYNAMIX_CUDA_STAND_IN_H
#define DYNAMIX_CUDA_STAND_IN_H

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

enum cudaError {
  cudaSuccess = 0,
  cudaErrorCudartUnloading = 4,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600,
};
typedef enum cudaError cudaError_t;
typedef void* cudaStream_t;
typedef void* cudaEvent_t;

enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaStreamNonBlocking = 1, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaHostRegisterDefault = 0, cudaHostRegisterMapped = 2 };

inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidDevice:
      return "this BytePS was built without CUDA: one process per worker is all it can do (got more than one "
             "device; set NVIDIA_VISIBLE_DEVICES=0 and BYTEPS_LOCAL_SIZE=1, or rebuild with --cuda)";
    default:
      return "error of the stand-in for CUDA";
  }
}

inline cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
inline cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
inline cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  return *device = host, cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  if (to != from) memcpy(to, from, size);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, size, kind);
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return *stream = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return *stream = nullptr, cudaSuccess;
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  return *greatest = 0, cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = nullptr, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

#endif  // DYNAMIX_CUDA_STAND_IN_H
