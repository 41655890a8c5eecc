/* Arrays: opaque memory, whose size the driver tells afterwards (from CUDA 11.6 on). */
#include "memory.h"
#include "rules_cuda.h"

static uint64_t format_bytes(int format)
{
    switch (format) {
    case 0x01: case 0x08: return 1;               /* 8-bit integers */
    case 0x02: case 0x09: case 0x10: return 2;    /* 16-bit integers, half */
    case 0x03: case 0x0a: case 0x20: return 4;    /* 32-bit integers, float */
    default: return 4;
    }
}

static uint64_t least(uint64_t width, uint64_t height, uint64_t depth, int format, unsigned channels)
{
    return width * (height ? height : 1) * (depth ? depth : 1) * format_bytes(format) *
           (channels ? channels : 1);
}

/* Charges what the driver says beyond the estimate; if that is too much, undoes the array. */
static CUresult true_up(int kind, void *array, int gpu, uint64_t charged)
{
    CUDA_ARRAY_MEMORY_REQUIREMENTS real = {0};
    CUresult asked =
        kind == ARRAY
            ? ALLOT_DRIVER(cuArrayGetMemoryRequirements,
                           (CUDA_ARRAY_MEMORY_REQUIREMENTS *, void *, CUdevice), &real, array, 0)
            : ALLOT_DRIVER(cuMipmappedArrayGetMemoryRequirements,
                           (CUDA_ARRAY_MEMORY_REQUIREMENTS *, void *, CUdevice), &real, array, 0);
    uint64_t bytes = asked == CUDA_SUCCESS && real.size > charged ? real.size : charged;
    if (bytes > charged && !allot_take(gpu, bytes - charged)) {
        if (kind == ARRAY)
            ALLOT_DRIVER(cuArrayDestroy, (void *), array);
        else
            ALLOT_DRIVER(cuMipmappedArrayDestroy, (void *), array);
        allot_give(gpu, charged);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allot_keep((allot_thing){
        .kind = kind, .key = (uint64_t)(uintptr_t)array, .bytes = bytes, .gpu = gpu});
    return CUDA_SUCCESS;
}

CUresult allot_array_create(allot_array_create_fn real, CUarray *array,
                            const CUDA_ARRAY_DESCRIPTOR *desc)
{
    int gpu = allot_current_gpu();
    if (gpu == NO_CONTEXT || !desc || !array)
        return real(array, desc);
    uint64_t bytes = least(desc->Width, desc->Height, 1, desc->Format, desc->NumChannels);
    CUresult outcome = ALLOT_CHARGED(gpu, bytes, real(array, desc));
    return outcome == CUDA_SUCCESS ? true_up(ARRAY, *array, gpu, bytes) : outcome;
}

CUresult allot_array3d_create(allot_array3d_create_fn real, CUarray *array,
                              const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    int gpu = allot_current_gpu();
    if (gpu == NO_CONTEXT || !desc || !array)
        return real(array, desc);
    uint64_t bytes =
        least(desc->Width, desc->Height, desc->Depth, desc->Format, desc->NumChannels);
    CUresult outcome = ALLOT_CHARGED(gpu, bytes, real(array, desc));
    return outcome == CUDA_SUCCESS ? true_up(ARRAY, *array, gpu, bytes) : outcome;
}

CUresult allot_mipmapped_create(allot_mipmapped_create_fn real, CUmipmappedArray *array,
                                const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
    int gpu = allot_current_gpu();
    if (gpu == NO_CONTEXT || !desc || !array)
        return real(array, desc, levels);
    uint64_t bytes =
        least(desc->Width, desc->Height, desc->Depth, desc->Format, desc->NumChannels);
    CUresult outcome = ALLOT_CHARGED(gpu, bytes, real(array, desc, levels));
    return outcome == CUDA_SUCCESS ? true_up(MIPMAPPED, *array, gpu, bytes) : outcome;
}

#define DESTROYED(kind, array, call)                                                               \
    allot_thing thing;                                                                             \
    int is_ours = allot_lose(kind, (uint64_t)(uintptr_t)(array), &thing);                          \
    CUresult outcome = (call);                                                                     \
    if (is_ours && outcome != CUDA_SUCCESS)                                                        \
        allot_keep(thing);                                                                         \
    else if (is_ours)                                                                              \
        allot_give(thing.gpu, thing.bytes);                                                        \
    return outcome;

CUresult allot_array_destroy(allot_array_destroy_fn real, CUarray array)
{
    DESTROYED(ARRAY, array, real(array))
}

CUresult allot_mipmapped_destroy(allot_mipmapped_destroy_fn real, CUmipmappedArray array)
{
    DESTROYED(MIPMAPPED, array, real(array))
}
