/* Graphs that allocate: a device's graphs share memory, which the driver takes when one of them is
 * launched and keeps. It is charged with what the driver says that it has reserved; before a launch
 * there must be room for what the graph asks for. */
#include "memory.h"
#include "rules_cuda.h"

#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* Of each device: its ordinal, and what graphs hold. */
static struct {
    CUdevice device;
    int is_used;
    uint64_t charged;
} graphs[ALLOT_MAX_GPUS];
/* Graphs that allocate so far, and those instantiated: without one nothing costs more. */
static _Atomic int num_used, num_execs;

static void forget(void)
{
    memset(graphs, 0, sizeof graphs);
    num_used = num_execs = 0;
    pthread_mutex_init(&mutex, NULL);
}

__attribute__((constructor)) static void watch(void) { allot_session_on_fork(forget); }

static int reserved(CUdevice device, uint64_t *bytes)
{
    return ALLOT_DRIVER(cuDeviceGetGraphMemAttribute, (CUdevice, int, void *), device,
                        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

/* Charges what the driver has, of which so much is charged for a launch. */
static void settle(int gpu, uint64_t prepaid)
{
    uint64_t actual, charged = graphs[gpu].charged + prepaid;
    if (!graphs[gpu].is_used || !reserved(graphs[gpu].device, &actual))
        actual = graphs[gpu].charged;
    graphs[gpu].charged = actual;
    if (actual == charged)
        return;
    allot_session *session = allot_session_get();
    if (session && actual > charged)
        allot_account_add(&session->account, (unsigned)gpu, actual - charged);
    else
        allot_give(gpu, charged - actual);
}

void allot_graphs_settle(int gpu)
{
    if (!atomic_load(&num_used))
        return;
    pthread_mutex_lock(&mutex);
    settle(gpu, 0);
    pthread_mutex_unlock(&mutex);
}

void allot_graphs_trim(int gpu)
{
    pthread_mutex_lock(&mutex);
    if (graphs[gpu].is_used) {
        ALLOT_DRIVER(cuDeviceGraphMemTrim, (CUdevice), graphs[gpu].device);
        settle(gpu, 0);
    }
    pthread_mutex_unlock(&mutex);
}

/* A wish beyond the limit fails at once, since no launch could succeed. */
static CUresult may_wish(CUdevice device, uint64_t bytes)
{
    allot_session *session = allot_session_get();
    int gpu = allot_gpu_of(device);
    return !session || gpu < 0 || bytes > session->limits->gpus[gpu].bytes
               ? CUDA_ERROR_OUT_OF_MEMORY
               : CUDA_SUCCESS;
}

static void wish(CUgraph graph, CUdevice device, uint64_t bytes)
{
    int gpu = allot_gpu_of(device);
    allot_thing sum;
    pthread_mutex_lock(&mutex);
    if (!allot_lose(GRAPH, (uint64_t)(uintptr_t)graph, &sum))
        sum = (allot_thing){.kind = GRAPH, .key = (uint64_t)(uintptr_t)graph};
    sum.gpu = gpu;
    sum.bytes += bytes;
    allot_keep(sum);
    graphs[gpu].device = device;
    graphs[gpu].is_used = 1;
    atomic_fetch_add(&num_used, 1);
    pthread_mutex_unlock(&mutex);
}

#define WISHED(graph, device, bytes, call)                                                         \
    CUresult outcome = may_wish(device, bytes);                                                    \
    if (outcome == CUDA_SUCCESS && (outcome = (call)) == CUDA_SUCCESS)                             \
        wish(graph, device, bytes);                                                                \
    return outcome;

static int is_of_device(const CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    return params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

CUresult allot_graph_add_alloc(allot_graph_add_alloc_fn real, CUgraphNode *node, CUgraph graph,
                               const CUgraphNode *needs, size_t num_needs,
                               CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    if (!params || !is_of_device(params))
        return real(node, graph, needs, num_needs, params);
    WISHED(graph, params->poolProps.location.id, params->bytesize,
           real(node, graph, needs, num_needs, params))
}

static int allocates(const CUgraphNodeParams *params)
{
    return params && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && is_of_device(&params->alloc);
}

CUresult allot_graph_add_node(allot_graph_add_node_fn real, CUgraphNode *node, CUgraph graph,
                              const CUgraphNode *needs, size_t num_needs, CUgraphNodeParams *params)
{
    if (!allocates(params))
        return real(node, graph, needs, num_needs, params);
    WISHED(graph, params->alloc.poolProps.location.id, params->alloc.bytesize,
           real(node, graph, needs, num_needs, params))
}

CUresult allot_graph_add_node_v2(allot_graph_add_node_v2_fn real, CUgraphNode *node, CUgraph graph,
                                 const CUgraphNode *needs, const void *edges, size_t num_needs,
                                 CUgraphNodeParams *params)
{
    if (!allocates(params))
        return real(node, graph, needs, edges, num_needs, params);
    WISHED(graph, params->alloc.poolProps.location.id, params->alloc.bytesize,
           real(node, graph, needs, edges, num_needs, params))
}

CUresult allot_graph_captured(CUstream stream, CUdevice device, uint64_t bytes)
{
    int status;
    cuuint64_t id;
    CUgraph graph = NULL;
    CUresult outcome = may_wish(device, bytes);
    if (outcome != CUDA_SUCCESS)
        return outcome;
    CUresult asked = ALLOT_DRIVER(
        cuStreamGetCaptureInfo_v2,
        (CUstream, int *, cuuint64_t *, CUgraph *, const CUgraphNode **, size_t *), stream, &status,
        &id, &graph, NULL, NULL);
    if (asked != CUDA_SUCCESS)
        ALLOT_DRIVER(cuStreamGetCaptureInfo_v3,
                     (CUstream, int *, cuuint64_t *, CUgraph *, const CUgraphNode **, const void **,
                      size_t *),
                     stream, &status, &id, &graph, NULL, NULL, NULL);
    if (graph)
        wish(graph, device, bytes);
    return CUDA_SUCCESS;
}

static CUresult instantiated(CUgraph graph, const CUgraphExec *exec, CUresult outcome)
{
    allot_thing sum;
    if (outcome == CUDA_SUCCESS && allot_find(GRAPH, (uint64_t)(uintptr_t)graph, &sum)) {
        sum.kind = GRAPH_EXEC;
        sum.key = (uint64_t)(uintptr_t)*exec;
        allot_keep(sum);
        atomic_fetch_add(&num_execs, 1);
    }
    return outcome;
}

CUresult allot_graph_make(allot_graph_make_fn real, CUgraphExec *exec, CUgraph graph,
                          CUgraphNode *wrong, char *log, size_t size)
{
    return instantiated(graph, exec, real(exec, graph, wrong, log, size));
}

CUresult allot_graph_make_flags(allot_graph_make_flags_fn real, CUgraphExec *exec, CUgraph graph,
                                unsigned long long flags)
{
    return instantiated(graph, exec, real(exec, graph, flags));
}

CUresult allot_graph_make_params(allot_graph_make_params_fn real, CUgraphExec *exec, CUgraph graph,
                                 void *params)
{
    return instantiated(graph, exec, real(exec, graph, params));
}

CUresult allot_graph_exec_destroy(allot_graph_exec_destroy_fn real, CUgraphExec exec)
{
    allot_thing known;
    /* Before: the next one may get the same handle at once. */
    int is_known = allot_lose(GRAPH_EXEC, (uint64_t)(uintptr_t)exec, &known);
    CUresult outcome = real(exec);
    if (is_known && outcome != CUDA_SUCCESS)
        allot_keep(known);
    else if (is_known)
        atomic_fetch_sub(&num_execs, 1);
    return outcome;
}

CUresult allot_graph_destroy(allot_graph_destroy_fn real, CUgraph graph)
{
    allot_thing sum;
    int is_known = allot_lose(GRAPH, (uint64_t)(uintptr_t)graph, &sum);
    CUresult outcome = real(graph);
    if (is_known && outcome != CUDA_SUCCESS)
        allot_keep(sum);
    return outcome;
}

CUresult allot_graph_launch(allot_graph_launch_fn real, CUgraphExec graph, CUstream stream)
{
    allot_thing known;
    if (!atomic_load(&num_execs) || !allot_find(GRAPH_EXEC, (uint64_t)(uintptr_t)graph, &known))
        return real(graph, stream);
    pthread_mutex_lock(&mutex);
    uint64_t charged = graphs[known.gpu].charged;
    pthread_mutex_unlock(&mutex);
    uint64_t prepaid = known.bytes > charged ? known.bytes - charged : 0;
    if (prepaid && !allot_take(known.gpu, prepaid))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult outcome = real(graph, stream);
    pthread_mutex_lock(&mutex);
    settle(known.gpu, prepaid);
    pthread_mutex_unlock(&mutex);
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
