/* Fake libcuda: memory. What is allocated is host memory that stands for the device's, so copies
 * are real and a session's data is there again after a swap. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libcuda.h"

#define NUM_BUCKETS 4096
#define GRANULE (2ull << 20)

typedef struct block {
    uint64_t address, bytes;
    const fake_device *device;
    CUmemoryPool pool;
    CUcontext context;
    int kind;
    struct block *next;
} block;
enum { PLAIN = 1, POOLED, MAPPED };

struct CUmemPoolHandle_st {
    const fake_device *device;
    uint64_t used, reserved, threshold;
    int is_destroyed;
};
struct CUarray_st { const fake_device *device; uint64_t bytes; unsigned flags; };
typedef struct handle {
    const fake_device *device;
    uint64_t bytes;
    int references, mappings, file;
    struct handle *next;
} handle;
/* Of handles that are gone: the next to be made gets the last of them, whatever thread asks. */
static handle *gone;

static block *buckets[NUM_BUCKETS];
static struct CUmemPoolHandle_st defaults[ALLOT_MAX_GPUS];
static CUmemoryPool current[ALLOT_MAX_GPUS];
static CUmemoryPool all_pools[256];
static int num_pools;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

uint64_t fake_rounded(uint64_t bytes) { return (bytes + GRANULE - 1) / GRANULE * GRANULE; }

static block **seek(uint64_t address)
{
    block **place = &buckets[(address >> 12) % NUM_BUCKETS];
    while (*place && (*place)->address != address)
        place = &(*place)->next;
    return place;
}

static void put(uint64_t address, uint64_t bytes, const fake_device *device, int kind, CUmemoryPool pool)
{
    block *new = malloc(sizeof *new);
    *new = (block){address, bytes, device, pool, fake_current(), kind,
                   buckets[(address >> 12) % NUM_BUCKETS]};
    buckets[(address >> 12) % NUM_BUCKETS] = new;
}

static CUresult allocate(CUdeviceptr *dptr, uint64_t bytes)
{
    const fake_device *device = fake_current_device();
    if (!device)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!dptr || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!fake_take(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *memory = fake_back(bytes);
    if (!memory) {
        fake_give(device, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&mutex);
    put((uint64_t)(uintptr_t)memory, bytes, device, PLAIN, NULL);
    pthread_mutex_unlock(&mutex);
    *dptr = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes)
{
    FAKE_ENTER("cuMemAlloc_v2");
    return allocate(dptr, bytes);
}

FAKE_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned flags)
{
    (void)flags;
    FAKE_ENTER("cuMemAllocManaged");
    return allocate(dptr, bytes);
}

FAKE_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width,
                                        size_t height, unsigned element)
{
    (void)element;
    FAKE_ENTER("cuMemAllocPitch_v2");
    *pitch = (width + 511) / 512 * 512;
    return allocate(dptr, *pitch * height);
}

static void shrink(CUmemoryPool pool, uint64_t keep)
{
    uint64_t wanted = fake_rounded(pool->used > keep ? pool->used : keep);
    if (pool->reserved > wanted) {
        fake_give(pool->device, pool->reserved - wanted);
        pool->reserved = wanted;
    }
}

void fake_empty_context(CUcontext context)
{
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < NUM_BUCKETS; i++)
        for (block **place = &buckets[i]; *place;) {
            block *found = *place;
            if (found->kind != PLAIN || found->context != context) {
                place = &found->next;
                continue;
            }
            *place = found->next;
            munmap((void *)(uintptr_t)found->address, found->bytes);
            fake_give(found->device, found->bytes);
            free(found);
        }
    pthread_mutex_unlock(&mutex);
}

static CUresult release(CUdeviceptr dptr)
{
    pthread_mutex_lock(&mutex);
    block **place = seek(dptr), *found = *place;
    if (!found || found->kind == MAPPED) {
        pthread_mutex_unlock(&mutex);
        return dptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    *place = found->next;
    munmap((void *)(uintptr_t)dptr, found->bytes);
    if (found->kind == POOLED) {
        found->pool->used -= found->bytes;
        /* The last that was handed out of a destroyed pool takes it along. */
        if (found->pool->is_destroyed)
            shrink(found->pool, 0);
    } else
        fake_give(found->device, found->bytes);
    pthread_mutex_unlock(&mutex);
    free(found);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    FAKE_ENTER("cuMemFree_v2");
    return release(dptr);
}

FAKE_EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
    (void)stream;
    FAKE_ENTER("cuMemFreeAsync");
    return release(dptr);
}

/* ---------------------------------------------------------------- pools */

