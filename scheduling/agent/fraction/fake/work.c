/* Fake libcuda: kernels, streams, copies. A device works on what is launched in order, one kernel
 * after another; a kernel named `spin` takes as many nanoseconds as its parameter says. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "libcuda.h"

/* A launch waits while the process is so far ahead of the device. */
#define MAX_BACKLOG_NS 10000000ull

struct CUfunc_st { int is_spin; };
void fake_pools_synchronised(void);

static struct CUfunc_st plain, spin = {1};
static struct CUmod_st { int unused; } module;

static allot_region_process *own(void)
{
    fake_driver *driver = fake_driver_get();
    return &driver->account.map->processes[driver->account.slot];
}

static void enqueue(const fake_device *device, uint64_t ns)
{
    _Atomic uint64_t *queue = &fake_driver_get()->account.map->gpus[device->place].busy_until;
    uint64_t until = atomic_load(queue), end, now = fake_now_ns();
    do
        end = (until > now ? until : now) + ns;
    while (!atomic_compare_exchange_weak(queue, &until, end));
    atomic_store(&own()->busy_until, end);
    atomic_fetch_add(&own()->gpu_ns, ns);
    if (end > now + MAX_BACKLOG_NS)
        fake_sleep_ns(end - now - MAX_BACKLOG_NS);
}

static CUresult wait_for_device(void)
{
    uint64_t now = fake_now_ns(), until = atomic_load(&own()->busy_until);
    if (until > now)
        fake_sleep_ns(until - now);
    fake_pools_synchronised();
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    (void)image;
    FAKE_ENTER("cuModuleLoadData");
    *out = (CUmodule)&module;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule of, const char *name)
{
    (void)of;
    FAKE_ENTER("cuModuleGetFunction");
    *function = strcmp(name, "spin") == 0 ? &spin : &plain;
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, CUstream stream, void **params)
{
    const fake_device *device = fake_current_device();
    if (!device)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_recording(stream))
        return CUDA_SUCCESS;
    enqueue(device, function && function->is_spin && params ? *(uint64_t *)params[0]
                                                            : fake_driver_get()->kernel_ns);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                                    unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                    CUstream stream, void **params, void **extra)
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
    (void)extra;
    FAKE_ENTER("cuLaunchKernel");
    return launch(function, stream, params);
}

FAKE_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                                      void **params, void **extra)
{
    (void)extra;
    FAKE_ENTER("cuLaunchKernelEx");
    return launch(function, config->hStream, params);
}

FAKE_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy,
                                               unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                               unsigned shared, CUstream stream, void **params)
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
    FAKE_ENTER("cuLaunchCooperativeKernel");
    return launch(function, stream, params);
}

FAKE_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    FAKE_ENTER("cuStreamCreate");
    *stream = calloc(1, sizeof **stream);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    FAKE_ENTER("cuStreamDestroy_v2");
    free(stream);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    *mode = 0;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    FAKE_ENTER("cuStreamSynchronize");
    return wait_for_device();
}

FAKE_EXPORT CUresult cuCtxSynchronize(void)
{
    FAKE_ENTER("cuCtxSynchronize");
    if (!fake_waited_for())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return fake_current() ? wait_for_device() : CUDA_ERROR_INVALID_CONTEXT;
}

FAKE_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    (void)context;
    FAKE_ENTER("cuCtxSynchronize_v2");
    return wait_for_device();
}

#define COPY(name, dst_type, src_type, ...)                                                        \
    FAKE_EXPORT CUresult name(dst_type dst, src_type src, size_t n __VA_ARGS__)                    \
    {                                                                                              \
        FAKE_ENTER(#name);                                                                         \
        memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, n);                           \
        return CUDA_SUCCESS;                                                                       \
    }
#define ON_STREAM , __attribute__((unused)) CUstream stream
COPY(cuMemcpy, CUdeviceptr, CUdeviceptr)
COPY(cuMemcpyHtoD_v2, CUdeviceptr, const void *)
COPY(cuMemcpyDtoH_v2, void *, CUdeviceptr)
COPY(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr)
COPY(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, ON_STREAM)
COPY(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, ON_STREAM)
COPY(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, ON_STREAM)
COPY(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, ON_STREAM)

#define SET(name, type, ...)                                                                       \
    FAKE_EXPORT CUresult name(CUdeviceptr dst, type value, size_t n __VA_ARGS__)                   \
    {                                                                                              \
        FAKE_ENTER(#name);                                                                         \
        for (size_t i = 0; i < n; i++)                                                             \
            ((type *)(uintptr_t)dst)[i] = value;                                                   \
        return CUDA_SUCCESS;                                                                       \
    }
SET(cuMemsetD8_v2, unsigned char)
SET(cuMemsetD16_v2, unsigned short)
SET(cuMemsetD32_v2, unsigned)
SET(cuMemsetD8Async, unsigned char, ON_STREAM)
SET(cuMemsetD16Async, unsigned short, ON_STREAM)
SET(cuMemsetD32Async, unsigned, ON_STREAM)
