/* Memory pools and graphs keep memory beyond what was asked for, so they are charged with what the
 * driver says they have reserved, after each call that may change it. */
#include "memory.h"
#include "rules_cuda.h"

#include <string.h>

#define MAX_POOLS 256

typedef struct {
    CUmemoryPool pool;
    int gpu; /* < 0: memory of the host, or another process's: not charged */
    uint64_t charged;
} pool;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pool pools[MAX_POOLS];
static int num_pools;
/* Of each device: its ordinal, what graphs hold, and what the largest graph of ours asks for. */
static struct {
    CUdevice device;
    int is_used;
    uint64_t charged, largest;
} graphs[ALLOT_MAX_GPUS];
static struct { CUgraph graph; uint64_t bytes; } sums[MAX_POOLS];
static int num_sums;

static void forget(void)
{
    num_pools = num_sums = 0;
    memset(graphs, 0, sizeof graphs);
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

static pool *remember(CUmemoryPool handle, int gpu)
{
    pool *found = known(handle);
    if (!found && num_pools < MAX_POOLS) {
        found = &pools[num_pools++];
        *found = (pool){handle, gpu, 0};
    }
    return found;
}

static int reserved(CUmemoryPool handle, uint64_t *bytes)
{
    return ALLOT_DRIVER(cuMemPoolGetAttribute, (CUmemoryPool, int, void *), handle,
                        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

/* Charges n bytes of a growing thing beyond what was reserved for it; whether there was room. */
static int charge(int gpu, uint64_t *charged, uint64_t actual, uint64_t prepaid)
{
    uint64_t more = actual > *charged ? actual - *charged : 0;
    allot_session *session = allot_session_get();
    /* Without trimming, unlike allot_take(): our own lock is held. */
    if (more > prepaid &&
        !(session && allot_account_reserve(&session->account, (unsigned)gpu, more - prepaid,
                                           session->limits->gpus[gpu].bytes)))
        return 0;
    if (more < prepaid)
        allot_give(gpu, prepaid - more);
    if (actual < *charged)
        allot_give(gpu, *charged - actual);
    *charged = actual;
    return 1;
}

static void settle(pool *found)
{
    uint64_t actual;
    if (!found || found->gpu < 0 || !reserved(found->pool, &actual) || actual == found->charged)
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

void allot_pools_trim(int gpu)
{
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < num_pools; i++)
        if (pools[i].gpu == gpu) {
            ALLOT_DRIVER(cuMemPoolTrimTo, (CUmemoryPool, size_t), pools[i].pool, 0);
            settle(&pools[i]);
        }
    pthread_mutex_unlock(&mutex);
}

void allot_pool_freed(CUmemoryPool handle)
{
    pthread_mutex_lock(&mutex);
    settle(known(handle));
    pthread_mutex_unlock(&mutex);
}

/* What the call took of the pool is known only afterwards; too much is undone. */
static CUresult from_pool(CUmemoryPool handle, int gpu, CUdeviceptr dptr, size_t bytes,
                          CUstream stream)
{
    uint64_t actual = 0;
    int is_within = 1;
    pthread_mutex_lock(&mutex);
    pool *found = remember(handle, gpu);
    if (found && reserved(handle, &actual))
        is_within = charge(gpu, &found->charged, actual, bytes);
    pthread_mutex_unlock(&mutex);
    if (!is_within) {
        ALLOT_DRIVER(cuMemFreeAsync, (CUdeviceptr, CUstream), dptr, stream);
        ALLOT_DRIVER(cuStreamSynchronize, (CUstream), stream);
        ALLOT_DRIVER(cuMemPoolTrimTo, (CUmemoryPool, size_t), handle, 0);
        allot_give(gpu, bytes);
        allot_pool_freed(handle);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allot_keep((allot_thing){.kind = FROM_POOL, .key = dptr, .bytes = bytes, .gpu = gpu,
                             .other = (uint64_t)(uintptr_t)handle});
    return CUDA_SUCCESS;
}

CUresult allot_mem_alloc_async(allot_mem_alloc_async_fn real, CUdeviceptr *dptr, size_t bytes,
                               CUstream stream)
{
    CUmemoryPool handle = NULL;
    CUdevice device = 0;
    int gpu = NO_CONTEXT;
    if (ALLOT_DRIVER(cuCtxGetDevice, (CUdevice *), &device) == CUDA_SUCCESS)
        gpu = allot_gpu_of(device);
    if (gpu == NO_CONTEXT)
        return real(dptr, bytes, stream);
    CUresult outcome = ALLOT_CHARGED(gpu, bytes, real(dptr, bytes, stream));
    if (outcome != CUDA_SUCCESS)
        return outcome;
    ALLOT_DRIVER(cuDeviceGetMemPool, (CUmemoryPool *, CUdevice), &handle, device);
    return from_pool(handle, gpu, *dptr, bytes, stream);
}

CUresult allot_mem_alloc_pool(allot_mem_alloc_pool_fn real, CUdeviceptr *dptr, size_t bytes,
                              CUmemoryPool handle, CUstream stream)
{
    pthread_mutex_lock(&mutex);
    pool *found = known(handle);
    int gpu = found ? found->gpu : allot_current_gpu();
    pthread_mutex_unlock(&mutex);
    if (gpu == NO_CONTEXT)
        return real(dptr, bytes, handle, stream);
    CUresult outcome = ALLOT_CHARGED(gpu, bytes, real(dptr, bytes, handle, stream));
    return outcome == CUDA_SUCCESS ? from_pool(handle, gpu, *dptr, bytes, stream) : outcome;
}

CUresult allot_pool_create(allot_pool_create_fn real, CUmemoryPool *handle,
                           const CUmemPoolProps *props)
{
    CUresult outcome = real(handle, props);
    if (outcome != CUDA_SUCCESS)
        return outcome;
    int is_here = props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (is_here && props->handleTypes)
        allot_flag(ALLOT_FLAG_EXPORTABLE);
    pthread_mutex_lock(&mutex);
    remember(*handle, is_here ? allot_gpu_of(props->location.id) : NO_CONTEXT);
    pthread_mutex_unlock(&mutex);
    return outcome;
}

CUresult allot_pool_destroy(allot_pool_destroy_fn real, CUmemoryPool handle)
{
    CUresult outcome = real(handle);
    if (outcome != CUDA_SUCCESS)
        return outcome;
    pthread_mutex_lock(&mutex);
    pool *found = known(handle);
    if (found) {
        if (found->gpu >= 0)
            allot_give(found->gpu, found->charged);
        *found = pools[--num_pools];
    }
    pthread_mutex_unlock(&mutex);
    return outcome;
}

#define SETTLED(handle, call)                                                                      \
    CUresult outcome = (call);                                                                     \
    allot_pool_freed(handle);                                                                      \
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
        settle(remember(handle, allot_gpu_of(device)));
    pthread_mutex_unlock(&mutex);
    return outcome;
}

CUresult allot_set_pool(allot_set_pool_fn real, CUmemLocation *location, int type,
                        CUmemoryPool handle)
{
    SETTLED(handle, real(location, type, handle))
}

/* ---------------------------------------------------------------- graphs */

static int graph_device(CUdevice *device)
{
    if (ALLOT_DRIVER(cuCtxGetDevice, (CUdevice *), device) != CUDA_SUCCESS)
        return NO_CONTEXT;
    return allot_gpu_of(*device);
}

static int graph_reserved(CUdevice device, uint64_t *bytes)
{
    return ALLOT_DRIVER(cuDeviceGetGraphMemAttribute, (CUdevice, int, void *), device,
                        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

void allot_graphs_settle(int gpu)
{
    uint64_t actual;
    pthread_mutex_lock(&mutex);
    if (graphs[gpu].is_used && graph_reserved(graphs[gpu].device, &actual) &&
        !charge(gpu, &graphs[gpu].charged, actual, 0)) {
        /* The driver has it already: counted, so that nothing else is given. */
        allot_session *session = allot_session_get();
        if (session)
            allot_account_add(&session->account, (unsigned)gpu, actual - graphs[gpu].charged);
        graphs[gpu].charged = actual;
    }
    pthread_mutex_unlock(&mutex);
}

void allot_graphs_trim(int gpu)
{
    pthread_mutex_lock(&mutex);
    uint64_t actual;
    if (graphs[gpu].is_used) {
        ALLOT_DRIVER(cuDeviceGraphMemTrim, (CUdevice), graphs[gpu].device);
        if (graph_reserved(graphs[gpu].device, &actual) && actual < graphs[gpu].charged) {
            allot_give(gpu, graphs[gpu].charged - actual);
            graphs[gpu].charged = actual;
        }
    }
    pthread_mutex_unlock(&mutex);
}

/* Notes a graph's wish: memory comes with its launch, so a wish beyond the limit fails at once. */
static CUresult wish(CUgraph graph, CUdevice device, uint64_t bytes)
{
    allot_session *session = allot_session_get();
    int gpu = allot_gpu_of(device);
    if (!session || gpu < 0 || bytes > session->limits->gpus[gpu].bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mutex);
    int i = 0;
    while (i < num_sums && sums[i].graph != graph)
        i++;
    if (i == num_sums && num_sums < MAX_POOLS)
        sums[num_sums++] = (typeof(sums[0])){graph, 0};
    if (i < num_sums) {
        sums[i].bytes += bytes;
        if (sums[i].bytes > graphs[gpu].largest)
            graphs[gpu].largest = sums[i].bytes;
    }
    graphs[gpu].device = device;
    graphs[gpu].is_used = 1;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult allot_graph_add_alloc(allot_graph_add_alloc_fn real, CUgraphNode *node, CUgraph graph,
                               const CUgraphNode *needs, size_t num_needs,
                               CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    if (params && params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
        wish(graph, params->poolProps.location.id, params->bytesize) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return real(node, graph, needs, num_needs, params);
}

static CUresult wish_of(CUgraph graph, const CUgraphNodeParams *params)
{
    if (!params || params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
        params->alloc.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_SUCCESS;
    return wish(graph, params->alloc.poolProps.location.id, params->alloc.bytesize);
}

CUresult allot_graph_add_node(allot_graph_add_node_fn real, CUgraphNode *node, CUgraph graph,
                              const CUgraphNode *needs, size_t num_needs, CUgraphNodeParams *params)
{
    CUresult outcome = wish_of(graph, params);
    return outcome ? outcome : real(node, graph, needs, num_needs, params);
}

CUresult allot_graph_add_node_v2(allot_graph_add_node_v2_fn real, CUgraphNode *node, CUgraph graph,
                                 const CUgraphNode *needs, const void *edges, size_t num_needs,
                                 CUgraphNodeParams *params)
{
    CUresult outcome = wish_of(graph, params);
    return outcome ? outcome : real(node, graph, needs, edges, num_needs, params);
}

CUresult allot_graph_destroy(allot_graph_destroy_fn real, CUgraph graph)
{
    CUresult outcome = real(graph);
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < num_sums; i++)
        if (outcome == CUDA_SUCCESS && sums[i].graph == graph)
            sums[i--] = sums[--num_sums];
    pthread_mutex_unlock(&mutex);
    return outcome;
}

CUresult allot_graph_launch(allot_graph_launch_fn real, CUgraphExec graph, CUstream stream)
{
    CUdevice device;
    int gpu = graph_device(&device);
    if (gpu < 0 || !graphs[gpu].is_used)
        return real(graph, stream);
    uint64_t largest = graphs[gpu].largest, charged = graphs[gpu].charged;
    uint64_t prepaid = largest > charged ? largest - charged : 0;
    if (prepaid && !allot_take(gpu, prepaid))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult outcome = real(graph, stream);
    if (prepaid)
        allot_give(gpu, prepaid);
    allot_graphs_settle(gpu);
    return outcome;
}

CUresult allot_graph_trim(allot_graph_trim_fn real, CUdevice device)
{
    CUresult outcome = real(device);
    int gpu = allot_gpu_of(device);
    if (gpu >= 0)
        allot_graphs_settle(gpu);
    return outcome;
}
