// torch dropped its C tensors; BytePS's torch plugin only names their types in declarations it never uses.
#ifndef DYNAMIX_TH_H
#define DYNAMIX_TH_H

struct THByteTensor;
struct THIntTensor;
struct THLongTensor;
struct THHalfTensor;
struct THFloatTensor;
struct THDoubleTensor;

#endif  // DYNAMIX_TH_H
