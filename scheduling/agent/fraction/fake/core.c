/* Fake libcuda: devices, contexts, errors, and how any function is found. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

#include "libcuda.h"

#define MAX_STACK 32

static fake_driver *driver;
static int visible[ALLOT_MAX_GPUS], num_visible;
static struct CUctx_st primary[ALLOT_MAX_GPUS];
static _Atomic int num_contexts[ALLOT_MAX_GPUS];
static __thread CUcontext stack[MAX_STACK];
static __thread int depth;

static void in_child(void)
{
    driver = NULL;
    memset(primary, 0, sizeof primary);
    memset((void *)num_contexts, 0, sizeof num_contexts);
    depth = 0;
}

__attribute__((constructor)) static void watch(void) { pthread_atfork(NULL, NULL, in_child); }

static CUresult injected(const char *function)
{
    for (int i = 0; i < driver->num_failures; i++) {
        typeof(driver->failures[0]) *failure = &driver->failures[i];
        if (strcmp(failure->function, function) != 0)
            continue;
        int call = atomic_fetch_add(&failure->num_calls, 1);
        if (call >= failure->after && call < failure->after + failure->times)
            return failure->result;
    }
    return CUDA_SUCCESS;
}

CUresult fake_enter(const char *function)
{
    if (!driver)
        return CUDA_ERROR_NOT_INITIALIZED;
    allot_region_process *own = &driver->account.map->processes[driver->account.slot];
    while (atomic_load(&own->checkpoint_state))
        fake_sleep_ns(1000000);
    return injected(function);
}

static void choose_visible(void)
{
    const char *asked = getenv("CUDA_VISIBLE_DEVICES");
    char *copy = asked ? strdup(asked) : NULL, *saved = NULL;
    num_visible = 0;
    for (int i = 0; !asked && i < driver->num_devices; i++)
        if (driver->devices[i].place >= 0)
            visible[num_visible++] = i;
    for (char *word = copy ? strtok_r(copy, ",", &saved) : NULL; word;
         word = strtok_r(NULL, ",", &saved)) {
        int found = -1;
        for (int i = 0; i < driver->num_devices; i++)
            if (!strncasecmp(driver->devices[i].uuid_text, word, strlen(word)) && strlen(word) > 4)
                found = i;
        if (found < 0 && strspn(word, "0123456789") == strlen(word) &&
            atoi(word) < driver->num_devices)
            found = atoi(word);
        /* As the driver does: what follows a wrong word is not seen. */
        if (found < 0 || driver->devices[found].place < 0 || num_visible == ALLOT_MAX_GPUS)
            break;
        visible[num_visible++] = found;
    }
    free(copy);
}

FAKE_EXPORT CUresult cuInit(unsigned flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (driver)
        return CUDA_SUCCESS;
    driver = fake_driver_join();
    if (!driver)
        return CUDA_ERROR_NO_DEVICE;
    choose_visible();
    return num_visible ? injected("cuInit") : CUDA_ERROR_NO_DEVICE;
}

int fake_num_visible(void) { return num_visible; }

const fake_device *fake_visible(CUdevice ordinal)
{
    return driver && ordinal >= 0 && ordinal < num_visible ? &driver->devices[visible[ordinal]] : NULL;
}

CUcontext fake_current(void) { return depth ? stack[depth - 1] : NULL; }

const fake_device *fake_current_device(void)
{
    return fake_current() ? fake_visible(fake_current()->device) : NULL;
}

int fake_take(const fake_device *device, uint64_t bytes)
{
    return allot_account_reserve(&driver->account, (unsigned)device->place, bytes,
                                 driver->account.map->gpus[device->place].limit);
}

void fake_give(const fake_device *device, uint64_t bytes)
{
    allot_account_release(&driver->account, (unsigned)device->place, bytes);
}

void *fake_back(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* ---------------------------------------------------------------- devices */

FAKE_EXPORT CUresult cuDriverGetVersion(int *version)
{
    fake_driver *found = fake_driver_get();
    if (!found)
        return CUDA_ERROR_NO_DEVICE;
    *version = found->cuda;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetCount(int *count)
{
    FAKE_ENTER("cuDeviceGetCount");
    *count = num_visible;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    FAKE_ENTER("cuDeviceGet");
    *device = ordinal;
    return fake_visible(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

FAKE_EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    const fake_device *found = fake_visible(device);
    if (!found)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)size, "%s", found->name);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    const fake_device *found = fake_visible(device);
    if (!found)
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, found->uuid, 16);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid_v2(uuid, device);
}

