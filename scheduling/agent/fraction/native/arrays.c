/* Arrays: opaque memory. The driver tells their size only of those whose memory is mapped later, so
 * it is reckoned; what it rounds up is seen by the agent, as what contexts take is. */
#include "memory.h"
#include "rules_cuda.h"

/* Of one element. Formats beyond the plain ones contain their channels. */
static uint64_t bits_of(int format, unsigned channels)
{
    switch (format) {
    case 0x01: case 0x08: return 8 * channels;              /* 8-bit integers */
    case 0x02: case 0x09: case 0x10: return 16 * channels;  /* 16-bit integers, half */
    case 0x91: case 0x92: case 0x97: case 0x98: return 4;   /* BC1, BC4 */
    case 0x93: case 0x94: case 0x95: case 0x96: case 0x99:  /* BC2, BC3, BC5 to BC7 */
    case 0x9a: case 0x9b: case 0x9c: case 0x9d: case 0x9e: return 8;
    case 0xb0: return 12;                                   /* NV12 */
    case 0xc0: case 0xc6: return 8;                         /* normalised, 8 bits: 1, 2, 4 channels */
    case 0xc1: case 0xc7: return 16;
    case 0xc2: case 0xc8: return 32;
    case 0xc3: case 0xc9: return 16;                        /* normalised, 16 bits */
    case 0xc4: case 0xca: return 32;
    case 0xc5: case 0xcb: return 64;
    default: return 32 * channels;
    }
}

static uint64_t level(uint64_t length, unsigned number)
{
    return number < 64 && length >> number ? length >> number : 1;
}

/* Bytes of all levels; 0 beyond all bounds, of which the driver says what is wrong. */
static uint64_t size_of(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned num_levels)
{
    int is_layered = (desc->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    uint64_t bits = bits_of(desc->Format, desc->NumChannels ? desc->NumChannels : 1), sum = 0;
    if (desc->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    for (unsigned i = 0; i < num_levels && i < 64; i++) {
        uint64_t area, volume, all;
        uint64_t depth = is_layered ? (desc->Depth ? desc->Depth : 1) : level(desc->Depth, i);
        if (__builtin_mul_overflow(level(desc->Width, i), level(desc->Height, i), &area) ||
            __builtin_mul_overflow(area, depth, &volume) ||
            __builtin_mul_overflow(volume, bits, &all) || __builtin_add_overflow(sum, all, &sum))
            return 0;
        /* The last level is one element large, however many are asked for. */
        if (level(desc->Width, i) == 1 && level(desc->Height, i) == 1 && (is_layered || depth == 1))
            break;
    }
    return sum / 8;
}

#define CREATED(thing_kind, desc, num_levels, call)                                                \
    int gpu = allot_current_gpu();                                                                 \
    if (gpu == NO_CONTEXT || !array)                                                               \
        return (call);                                                                             \
    uint64_t bytes = size_of(desc, num_levels);                                                    \
    CUresult outcome = ALLOT_CHARGED(gpu, bytes, call);                                            \
    if (outcome == CUDA_SUCCESS)                                                                   \
        allot_keep((allot_thing){.kind = (thing_kind), .key = (uint64_t)(uintptr_t)*array,         \
                                 .bytes = bytes, .gpu = gpu});                                     \
    return outcome;

CUresult allot_array_create(allot_array_create_fn real, CUarray *array,
                            const CUDA_ARRAY_DESCRIPTOR *desc)
{
    if (!desc)
        return real(array, desc);
    CUDA_ARRAY3D_DESCRIPTOR full = {desc->Width, desc->Height, 0, desc->Format, desc->NumChannels, 0};
    CREATED(ARRAY, &full, 1, real(array, desc))
}

CUresult allot_array3d_create(allot_array3d_create_fn real, CUarray *array,
                              const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    if (!desc)
        return real(array, desc);
    CREATED(ARRAY, desc, 1, real(array, desc))
}

CUresult allot_mipmapped_create(allot_mipmapped_create_fn real, CUmipmappedArray *array,
                                const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
    if (!desc)
        return real(array, desc, levels);
    CREATED(MIPMAPPED, desc, levels, real(array, desc, levels))
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
