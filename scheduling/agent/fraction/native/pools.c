/* Memory pools keep memory beyond what was asked for, so they are charged with what the driver says
 * that they have reserved, after each call that may change it. */
#include "memory.h"
#include "rules_cuda.h"

#include <stdlib.h>

typedef struct {
    CUmemoryPool pool;
    uint64_t number; /* handles are used again, numbers are not */
    CUdevice device;
    int gpu; /* < 0: memory of the host, or another process's: not charged */
    uint64_t charged, held; /* held: handed out of it */
} pool;

/* Held over calls that take memory: what one took must not be reckoned to another's call as well,
 * and only who asks before and after knows what it was. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pool *pools;
static int num_pools, room;
static uint64_t last_number;

static void forget(void)
{
    /* The memory is left alone: the heap of a forked process may be locked. */
    pools = NULL;
    num_pools = room = 0;
    pthread_mutex_init(&mutex, NULL);
}

__attribute__((constructor)) static void watch(void) { allot_session_on_fork(forget); }

static pool *known(CUmemoryPool handle)
{
    for (int i = 0; i < num_pools; i++)
        if (pools[i].pool == handle)
            return &pools[i];
    return NULL;
}

static pool *append(pool added)
{
    if (num_pools == room) {
        pool *more = realloc(pools, (size_t)(room ? 2 * room : 16) * sizeof *pools);
        if (!more)
            return NULL;
        pools = more;
        room = room ? 2 * room : 16;
    }
    pools[num_pools] = added;
    return &pools[num_pools++];
}

static pool *remember(CUmemoryPool handle, CUdevice device, int gpu)
{
    pool *found = known(handle);
    return found ? found
                 : append((pool){
                       .pool = handle, .number = ++last_number, .device = device, .gpu = gpu});
}

static void note(CUmemoryPool handle, CUdevice device, int gpu)
{
    pthread_mutex_lock(&mutex);
    remember(handle, device, gpu);
    pthread_mutex_unlock(&mutex);
}

/* What it takes of the device; drivers of before CUDA 11.3 do not tell. */
static uint64_t reserved(const pool *own)
{
    uint64_t bytes = own->held;
    ALLOT_DRIVER(cuMemPoolGetAttribute, (CUmemoryPool, int, void *), own->pool,
                 CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    return bytes;
}

static void settle(pool *found)
{
    if (!found || found->gpu < 0)
        return;
    uint64_t actual = reserved(found);
    if (actual == found->charged)
        return;
    allot_session *session = allot_session_get();
    if (session && actual > found->charged)
        allot_account_add(&session->account, (unsigned)found->gpu, actual - found->charged);
    else
        allot_give(found->gpu, found->charged - actual);
    found->charged = actual;
}

void allot_pools_settle(int gpu)
{
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < num_pools; i++)
        if (pools[i].gpu == gpu)
            settle(&pools[i]);
    pthread_mutex_unlock(&mutex);
}

static void trim(int gpu)
{
    for (int i = 0; i < num_pools; i++)
        if (pools[i].gpu == gpu) {
            ALLOT_DRIVER(cuMemPoolTrimTo, (CUmemoryPool, size_t), pools[i].pool, 0);
            settle(&pools[i]);
        }
}

void allot_pools_trim(int gpu)
{
    pthread_mutex_lock(&mutex);
    trim(gpu);
    pthread_mutex_unlock(&mutex);
}

void allot_pool_freed(allot_thing thing)
{
    int is_there = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < num_pools && !is_there; i++)
        if (pools[i].number == thing.other) {
            is_there = 1;
            pools[i].held -= thing.bytes;
            settle(&pools[i]);
        }
    pthread_mutex_unlock(&mutex);
    /* Its pool was destroyed before: what is handed out stays until it is freed. */
    if (!is_there)
        allot_give(thing.gpu, thing.bytes);
}

/* Charges a call before it is made, as allot_take() does. Its pool; NULL if there is no room. */
static pool *begin(CUmemoryPool handle, CUdevice device, int gpu, uint64_t bytes)
{
    allot_session *session = allot_session_get();
    if (!session || gpu < 0)
        return NULL;
    uint64_t limit = session->limits->gpus[gpu].bytes;
    if (!allot_account_reserve(&session->account, (unsigned)gpu, bytes, limit)) {
        if (bytes > limit)
            return NULL;
        trim(gpu);
        allot_graphs_trim(gpu);
        if (!allot_account_reserve(&session->account, (unsigned)gpu, bytes, limit))
            return NULL;
    }
    pool *found = remember(handle, device, gpu);
    if (found)
        found->charged += bytes;
    else
        allot_give(gpu, bytes);
    return found;
}

