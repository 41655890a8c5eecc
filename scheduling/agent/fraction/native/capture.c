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

CUresult allot_capture_end(allot_capture_end_fn real, CUstream stream, CUgraph *graph)
{
    CUresult outcome = real(stream, graph);
    /* An invalidated capture (901) ends as well. */
    if (outcome == CUDA_SUCCESS || outcome == 901)
        allot_capture_changed(-1);
    return outcome;
}
