/* Fake libcuda: graphs that allocate, made by hand or recorded from a stream. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "libcuda.h"

struct CUgraphExec_st { uint64_t bytes; CUdevice device; };

static uint64_t graph_reserved[ALLOT_MAX_GPUS];
static _Atomic int num_recording, num_spoilt;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

FAKE_EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    (void)flags;
    FAKE_ENTER("cuGraphCreate");
    *graph = calloc(1, sizeof **graph);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    FAKE_ENTER("cuGraphDestroy");
    free(graph);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph,
                                            const CUgraphNode *needs, size_t num_needs,
                                            CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    (void)needs, (void)num_needs;
    FAKE_ENTER("cuGraphAddMemAllocNode");
    graph->bytes += fake_rounded(params->bytesize);
    graph->device = params->poolProps.location.id;
    *node = (CUgraphNode)graph;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                    size_t num_needs, CUgraphNodeParams *params)
{
    if (params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuGraphAddMemAllocNode(node, graph, needs, num_needs, &params->alloc);
}

FAKE_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs,
                                       const void *edges, size_t num_needs,
                                       CUgraphNodeParams *params)
{
    (void)edges;
    return cuGraphAddNode(node, graph, needs, num_needs, params);
}

FAKE_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                                 const CUgraphNode *needs, const void *edges,
                                                 size_t num_needs, int mode)
{
    (void)needs, (void)edges, (void)num_needs, (void)mode;
    FAKE_ENTER("cuStreamBeginCaptureToGraph");
    if (!stream)
        return CUDA_ERROR_NOT_SUPPORTED;
    stream->graph = graph;
    num_recording++;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    CUgraph graph;
    CUresult outcome = cuGraphCreate(&graph, 0);
    return outcome ? outcome : cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, mode);
}

FAKE_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    FAKE_ENTER("cuStreamEndCapture");
    if (!fake_recording(stream))
        return CUDA_ERROR_INVALID_VALUE;
    /* Somebody waited for the device meanwhile (fake_waited_for). */
    CUresult outcome = num_spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : 0;
    *graph = outcome ? NULL : stream->graph;
    stream->graph = NULL;
    num_recording--;
    num_spoilt = 0;
    return outcome;
}

FAKE_EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    *status = fake_recording(stream) != NULL;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, cuuint64_t *id,
                                               CUgraph *graph, const CUgraphNode **needs,
                                               size_t *count)
{
    (void)needs, (void)count;
    *status = fake_recording(stream) != NULL;
    *id = 1;
    if (graph)
        *graph = fake_recording(stream);
    return CUDA_SUCCESS;
}

CUgraph fake_recording(CUstream stream)
{
    return stream && stream != (CUstream)1 && stream != (CUstream)2 ? stream->graph : NULL;
}

int fake_waited_for(void)
{
    num_spoilt += num_recording > 0;
    return num_recording == 0;
}

FAKE_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                                 unsigned long long flags)
{
    (void)flags;
    FAKE_ENTER("cuGraphInstantiateWithFlags");
    *exec = malloc(sizeof **exec);
    **exec = (struct CUgraphExec_st){graph->bytes, graph->device};
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    FAKE_ENTER("cuGraphExecDestroy");
    free(exec);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CUresult outcome = CUDA_SUCCESS;
    (void)stream;
    FAKE_ENTER("cuGraphLaunch");
    pthread_mutex_lock(&mutex);
    const fake_device *device = fake_visible(exec->device);
    if (exec->bytes > graph_reserved[exec->device]) {
        if (fake_take(device, exec->bytes - graph_reserved[exec->device]))
            graph_reserved[exec->device] = exec->bytes;
        else
            outcome = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&mutex);
    return outcome;
}

FAKE_EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    (void)attribute;
    *(uint64_t *)value = graph_reserved[device];
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    FAKE_ENTER("cuDeviceGraphMemTrim");
    pthread_mutex_lock(&mutex);
    fake_give(fake_visible(device), graph_reserved[device]);
    graph_reserved[device] = 0;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