/* What a synchronisation does: memory beyond the threshold goes back. */
void fake_pools_synchronised(void)
{
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < num_pools; i++)
        shrink(all_pools[i], all_pools[i]->threshold);
    pthread_mutex_unlock(&mutex);
}

static CUresult from_pool(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool)
{
    CUresult outcome = CUDA_ERROR_OUT_OF_MEMORY;
    if (!dptr || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    uint64_t wanted = fake_rounded(pool->used + bytes);
    if (wanted >= bytes &&
        (wanted <= pool->reserved || fake_take(pool->device, wanted - pool->reserved))) {
        if (wanted > pool->reserved)
            pool->reserved = wanted;
        void *memory = fake_back(bytes);
        if (memory) {
            pool->used += bytes;
            put((uint64_t)(uintptr_t)memory, bytes, pool->device, POOLED, pool);
            *dptr = (CUdeviceptr)(uintptr_t)memory;
            outcome = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mutex);
    return outcome;
}

static CUmemoryPool default_pool(CUdevice device)
{
    const fake_device *found = fake_visible(device);
    if (!found)
        return NULL;
    pthread_mutex_lock(&mutex);
    if (!defaults[device].device) {
        defaults[device].device = found;
        all_pools[num_pools++] = &defaults[device];
    }
    if (!current[device])
        current[device] = &defaults[device];
    pthread_mutex_unlock(&mutex);
    return &defaults[device];
}

FAKE_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    FAKE_ENTER("cuDeviceGetDefaultMemPool");
    *pool = default_pool(device);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

FAKE_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    FAKE_ENTER("cuDeviceGetMemPool");
    if (!default_pool(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *pool = current[device];
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    FAKE_ENTER("cuDeviceSetMemPool");
    if (!default_pool(device) || !pool)
        return CUDA_ERROR_INVALID_VALUE;
    current[device] = pool;
    return CUDA_SUCCESS;
}

/* A graph takes what is recorded when it is launched; until then there is an address only. */
static CUresult record(CUdeviceptr *dptr, uint64_t bytes, CUstream stream, CUdevice device)
{
    fake_recording(stream)->bytes += fake_rounded(bytes);
    fake_recording(stream)->device = device;
    *dptr = (CUdeviceptr)(uintptr_t)fake_back(bytes);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
    CUdevice device;
    FAKE_ENTER("cuMemAllocAsync");
    if (!fake_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    device = fake_current()->device;
    if (fake_recording(stream))
        return record(dptr, bytes, stream, device);
    default_pool(device);
    return from_pool(dptr, bytes, current[device]);
}

FAKE_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
                                             CUstream stream)
{
    FAKE_ENTER("cuMemAllocFromPoolAsync");
    if (fake_recording(stream))
        return record(dptr, bytes, stream, fake_current()->device);
    return pool ? from_pool(dptr, bytes, pool) : CUDA_ERROR_INVALID_VALUE;
}

FAKE_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    FAKE_ENTER("cuMemPoolCreate");
    const fake_device *device = fake_visible(props->location.id);
    if (!device || num_pools == 256)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = calloc(1, sizeof **pool);
    (*pool)->device = device;
    pthread_mutex_lock(&mutex);
    all_pools[num_pools++] = *pool;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    FAKE_ENTER("cuMemPoolDestroy");
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < num_pools; i++)
        if (all_pools[i] == pool)
            all_pools[i--] = all_pools[--num_pools];
    /* What is handed out stays until it is freed. */
    pool->is_destroyed = 1;
    shrink(pool, 0);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes)
{
    FAKE_ENTER("cuMemPoolTrimTo");
    pthread_mutex_lock(&mutex);
    shrink(pool, bytes);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    FAKE_ENTER("cuMemPoolSetAttribute");
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(uint64_t *)value;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    FAKE_ENTER("cuMemPoolGetAttribute");
    if (pool->is_destroyed)
        abort();
    *(uint64_t *)value = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->reserved
                         : attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT   ? pool->used
                         : attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD  ? pool->threshold
                                                                           : 0;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------- virtual memory management */

FAKE_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes,
                                 const CUmemAllocationProp *prop, unsigned long long flags)
{
    (void)flags;
    FAKE_ENTER("cuMemCreate");
    const fake_device *device = fake_visible(prop->location.id);
    if (!device || !bytes || bytes % GRANULE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!fake_take(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int file = memfd_create("device memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) {
        fake_give(device, bytes);
        if (file >= 0)
            close(file);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&mutex);
    handle *new = gone ? gone : malloc(sizeof *new);
    if (gone)
        gone = gone->next;
    *new = (handle){.device = device, .bytes = bytes, .references = 1, .file = file};
    pthread_mutex_unlock(&mutex);
    *out = (CUmemGenericAllocationHandle)(uintptr_t)new;
    return CUDA_SUCCESS;
}

static void drop(handle *found, int references, int mappings)
{
    found->references -= references;
    found->mappings -= mappings;
    if (found->references || found->mappings)
        return;
    fake_give(found->device, found->bytes);
    close(found->file);
    found->next = gone;
    gone = found;
}

FAKE_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle value)
{
    FAKE_ENTER("cuMemRelease");
    pthread_mutex_lock(&mutex);
    drop((handle *)(uintptr_t)value, 1, 0);
    pthread_mutex_unlock(&mutex);
    fake_lag();
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t bytes, size_t alignment,
                                         CUdeviceptr address, unsigned long long flags)
{
    (void)alignment, (void)address, (void)flags;
    FAKE_ENTER("cuMemAddressReserve");
    void *space = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *ptr = (CUdeviceptr)(uintptr_t)space;
    return space == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t bytes)
{
    FAKE_ENTER("cuMemAddressFree");
    return munmap((void *)(uintptr_t)ptr, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset,
                              CUmemGenericAllocationHandle value, unsigned long long flags)
{
    (void)flags;
    FAKE_ENTER("cuMemMap");
    handle *found = (handle *)(uintptr_t)value;
    if (mmap((void *)(uintptr_t)ptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             found->file, (off_t)offset) == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    found->mappings++;
    put(ptr, bytes, found->device, MAPPED, (CUmemoryPool)found);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t bytes)
{
    FAKE_ENTER("cuMemUnmap");
    pthread_mutex_lock(&mutex);
    for (uint64_t at = ptr; at < ptr + bytes;) {
        block **place = seek(at), *found = *place;
        if (!found || found->kind != MAPPED)
            break;
        *place = found->next;
        at += found->bytes;
        drop((handle *)found->pool, 0, 1);
        free(found);
    }
    pthread_mutex_unlock(&mutex);
    mmap((void *)(uintptr_t)ptr, bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    fake_lag();
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t bytes, const void *desc, size_t count)
{
    (void)ptr, (void)bytes, (void)desc, (void)count;
    FAKE_ENTER("cuMemSetAccess");
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    FAKE_ENTER("cuMemRetainAllocationHandle");
    pthread_mutex_lock(&mutex);
    block *found = *seek((uint64_t)(uintptr_t)address);
    int is_mapped = found && found->kind == MAPPED;
    if (is_mapped) {
        ((handle *)found->pool)->references++;
        *out = (CUmemGenericAllocationHandle)(uintptr_t)found->pool;
    }
    pthread_mutex_unlock(&mutex);
    return is_mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---------------------------------------------------------------- arrays */

static CUresult create_array(CUarray *array, uint64_t bytes, unsigned flags)
{
    const fake_device *device = fake_current_device();
    if (!device)
        return CUDA_ERROR_INVALID_CONTEXT;
    bytes = flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)
                ? 0
                : (bytes + 65535) / 65536 * 65536;
    if (!fake_take(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *array = malloc(sizeof **array);
    **array = (struct CUarray_st){device, bytes, flags};
    return CUDA_SUCCESS;
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned level)
{
    uint64_t element = desc->Format == 1 || desc->Format == 8 ? 1 : desc->Format & 0x20 ? 4
                       : desc->Format == 3 || desc->Format == 10 ? 4 : 2;
    uint64_t width = desc->Width >> level, height = desc->Height >> level,
             depth = desc->Depth >> level;
    return (width ? width : 1) * (height ? height : 1) * (depth ? depth : 1) * desc->NumChannels *
           element;
}

FAKE_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    FAKE_ENTER("cuArray3DCreate_v2");
    return create_array(array, array_bytes(desc, 0), desc->Flags);
}

FAKE_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {desc->Width, desc->Height, 0, desc->Format, desc->NumChannels, 0};
    FAKE_ENTER("cuArrayCreate_v2");
    return create_array(array, array_bytes(&full, 0), 0);
}

FAKE_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                            const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
    FAKE_ENTER("cuMipmappedArrayCreate");
    uint64_t bytes = 0;
    for (unsigned level = 0; level < levels; level++)
        bytes += array_bytes(desc, level);
    return create_array((CUarray *)array, bytes, desc->Flags);
}

FAKE_EXPORT CUresult cuArrayDestroy(CUarray array)
{
    FAKE_ENTER("cuArrayDestroy");
    fake_give(array->device, array->bytes);
    free(array);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return cuArrayDestroy((CUarray)array);
}
