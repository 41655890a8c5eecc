/* Fake libnvidia-ml: the devices of `driver.conf`, their memory and processes, MIG instances, and
 * (driver 615 and newer) memory limits of cgroups, kept in a file per device and cgroup. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../native/nvml_abi.h"
#include "driver.h"

#define EXPORT __attribute__((visibility("default")))
#define NO_LIMIT UINT64_MAX

/* Tells a program of ours that the devices are simulated. */
EXPORT const int allot_simulated = 1;

static int num_inits;

static nvmlReturn_t ready(void)
{
    return num_inits && fake_driver_get() ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

static nvmlReturn_t injected(const char *function)
{
    fake_driver *driver = fake_driver_get();
    for (int i = 0; i < driver->num_failures; i++) {
        typeof(driver->failures[0]) *failure = &driver->failures[i];
        int call;
        if (strcmp(failure->function, function) == 0 &&
            (call = atomic_fetch_add(&failure->num_calls, 1)) >= failure->after &&
            call < failure->after + failure->times)
            return failure->result;
    }
    return NVML_SUCCESS;
}

#define ENTER(...)                                                                                 \
    do {                                                                                           \
        nvmlReturn_t outcome_ = ready();                                                           \
        if (outcome_ == NVML_SUCCESS)                                                              \
            outcome_ = injected(__func__);                                                         \
        if (outcome_ != NVML_SUCCESS || !(__VA_ARGS__))                                            \
            return outcome_ ? outcome_ : NVML_ERROR_INVALID_ARGUMENT;                              \
    } while (0)

static fake_device *device_of(nvmlDevice_t handle)
{
    fake_driver *driver = fake_driver_get();
    fake_device *device = (fake_device *)handle;
    return driver && device >= driver->devices && device < driver->devices + driver->num_devices ? device : NULL;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    if (!fake_driver_get())
        return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
    num_inits++;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    if (!num_inits)
        return NVML_ERROR_UNINITIALIZED;
    num_inits--;
    return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

static nvmlReturn_t text(char *out, unsigned size, const char *value)
{
    if (strlen(value) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, value);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    ENTER(out);
    return text(out, size, fake_driver_get()->driver);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    char version[96];
    ENTER(out);
    snprintf(version, sizeof version, "%d.%s", fake_driver_get()->cuda / 1000, fake_driver_get()->driver);
    return text(out, size, version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER(version);
    *version = fake_driver_get()->cuda;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

static int is_listed(const fake_device *device) { return !device->is_mig && device->place >= 0; }

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER(count);
    fake_driver *driver = fake_driver_get();
    *count = 0;
    for (int i = 0; i < driver->num_devices; i++)
        *count += (unsigned)is_listed(&driver->devices[i]);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    ENTER(device);
    fake_driver *driver = fake_driver_get();
    for (int i = 0; i < driver->num_devices; i++)
        if (is_listed(&driver->devices[i]) && index-- == 0) {
            *device = (nvmlDevice_t)&driver->devices[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER(uuid && device);
    fake_driver *driver = fake_driver_get();
    for (int i = 0; i < driver->num_devices; i++)
        if (driver->devices[i].place >= 0 && strcmp(driver->devices[i].uuid_text, uuid) == 0) {
            *device = (nvmlDevice_t)&driver->devices[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

#define OF_DEVICE(condition)                                                                       \
    fake_device *device = device_of(handle);                                                       \
    ENTER(device && (condition))

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *out, unsigned size)
{
    OF_DEVICE(out);
    return text(out, size, device->uuid_text);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *out, unsigned size)
{
    OF_DEVICE(out);
    return text(out, size, device->name);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned *index)
{
    OF_DEVICE(index);
    *index = 0;
    for (fake_device *each = fake_driver_get()->devices; each < device; each++)
        *index += (unsigned)is_listed(each);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned *minor)
{
    OF_DEVICE(minor);
    *minor = (unsigned)device->minor_number;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor)
{
    OF_DEVICE(major && minor);
    *major = device->major;
    *minor = device->minor;
    return NVML_SUCCESS;
}

static uint64_t used(const fake_device *device)
{
    allot_account *account = &fake_driver_get()->account;
    /* A driver knows at once; whether a restore is begun depends on it. */
    allot_account_sweep(account);
    uint64_t sum = allot_account_used(account, (unsigned)device->place);
    return sum < device->usable ? sum : device->usable;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    OF_DEVICE(memory);
    memory->total = device->usable + device->reserved;
    memory->used = used(device) + device->reserved;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    OF_DEVICE(memory);
    if (memory->version != NVML_MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = device->usable + device->reserved;
    memory->reserved = device->reserved;
    memory->used = used(device);
    memory->free = device->usable - memory->used;
    return NVML_SUCCESS;
}

static unsigned processes(const fake_device *device, nvmlProcessInfo_t *infos, unsigned room)
{
    allot_account *account = &fake_driver_get()->account;
    unsigned count = 0;
    for (uint32_t slot = 0; slot < account->map->high_slot && slot < ALLOT_MAX_SLOTS; slot++) {
        uint64_t bytes = atomic_load(&account->map->used[device->place][slot]);
        unsigned pid;
        if (!bytes || !allot_account_is_alive(account, (int)slot) ||
            !(pid = fake_visible_pid(&account->map->processes[slot])))
            continue;
        if (count < room)
            infos[count] = (nvmlProcessInfo_t){pid, bytes, 0xffffffffu, 0xffffffffu};
        count++;
    }
    return count;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                            nvmlProcessInfo_t *infos)
{
    OF_DEVICE(count);
    unsigned room = *count;
    *count = processes(device, infos, room);
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned *count,
                                                            nvmlProcessInfo_t *infos)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned *count,
                                                         nvmlProcessInfo_v1_t *infos)
{
    nvmlProcessInfo_t found[ALLOT_MAX_SLOTS];
    OF_DEVICE(count);
    unsigned room = *count;
    *count = processes(device, found, ALLOT_MAX_SLOTS);
    for (unsigned i = 0; i < *count && i < room; i++)
        infos[i] = (nvmlProcessInfo_v1_t){found[i].pid, found[i].usedGpuMemory};
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define NONE(name)                                                                                 \
    EXPORT nvmlReturn_t name(nvmlDevice_t handle, unsigned *count, void *infos)                    \
    {                                                                                              \
        (void)infos;                                                                               \
        OF_DEVICE(count);                                                                          \
        *count = 0;                                                                                \
        return NVML_SUCCESS;                                                                       \
    }
NONE(nvmlDeviceGetGraphicsRunningProcesses)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v2)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v3)
NONE(nvmlDeviceGetMPSComputeRunningProcesses)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v3)

/* Busy or not at this moment: of a queue that ends later than now. */
static unsigned busy_percent(const fake_device *device)
{
    uint64_t until = atomic_load(&fake_driver_get()->account.map->gpus[device->place].busy_until);
    return until > fake_now_ns() ? 100 : 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *rates)
{
    OF_DEVICE(rates);
    rates->gpu = busy_percent(device);
    rates->memory = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle,
                                                    nvmlProcessUtilizationSample_t *samples,
                                                    unsigned *count, unsigned long long since)
{
    nvmlProcessInfo_t found[ALLOT_MAX_SLOTS];
    (void)since;
    OF_DEVICE(count);
    unsigned room = *count, num = processes(device, found, ALLOT_MAX_SLOTS);
    *count = num;
    if (num == 0)
        return NVML_ERROR_NOT_FOUND;
    if (!samples || num > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memset(samples, 0, num * sizeof *samples);
    for (unsigned i = 0; i < num; i++) {
        samples[i].pid = found[i].pid;
        samples[i].smUtil = busy_percent(device) / num;
        samples[i].timeStamp = fake_now_ns() / 1000;
    }
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- MIG */

static fake_device *instance(const fake_device *parent, unsigned index)
{
    fake_driver *driver = fake_driver_get();
    for (int i = 0; i < driver->num_devices; i++)
        if (driver->devices[i].is_mig && driver->devices[i].place >= 0 &&
            strcmp(driver->devices[i].parent, parent->uuid_text) == 0 && index-- == 0)
            return &driver->devices[i];
    return NULL;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *now, unsigned *pending)
{
    OF_DEVICE(now && pending);
    if (device->major < 8)
        return NVML_ERROR_NOT_SUPPORTED;
    *now = *pending = instance(device, 0) != NULL;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned *count)
{
    OF_DEVICE(count);
    *count = device->major >= 8 ? 7 : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index,
                                                        nvmlDevice_t *out)
{
    OF_DEVICE(out);
    *out = (nvmlDevice_t)instance(device, index);
    return *out ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned *is_mig)
{
    OF_DEVICE(is_mig);
    *is_mig = (unsigned)device->is_mig;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t *out)
{
    OF_DEVICE(out && device->is_mig);
    return nvmlDeviceGetHandleByUUID(device->parent, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned *id)
{
    OF_DEVICE(id && device->is_mig);
    *id = (unsigned)device->gpu_instance;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned *id)
{
    OF_DEVICE(id && device->is_mig);
    *id = (unsigned)device->compute_instance;
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- limits of cgroups */

typedef struct { const char *nameSpace; unsigned long long softLimit, hardLimit; } set_limits;
typedef struct { const char *nameSpace; unsigned long long softLimit, hardLimit, currentUsed; } get_limits;

static int limits_file(const fake_device *device, const char *cgroup, char *path, size_t size)
{
    uint64_t hash = 1469598103934665603ull;
    for (const char *c = cgroup; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
    return snprintf(path, size, "%s/%s-%016" PRIx64, fake_driver_get()->limits, device->uuid_text,
                    hash) < (int)size;
}

static nvmlReturn_t can_limit(const fake_device *device, const char *cgroup)
{
    struct stat found;
    fake_driver *driver = fake_driver_get();
    if (atoi(driver->driver) < 615 || !driver->limits[0] || device->is_mig ||
        device->major * 10 + device->minor < 75)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!cgroup || stat(cgroup, &found) != 0 || !S_ISDIR(found.st_mode))
        return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t handle, const set_limits *limits)
{
    char path[ALLOT_PATH_MAX + 128];
    OF_DEVICE(limits);
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t outcome = can_limit(device, limits->nameSpace);
    if (outcome != NVML_SUCCESS)
        return outcome;
    if (limits->softLimit > limits->hardLimit ||
        !limits_file(device, limits->nameSpace, path, sizeof path))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (limits->hardLimit == NO_LIMIT && limits->softLimit == 0) {
        unlink(path);
        return NVML_SUCCESS;
    }
    FILE *file = fopen(path, "we");
    if (!file)
        return NVML_ERROR_UNKNOWN;
    fprintf(file, "%llu %llu %s\n", limits->softLimit, limits->hardLimit, limits->nameSpace);
    return fclose(file) ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t handle, get_limits *limits)
{
    char path[ALLOT_PATH_MAX + 128];
    OF_DEVICE(limits);
    nvmlReturn_t outcome = can_limit(device, limits->nameSpace);
    if (outcome != NVML_SUCCESS)
        return outcome;
    limits->softLimit = 0;
    limits->hardLimit = NO_LIMIT;
    limits->currentUsed = 0;
    if (!limits_file(device, limits->nameSpace, path, sizeof path))
        return NVML_ERROR_INVALID_ARGUMENT;
    FILE *file = fopen(path, "re");
    if (file) {
        if (fscanf(file, "%llu %llu", &limits->softLimit, &limits->hardLimit) != 2)
            limits->hardLimit = NO_LIMIT;
        fclose(file);
    }
    return NVML_SUCCESS;
}

/* NVIDIA's own nvidia-smi asks for an undocumented table first; each of its functions is one that
 * this driver does not support. */
static nvmlReturn_t unsupported(void) { return NVML_ERROR_NOT_SUPPORTED; }

EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id)
{
    static nvmlReturn_t (*functions[512])(void);
    if (!table || !id)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < 512; i++)
        functions[i] = unsupported;
    *table = functions;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(void **set)
{
    static int only;
    ENTER(set);
    *set = &only;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(void *set)
{
    ENTER(set);
    return NVML_SUCCESS;
}

/* What a simulated device does not have: nvidia-smi shows N/A for it. */
#define UNSUPPORTED(name)                                                                          \
    EXPORT nvmlReturn_t name(void) { return NVML_ERROR_NOT_SUPPORTED; }
UNSUPPORTED(nvmlDeviceGetPciInfo_v3)
UNSUPPORTED(nvmlDeviceGetPersistenceMode)
UNSUPPORTED(nvmlDeviceGetDisplayActive)
UNSUPPORTED(nvmlDeviceGetEccMode)
UNSUPPORTED(nvmlDeviceGetFanSpeed)
UNSUPPORTED(nvmlDeviceGetTemperature)
UNSUPPORTED(nvmlDeviceGetPerformanceState)
UNSUPPORTED(nvmlDeviceGetPowerUsage)
UNSUPPORTED(nvmlDeviceGetEnforcedPowerLimit)
UNSUPPORTED(nvmlDeviceGetComputeMode)
UNSUPPORTED(nvmlDeviceGetVirtualizationMode)
UNSUPPORTED(nvmlDeviceValidateInforom)
