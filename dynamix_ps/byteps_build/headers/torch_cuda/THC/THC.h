// Used only with a CUDA build of torch, which dropped this header: the types BytePS's torch plugin names,
// and the check macro under its present name. That it compiles tells setup.py that torch has CUDA.
#ifndef DYNAMIX_THC_H
#define DYNAMIX_THC_H

#include <c10/cuda/CUDAException.h>

struct THCudaByteTensor;
struct THCudaIntTensor;
struct THCudaLongTensor;
struct THCudaTensor;
struct THCudaDoubleTensor;

#define THCudaCheck(call) C10_CUDA_CHECK(call)

#endif  // DYNAMIX_THC_H