/* What the call took of the pool is known only afterwards. Whether it is within the limit. */
static int end(pool *found, uint64_t bytes, CUresult outcome)
{
    if (outcome == CUDA_SUCCESS) {
        allot_session *session = allot_session_get();
        found->held += bytes;
        uint64_t actual = reserved(found);
        if (actual == found->charged)
            return 1;
        if (actual > found->charged) {
            if (!session || !allot_account_reserve(&session->account, (unsigned)found->gpu,
                                                   actual - found->charged,
                                                   session->limits->gpus[found->gpu].bytes))
                return 0;
            found->charged = actual;
        }
    }
    settle(found);
    return 1;
}

/* The call made and charged; too much is undone. The contexts' mutex comes before ours. */
#define FROM(handle, device, gpu, call)                                                            \
    allot_contexts_settle(gpu);                                                                    \
    pthread_mutex_lock(&mutex);                                                                    \
    pool *own = begin(handle, device, gpu, bytes);                                                 \
    CUresult outcome = own ? (call) : CUDA_ERROR_OUT_OF_MEMORY;                                    \
    int is_within = !own || end(own, bytes, outcome);                                              \
    allot_thing thing = {                                                                          \
        .kind = FROM_POOL, .bytes = bytes, .gpu = gpu, .other = own ? own->number : 0};            \
    pthread_mutex_unlock(&mutex);                                                                  \
    if (outcome != CUDA_SUCCESS)                                                                   \
        return outcome;                                                                            \
    thing.key = *dptr;                                                                             \
    if (!is_within)                                                                                \
        return undo(handle, thing, stream);                                                        \
    allot_keep(thing);                                                                             \
    return CUDA_SUCCESS;

