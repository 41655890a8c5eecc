/* What this process holds, and of which device: shared by all rules of allocation. */
#ifndef ALLOT_MEMORY_H
#define ALLOT_MEMORY_H

#include "cuda_abi.h"
#include "hooks.h"

enum { NO_CONTEXT = -1, NO_LIMIT = -2 };

/* Place in the limits of a device, or of the current one; or one of the two above. */
int allot_gpu_of(CUdevice device);
int allot_current_gpu(void);

/* Takes bytes of a device; on a miss the pools give back what they keep, and it is tried again. */
int allot_take(int gpu, uint64_t bytes);
/* The same for a context itself. */
int allot_reserve(int gpu, uint64_t bytes);
void allot_give(int gpu, uint64_t bytes);
/* Notes what rules Swap out while this process lives; once the call that did it went well. */
void allot_flag(unsigned flag);

/* Things that this process has by a key of their kind. */
enum { MEMORY = 1, FROM_POOL, VMM_HANDLE, VMM_MAPPING, ARRAY, MIPMAPPED, CONTEXT, GRAPH, GRAPH_EXEC };
typedef struct {
    uint64_t key, bytes, other; /* other: the pool's number, or the handle that is mapped */
    CUcontext context;
    int kind, gpu;
    int num_references, num_mappings;
} allot_thing;

void allot_keep(allot_thing thing);
/* Takes it out; whether it was there. */
int allot_lose(int kind, uint64_t key, allot_thing *thing);
/* Looks at it; whether it is there. */
int allot_find(int kind, uint64_t key, allot_thing *thing);
/* Changes counts of a handle; takes it out and fills `thing` once both are 0. Whether it did. */
int allot_count(uint64_t key, int references, int mappings, allot_thing *thing);
/* The mapping that begins at or covers an address; whether there is one. */
int allot_find_mapping(uint64_t address, allot_thing *thing);
/* Any mapping inside [start, start + bytes), taken out. */
int allot_lose_mapping(uint64_t start, uint64_t bytes, allot_thing *thing);
/* Gives back all that a context held. */
void allot_forget_context(CUcontext context);

/* contexts.c: brings what is charged for this process's contexts to what the agent has measured. */
void allot_contexts_settle(int gpu);

/* pools.c: brings what is charged for pools to what the driver says. */
void allot_pools_settle(int gpu);
void allot_pools_trim(int gpu);
/* What was taken of a pool, by the pool's number, is free again. */
void allot_pool_freed(allot_thing thing);

/* graphs.c: the same for the memory of graphs. */
void allot_graphs_settle(int gpu);
void allot_graphs_trim(int gpu);
/* An allocation that a stream only records: its graph takes the memory when it is launched. */
CUresult allot_graph_captured(CUstream stream, CUdevice device, uint64_t bytes);

/* Runs the real call between taking and, should it fail, giving back. */
#define ALLOT_CHARGED(gpu, bytes, call)                                                            \
    ({                                                                                             \
        CUresult outcome_ = CUDA_ERROR_OUT_OF_MEMORY;                                              \
        if (allot_take(gpu, bytes)) {                                                              \
            outcome_ = (call);                                                                     \
            if (outcome_ != CUDA_SUCCESS)                                                          \
                allot_give(gpu, bytes);                                                            \
        }                                                                                          \
        outcome_;                                                                                  \
    })

#endif
