/* Virtual memory management (PyTorch's expandable segments): the device comes from the request,
 * since there may be no context; memory is given back once neither handles nor mappings hold it. */
#include "memory.h"
#include "rules_cuda.h"

/* Held while memory is made and let go: the handle of what has gone may be given to the next at once,
 * which must not be taken for the old one. */
static pthread_mutex_t handles = PTHREAD_MUTEX_INITIALIZER;

static void forget(void) { pthread_mutex_init(&handles, NULL); }

__attribute__((constructor)) static void watch(void) { allot_session_on_fork(forget); }

CUresult allot_mem_create(allot_mem_create_fn real, CUmemGenericAllocationHandle *handle,
                          size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    if (!prop || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return real(handle, bytes, prop, flags);
    int gpu = allot_gpu_of(prop->location.id);
    if (!allot_take(gpu, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&handles);
    CUresult outcome = real(handle, bytes, prop, flags);
    if (outcome == CUDA_SUCCESS)
        allot_keep((allot_thing){.kind = VMM_HANDLE, .key = *handle, .bytes = bytes, .gpu = gpu,
                                 .num_references = 1});
    pthread_mutex_unlock(&handles);
    if (outcome != CUDA_SUCCESS)
        allot_give(gpu, bytes);
    else if (prop->requestedHandleTypes)
        allot_flag(ALLOT_FLAG_EXPORTABLE);
    return outcome;
}

static void counted(uint64_t handle, int references, int mappings)
{
    allot_thing thing;
    if (allot_count(handle, references, mappings, &thing))
        allot_give(thing.gpu, thing.bytes);
}

CUresult allot_mem_release(allot_mem_release_fn real, CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&handles);
    CUresult outcome = real(handle);
    if (outcome == CUDA_SUCCESS)
        counted(handle, -1, 0);
    pthread_mutex_unlock(&handles);
    return outcome;
}

CUresult allot_mem_map(allot_mem_map_fn real, CUdeviceptr ptr, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    counted(handle, 0, 1);
    CUresult outcome = real(ptr, bytes, offset, handle, flags);
    if (outcome == CUDA_SUCCESS)
        allot_keep((allot_thing){.kind = VMM_MAPPING, .key = ptr, .bytes = bytes, .other = handle});
    else
        counted(handle, 0, -1);
    return outcome;
}

CUresult allot_mem_unmap(allot_mem_unmap_fn real, CUdeviceptr ptr, size_t bytes)
{
    allot_thing thing;
    pthread_mutex_lock(&handles);
    CUresult outcome = real(ptr, bytes);
    while (outcome == CUDA_SUCCESS && allot_lose_mapping(ptr, bytes, &thing))
        counted(thing.other, 0, -1);
    pthread_mutex_unlock(&handles);
    return outcome;
}

CUresult allot_mem_retain(allot_mem_retain_fn real, CUmemGenericAllocationHandle *handle,
                          void *address)
{
    allot_thing thing;
    CUresult outcome = real(handle, address);
    /* The driver gives the handle that it gave before. */
    if (outcome == CUDA_SUCCESS && allot_find_mapping((uint64_t)(uintptr_t)address, &thing))
        counted(*handle, 1, 0);
    return outcome;
}

CUresult allot_mem_import(allot_mem_import_fn real, CUmemGenericAllocationHandle *handle,
                          void *os_handle, int type)
{
    CUresult outcome = real(handle, os_handle, type);
    if (outcome == CUDA_SUCCESS)
        allot_flag(ALLOT_FLAG_EXPORTABLE);
    return outcome;
}
