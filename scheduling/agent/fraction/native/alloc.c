/* Plain device memory. */
#include "memory.h"
#include "rules_cuda.h"

CUresult allot_init(allot_init_fn real, unsigned flags)
{
    return allot_session_get() ? real(flags) : CUDA_ERROR_SYSTEM_NOT_READY;
}

CUresult allot_mem_alloc(allot_mem_alloc_fn real, CUdeviceptr *dptr, size_t bytes)
{
    int gpu = allot_current_gpu();
    /* Without a context the driver says what is wrong. */
    if (gpu == NO_CONTEXT)
        return real(dptr, bytes);
    CUresult outcome = ALLOT_CHARGED(gpu, bytes, real(dptr, bytes));
    if (outcome == CUDA_SUCCESS)
        allot_keep((allot_thing){.kind = MEMORY, .key = *dptr, .bytes = bytes, .gpu = gpu});
    return outcome;
}

CUresult allot_mem_alloc_v1(allot_mem_alloc_v1_fn real, unsigned *dptr, unsigned bytes)
{
    int gpu = allot_current_gpu();
    if (gpu == NO_CONTEXT)
        return real(dptr, bytes);
    CUresult outcome = ALLOT_CHARGED(gpu, bytes, real(dptr, bytes));
    if (outcome == CUDA_SUCCESS)
        allot_keep((allot_thing){.kind = MEMORY, .key = *dptr, .bytes = bytes, .gpu = gpu});
    return outcome;
}

CUresult allot_mem_alloc_pitch(allot_mem_alloc_pitch_fn real, CUdeviceptr *dptr, size_t *pitch,
                               size_t width, size_t height, unsigned element)
{
    uint64_t least = (uint64_t)width * height;
    int gpu = allot_current_gpu();
    if (gpu == NO_CONTEXT || !pitch || (height && least / height != width))
        return real(dptr, pitch, width, height, element);
    CUresult outcome = ALLOT_CHARGED(gpu, least, real(dptr, pitch, width, height, element));
    if (outcome != CUDA_SUCCESS)
        return outcome;
    uint64_t bytes = (uint64_t)*pitch * height;
    if (bytes > least && !allot_take(gpu, bytes - least)) {
        ALLOT_DRIVER(cuMemFree_v2, (CUdeviceptr), *dptr);
        allot_give(gpu, least);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allot_keep((allot_thing){
        .kind = MEMORY, .key = *dptr, .bytes = bytes > least ? bytes : least, .gpu = gpu});
    return CUDA_SUCCESS;
}

CUresult allot_mem_alloc_managed(allot_mem_alloc_managed_fn real, CUdeviceptr *dptr, size_t bytes,
                                 unsigned flags)
{
    int gpu = allot_current_gpu();
    if (gpu == NO_CONTEXT)
        return real(dptr, bytes, flags);
    CUresult outcome = ALLOT_CHARGED(gpu, bytes, real(dptr, bytes, flags));
    if (outcome != CUDA_SUCCESS)
        return outcome;
    allot_flag(ALLOT_FLAG_MANAGED);
    allot_keep((allot_thing){.kind = MEMORY, .key = *dptr, .bytes = bytes, .gpu = gpu});
    return CUDA_SUCCESS;
}

/* Lost before the driver frees it: at once afterwards another thread may get the same address. */
#define FREED(dptr, call)                                                                          \
    allot_thing thing;                                                                             \
    int is_ours = allot_lose(MEMORY, dptr, &thing);                                                \
    int is_pools = !is_ours && allot_lose(FROM_POOL, dptr, &thing);                                \
    CUresult outcome = (call);                                                                     \
    if (outcome != CUDA_SUCCESS && (is_ours || is_pools))                                          \
        allot_keep(thing);                                                                         \
    else if (is_ours)                                                                              \
        allot_give(thing.gpu, thing.bytes);                                                        \
    else if (is_pools)                                                                             \
        allot_pool_freed(thing);                                                                   \
    return outcome;

CUresult allot_mem_free(allot_mem_free_fn real, CUdeviceptr dptr)
{
    FREED(dptr, real(dptr))
}

CUresult allot_mem_free_v1(allot_mem_free_v1_fn real, unsigned dptr)
{
    FREED(dptr, real(dptr))
}

CUresult allot_mem_free_async(allot_mem_free_async_fn real, CUdeviceptr dptr, CUstream stream)
{
    FREED(dptr, real(dptr, stream))
}

static CUresult flagged(unsigned flag, CUresult outcome)
{
    if (outcome == CUDA_SUCCESS)
        allot_flag(flag);
    return outcome;
}

CUresult allot_ipc_get(allot_ipc_get_fn real, void *handle, CUdeviceptr dptr)
{
    return flagged(ALLOT_FLAG_IPC, real(handle, dptr));
}

CUresult allot_ipc_open(allot_ipc_open_fn real, CUdeviceptr *dptr, CUipcMemHandle handle,
                        unsigned flags)
{
    return flagged(ALLOT_FLAG_IPC, real(dptr, handle, flags));
}

CUresult allot_import_external(allot_import_external_fn real, void **memory, const void *desc)
{
    return flagged(ALLOT_FLAG_IPC, real(memory, desc));
}

CUresult allot_ipc_open_v1(allot_ipc_open_v1_fn real, CUdeviceptr *dptr, CUipcMemHandle handle,
                           unsigned flags)
{
    return flagged(ALLOT_FLAG_IPC, real(dptr, handle, flags));
}
