/* What a session is told of its device's memory: its share, and what is left of it. */
#include "memory.h"
#include "rules_cuda.h"

static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Real figures in, the session's out. */
static void share(int gpu, uint64_t *free_bytes, uint64_t *total)
{
    allot_session *session = allot_session_get();
    if (!session || gpu < 0)
        return;
    allot_contexts_settle(gpu);
    allot_pools_settle(gpu);
    allot_graphs_settle(gpu);
    uint64_t limit = min(session->limits->gpus[gpu].bytes, *total);
    uint64_t used = allot_account_used(&session->account, (unsigned)gpu);
    *free_bytes = min(*free_bytes, limit > used ? limit - used : 0);
    *total = limit;
}

CUresult allot_mem_info(allot_mem_info_fn real, size_t *free_bytes, size_t *total)
{
    size_t real_free = 0, real_total = 0;
    CUresult outcome = real(&real_free, &real_total);
    if (outcome != CUDA_SUCCESS)
        return outcome;
    uint64_t shown_free = real_free, shown_total = real_total;
    share(allot_current_gpu(), &shown_free, &shown_total);
    if (free_bytes)
        *free_bytes = shown_free;
    if (total)
        *total = shown_total;
    return outcome;
}

CUresult allot_mem_info_v1(allot_mem_info_v1_fn real, unsigned *free_bytes, unsigned *total)
{
    unsigned real_free = 0, real_total = 0;
    CUresult outcome = real(&real_free, &real_total);
    if (outcome != CUDA_SUCCESS)
        return outcome;
    uint64_t shown_free = real_free, shown_total = real_total;
    share(allot_current_gpu(), &shown_free, &shown_total);
    if (free_bytes)
        *free_bytes = (unsigned)shown_free;
    if (total)
        *total = (unsigned)shown_total;
    return outcome;
}

static uint64_t of_device(CUdevice device, uint64_t total)
{
    allot_session *session = allot_session_get();
    int gpu = allot_gpu_of(device);
    return session && gpu >= 0 ? min(session->limits->gpus[gpu].bytes, total) : total;
}

CUresult allot_total_mem(allot_total_mem_fn real, size_t *bytes, CUdevice device)
{
    CUresult outcome = real(bytes, device);
    if (outcome == CUDA_SUCCESS)
        *bytes = of_device(device, *bytes);
    return outcome;
}

CUresult allot_total_mem_v1(allot_total_mem_v1_fn real, unsigned *bytes, CUdevice device)
{
    CUresult outcome = real(bytes, device);
    if (outcome == CUDA_SUCCESS)
        *bytes = (unsigned)of_device(device, *bytes);
    return outcome;
}
