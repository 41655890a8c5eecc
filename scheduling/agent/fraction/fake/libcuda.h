/* Inside the fake libcuda. */
#ifndef ALLOT_FAKE_LIBCUDA_H
#define ALLOT_FAKE_LIBCUDA_H

#include "../native/cuda_abi.h"
#include "driver.h"

#define FAKE_EXPORT __attribute__((visibility("default")))

typedef struct {
    const char *base, *symbol;
    int version, is_per_thread;
    void *function, *hidden;
} fake_row;
extern const fake_row fake_rows[];
extern const unsigned fake_num_rows;

struct CUctx_st { CUdevice device; int num_retained, is_primary, is_destroyed; };
struct CUgraph_st { uint64_t bytes; CUdevice device; };
struct CUstream_st { CUgraph graph; };

/* The graph that a stream is recording; NULL if it works. */
CUgraph fake_recording(CUstream stream);
/* Whether the device may be waited for: while a stream records, that spoils the recording. */
int fake_waited_for(void);
/* Frees what a context holds. */
void fake_empty_context(CUcontext context);
uint64_t fake_rounded(uint64_t bytes);

/* Waits while the process is locked or checkpointed, and fails as configured; begins each call. */
CUresult fake_enter(const char *function);
#define FAKE_ENTER(name)                                                                           \
    do {                                                                                           \
        CUresult failed_ = fake_enter(name);                                                       \
        if (failed_ != CUDA_SUCCESS)                                                               \
            return failed_;                                                                        \
    } while (0)

/* The devices that this process sees (CUDA_VISIBLE_DEVICES); NULL if the ordinal is none. */
const fake_device *fake_visible(CUdevice ordinal);
int fake_num_visible(void);
CUcontext fake_current(void);
const fake_device *fake_current_device(void);

/* Physical memory of a device, and host memory that stands for it. */
int fake_take(const fake_device *device, uint64_t bytes);
void fake_give(const fake_device *device, uint64_t bytes);
void *fake_back(uint64_t bytes);

#endif
