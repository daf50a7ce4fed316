// The sum of one buffer per process, in place, in memory that all processes share.
//
// Memory: a control block of one page, then the buffers, each at a multiple of `stride` bytes. Every process sums its
// slice of all buffers and writes it back to all: each buffer is read once and written once, whatever their number.
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, BLOCK = 1024, LINE = 16 };  // the last two in values; a block stays in the cache

typedef struct {
    atomic_uint arrived;
    _Alignas(64) atomic_uint generation;
} Barrier;

// Waits until all processes are here. The last one wakes the others.
static void wait_for_all(Barrier *barrier, unsigned processes) {
    unsigned generation = atomic_load(&barrier->generation);
    if (atomic_fetch_add(&barrier->arrived, 1) + 1 == processes) {
        atomic_store(&barrier->arrived, 0);
        atomic_fetch_add(&barrier->generation, 1);
        syscall(SYS_futex, &barrier->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return;
    }
    while (atomic_load(&barrier->generation) == generation)
        syscall(SYS_futex, &barrier->generation, FUTEX_WAIT, generation, NULL, NULL, 0);
}

static void sum_block(char *buffers, size_t stride, size_t first, size_t values, unsigned processes) {
    float *restrict total = (float *)buffers + first;
    for (unsigned i = 1; i < processes; i++) {
        const float *restrict buffer = (const float *)(buffers + i * stride) + first;
        for (size_t j = 0; j < values; j++) total[j] += buffer[j];
    }
    for (unsigned i = 1; i < processes; i++)
        memcpy((float *)(buffers + i * stride) + first, total, values * sizeof(float));
}

// Called by all processes, each with its rank.
void sum_in_place(char *memory, size_t stride, size_t values, unsigned processes, unsigned rank) {
    Barrier *barrier = (Barrier *)memory;
    size_t slice = (values / processes + LINE) / LINE * LINE;
    size_t begin = slice * rank < values ? slice * rank : values;
    size_t end = begin + slice < values ? begin + slice : values;
    wait_for_all(barrier, processes);
    for (size_t first = begin; first < end; first += BLOCK)
        sum_block(memory + PAGE_BYTES, stride, first, end - first < BLOCK ? end - first : BLOCK, processes);
    wait_for_all(barrier, processes);
}