FAKE_EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    const fake_device *found = fake_visible(device);
    if (!found)
        return CUDA_ERROR_INVALID_DEVICE;
    /* 75, 76: compute capability; 102: virtual memory management; 115: memory pools. */
    *value = attribute == 75 ? found->major : attribute == 76 ? found->minor
             : attribute == 102 || attribute == 115;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    const fake_device *found = fake_visible(device);
    if (!found)
        return CUDA_ERROR_INVALID_DEVICE;
    *major = found->major;
    *minor = found->minor;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    const fake_device *found = fake_visible(device);
    if (!found)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = found->usable;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    FAKE_ENTER("cuMemGetInfo_v2");
    const fake_device *device = fake_current_device();
    if (!device)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t used = allot_account_used(&driver->account, (unsigned)device->place);
    *total = device->usable;
    *free_bytes = used < device->usable ? device->usable - used : 0;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------- contexts */

static CUresult push(CUcontext context)
{
    /* The driver may well crash; it must not be asked. */
    if (context->is_destroyed)
        abort();
    if (depth == MAX_STACK)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

/* A process's first context on a device takes memory that no call names; its last gives it back. */
static int begin_context(CUdevice device)
{
    const fake_device *found = fake_visible(device);
    if (atomic_fetch_add(&num_contexts[device], 1) || fake_take(found, driver->context_bytes))
        return 1;
    atomic_fetch_sub(&num_contexts[device], 1);
    return 0;
}

static void end_context(CUdevice device)
{
    if (atomic_fetch_sub(&num_contexts[device], 1) == 1)
        fake_give(fake_visible(device), driver->context_bytes);
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    FAKE_ENTER("cuDevicePrimaryCtxRetain");
    if (!fake_visible(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!primary[device].num_retained && !begin_context(device))
        return CUDA_ERROR_OUT_OF_MEMORY;
    primary[device].device = device;
    primary[device].is_primary = 1;
    primary[device].num_retained++;
    *context = &primary[device];
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    FAKE_ENTER("cuDevicePrimaryCtxRelease_v2");
    if (!fake_visible(device) || !primary[device].num_retained)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary[device].num_retained == 0) {
        fake_empty_context(&primary[device]);
        end_context(device);
        fake_lag();
    }
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    FAKE_ENTER("cuDevicePrimaryCtxReset_v2");
    if (!fake_visible(device))
        return CUDA_ERROR_INVALID_DEVICE;
    fake_empty_context(&primary[device]);
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return cuDevicePrimaryCtxReset_v2(device);
}

FAKE_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    FAKE_ENTER("cuCtxCreate_v2");
    if (!fake_visible(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUcontext new = calloc(1, sizeof *new);
    if (!new || !begin_context(device)) {
        free(new);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    new->device = device;
    *context = new;
    return push(new);
}

FAKE_EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    return cuCtxCreate_v2(context, flags, device);
}

FAKE_EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int num, unsigned flags,
                                    CUdevice device)
{
    (void)affinity, (void)num;
    return cuCtxCreate_v2(context, flags, device);
}

FAKE_EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *params, unsigned flags,
                                    CUdevice device)
{
    (void)params;
    return cuCtxCreate_v2(context, flags, device);
}

FAKE_EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    FAKE_ENTER("cuCtxDestroy_v2");
    if (!context || context->is_primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_current() == context)
        depth--;
    fake_empty_context(context);
    end_context(context->device);
    context->is_destroyed = 1;
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }

FAKE_EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (!driver)
        return CUDA_ERROR_NOT_INITIALIZED;
    *context = fake_current();
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    if (!driver)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (depth)
        depth--;
    return context ? push(context) : CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    return context ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

FAKE_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    if (!driver)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!fake_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = fake_current()->device;
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------- errors, functions */

static const struct { CUresult error; const char *name, *text; } errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
};

static int place_of(CUresult error)
{
    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error)
            return (int)i;
    return -1;
}

FAKE_EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    int place = place_of(error);
    *name = place >= 0 ? errors[place].name : NULL;
    return place >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    int place = place_of(error);
    *text = place >= 0 ? errors[place].text : NULL;
    return place >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* As the driver does: the newest variant not newer than what is asked for. */
static CUresult resolve(const char *symbol, void **pfn, int version, cuuint64_t flags, int *status)
{
    const fake_row *best = NULL;
    int is_known = 0, is_per_thread = (flags & 2) != 0;
    if (!symbol || !pfn)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < fake_num_rows; i++) {
        const fake_row *row = &fake_rows[i];
        if (strcmp(row->base, symbol) != 0)
            continue;
        is_known = 1;
        if (row->version > version || (row->is_per_thread && !is_per_thread))
            continue;
        if (!best || row->is_per_thread > best->is_per_thread ||
            (row->is_per_thread == best->is_per_thread && row->version >= best->version))
            best = row;
    }
    if (status)
        *status = best ? 0 : is_known ? 2 : 1;
    *pfn = !best ? NULL : driver && driver->hides ? best->hidden : best->function;
    return best || status ? (best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND) : CUDA_ERROR_NOT_FOUND;
}

FAKE_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    return resolve(symbol, pfn, version, flags, NULL);
}

FAKE_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version,
                                         cuuint64_t flags, int *status)
{
    return resolve(symbol, pfn, version, flags, status);
}