static CUresult undo(CUmemoryPool handle, allot_thing thing, CUstream stream)
{
    ALLOT_DRIVER(cuMemFreeAsync, (CUdeviceptr, CUstream), thing.key, stream);
    ALLOT_DRIVER(cuStreamSynchronize, (CUstream), stream);
    ALLOT_DRIVER(cuMemPoolTrimTo, (CUmemoryPool, size_t), handle, 0);
    allot_pool_freed(thing);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static int is_recorded(CUstream stream) { return allot_may_capture() && allot_is_capturing(stream); }

CUresult allot_mem_alloc_async(allot_mem_alloc_async_fn real, CUdeviceptr *dptr, size_t bytes,
                               CUstream stream)
{
    CUmemoryPool handle = NULL;
    CUdevice device = 0;
    if (ALLOT_DRIVER(cuCtxGetDevice, (CUdevice *), &device) != CUDA_SUCCESS)
        return real(dptr, bytes, stream);
    if (is_recorded(stream)) {
        CUresult noted = allot_graph_captured(stream, device, bytes);
        return noted ? noted : real(dptr, bytes, stream);
    }
    ALLOT_DRIVER(cuDeviceGetMemPool, (CUmemoryPool *, CUdevice), &handle, device);
    int gpu = allot_gpu_of(device);
    FROM(handle, device, gpu, real(dptr, bytes, stream))
}

CUresult allot_mem_alloc_pool(allot_mem_alloc_pool_fn real, CUdeviceptr *dptr, size_t bytes,
                              CUmemoryPool handle, CUstream stream)
{
    CUdevice device = 0;
    int is_current = ALLOT_DRIVER(cuCtxGetDevice, (CUdevice *), &device) == CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    pool *found = known(handle);
    int gpu = found ? found->gpu : NO_CONTEXT;
    device = found ? found->device : device;
    pthread_mutex_unlock(&mutex);
    if (!found && is_current)
        gpu = allot_gpu_of(device);
    if (gpu == NO_CONTEXT)
        return real(dptr, bytes, handle, stream);
    if (is_recorded(stream)) {
        CUresult noted = allot_graph_captured(stream, device, bytes);
        return noted ? noted : real(dptr, bytes, handle, stream);
    }
    FROM(handle, device, gpu, real(dptr, bytes, handle, stream))
}

/* Where a pool's memory lies: a place in the limits; NO_CONTEXT if that is no device. */
static int place_of(const CUmemLocation *location)
{
    return location && location->type == CU_MEM_LOCATION_TYPE_DEVICE ? allot_gpu_of(location->id)
                                                                     : NO_CONTEXT;
}

CUresult allot_pool_create(allot_pool_create_fn real, CUmemoryPool *handle,
                           const CUmemPoolProps *props)
{
    CUresult outcome = real(handle, props);
    if (outcome != CUDA_SUCCESS)
        return outcome;
    int gpu = props ? place_of(&props->location) : NO_CONTEXT;
    if (gpu != NO_CONTEXT && props->handleTypes)
        allot_flag(ALLOT_FLAG_EXPORTABLE);
    if (props && props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
        allot_flag(ALLOT_FLAG_MANAGED);
    note(*handle, props ? props->location.id : 0, gpu);
    return outcome;
}

/* A device's own pools: memory is taken of them whatever device is current. */
CUresult allot_pool_get(allot_pool_get_fn real, CUmemoryPool *handle, CUdevice device)
{
    CUresult outcome = real(handle, device);
    if (outcome == CUDA_SUCCESS)
        note(*handle, device, allot_gpu_of(device));
    return outcome;
}

CUresult allot_pool_get_at(allot_pool_get_at_fn real, CUmemoryPool *handle, CUmemLocation *location,
                           int type)
{
    CUresult outcome = real(handle, location, type);
    if (outcome != CUDA_SUCCESS)
        return outcome;
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        allot_flag(ALLOT_FLAG_MANAGED);
    note(*handle, location ? location->id : 0, place_of(location));
    return outcome;
}

/* Another process's pool: that one is charged. */
CUresult allot_pool_import(allot_pool_import_fn real, CUmemoryPool *handle, void *os_handle,
                           int type, unsigned long long flags)
{
    CUresult outcome = real(handle, os_handle, type, flags);
    if (outcome != CUDA_SUCCESS)
        return outcome;
    allot_flag(ALLOT_FLAG_EXPORTABLE);
    note(*handle, 0, NO_CONTEXT);
    return outcome;
}

CUresult allot_pool_destroy(allot_pool_destroy_fn real, CUmemoryPool handle)
{
    pool gone = {.gpu = NO_CONTEXT};
    /* Out of the list first: the next pool may get the same handle at once. */
    pthread_mutex_lock(&mutex);
    pool *found = known(handle);
    if (found) {
        gone = *found;
        *found = pools[--num_pools];
    }
    pthread_mutex_unlock(&mutex);
    CUresult outcome = real(handle);
    if (!gone.number)
        return outcome;
    if (outcome != CUDA_SUCCESS) {
        pthread_mutex_lock(&mutex);
        append(gone);
        pthread_mutex_unlock(&mutex);
    } else if (gone.charged > gone.held) {
        allot_give(gone.gpu, gone.charged - gone.held);
    }
    return outcome;
}

#define SETTLED(handle, call)                                                                      \
    CUresult outcome = (call);                                                                     \
    pthread_mutex_lock(&mutex);                                                                    \
    settle(known(handle));                                                                         \
    pthread_mutex_unlock(&mutex);                                                                  \
    return outcome;

CUresult allot_pool_trim(allot_pool_trim_fn real, CUmemoryPool handle, size_t bytes)
{
    SETTLED(handle, real(handle, bytes))
}

CUresult allot_pool_set(allot_pool_set_fn real, CUmemoryPool handle, int attribute, void *value)
{
    SETTLED(handle, real(handle, attribute, value))
}

CUresult allot_device_set_pool(allot_device_set_pool_fn real, CUdevice device, CUmemoryPool handle)
{
    CUresult outcome = real(device, handle);
    pthread_mutex_lock(&mutex);
    if (outcome == CUDA_SUCCESS)
        settle(remember(handle, device, allot_gpu_of(device)));
    pthread_mutex_unlock(&mutex);
    return outcome;
}

CUresult allot_set_pool(allot_set_pool_fn real, CUmemLocation *location, int type,
                        CUmemoryPool handle)
{
    SETTLED(handle, real(location, type, handle))
}
