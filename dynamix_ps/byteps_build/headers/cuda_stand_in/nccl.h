// Stand-in for NCCL on machines without a GPU: a group of one process, in which no collective carries data.
// A larger group is refused when it is formed.
#ifndef DYNAMIX_NCCL_STAND_IN_H
#define DYNAMIX_NCCL_STAND_IN_H

#include "cuda_runtime.h"

typedef enum { ncclSuccess = 0, ncclInvalidUsage = 5 } ncclResult_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
typedef enum {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
} ncclDataType_t;
typedef void* ncclComm_t;
typedef struct {
  char internal[128];
} ncclUniqueId;

inline const char* ncclGetErrorString(ncclResult_t) {
  return "this BytePS was built without NCCL: one process per worker is all it can do (set "
         "NVIDIA_VISIBLE_DEVICES=0 and BYTEPS_LOCAL_SIZE=1, or rebuild with --cuda)";
}
inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return memset(id, 0, sizeof(*id)), ncclSuccess; }
inline ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId, int) {
  return *comm = nullptr, size == 1 ? ncclSuccess : ncclInvalidUsage;
}
inline ncclResult_t ncclGroupStart() { return ncclSuccess; }
inline ncclResult_t ncclGroupEnd() { return ncclSuccess; }

inline ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                      cudaStream_t) {
  return ncclInvalidUsage;
}
inline ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
                               cudaStream_t) {
  return ncclInvalidUsage;
}
inline ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}
inline ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclInvalidUsage;
}

#endif  // DYNAMIX_NCCL_STAND_IN_H
