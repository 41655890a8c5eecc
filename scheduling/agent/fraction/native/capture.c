/* Stream captures: while one is under way nothing may wait for the device. */
#include "memory.h"
#include "rules_cuda.h"

CUresult allot_capture_begin(allot_capture_begin_fn real, CUstream stream, int mode)
{
    CUresult outcome = real(stream, mode);
    if (outcome == CUDA_SUCCESS)
        allot_capture_changed(1);
    return outcome;
}

CUresult allot_capture_begin_v1(allot_capture_begin_v1_fn real, CUstream stream)
{
    CUresult outcome = real(stream);
    if (outcome == CUDA_SUCCESS)
        allot_capture_changed(1);
    return outcome;
}

CUresult allot_capture_begin_to(allot_capture_begin_to_fn real, CUstream stream, CUgraph graph,
                                const CUgraphNode *needs, const void *edges, size_t num_needs,
                                int mode)
{
    CUresult outcome = real(stream, graph, needs, edges, num_needs, mode);
    if (outcome == CUDA_SUCCESS)
        allot_capture_changed(1);
    return outcome;
}

CUresult allot_capture_end(allot_capture_end_fn real, CUstream stream, CUgraph *graph)
{
    int was_under_way = allot_is_capturing(stream);
    CUresult outcome = real(stream, graph);
    /* One that went wrong ends as well; one of another thread's does not. */
    if (was_under_way && !allot_is_capturing(stream))
        allot_capture_changed(-1);
    return outcome;
}
