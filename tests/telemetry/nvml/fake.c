/* A libnvidia-ml of two devices: the first answers everything until the file named by
 * FAKE_NVML_FAILED exists, then it is lost; the second lacks counters per process, PCIe and Xid. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, LOST = 15 };

typedef struct { int number; } device_t;
static device_t devices[2] = {{0}, {1}};

static int state(const device_t *device) {
    const char *failed = getenv("FAKE_NVML_FAILED");
    return device->number == 0 && failed && access(failed, F_OK) == 0 ? LOST : OK;
}

#define ANSWER(...) do { int s = state(device); if (s) return s; __VA_ARGS__; return OK; } while (0)
#define ONLY_FIRST(...) do { if (device->number) return NOT_SUPPORTED; ANSWER(__VA_ARGS__); } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **device) {
    if (!strcmp(uuid, "GPU-0")) *device = &devices[0];
    else if (!strcmp(uuid, "GPU-1")) *device = &devices[1];
    else return NOT_FOUND;
    return OK;
}

typedef struct { unsigned gpu, memory; } utilization_t;
int nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *out) {
    ANSWER(out->gpu = 70 + device->number; out->memory = 30);
}

typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *out) {
    ANSWER(out->total = 16ULL << 30; out->used = 4ULL << 30; out->free = 12ULL << 30);
}

int nvmlDeviceGetPowerUsage(device_t *device, unsigned *mw) { ANSWER(*mw = 61500); }
int nvmlDeviceGetTemperature(device_t *device, int sensor, unsigned *c) { (void)sensor; ANSWER(*c = 55); }
int nvmlDeviceGetClockInfo(device_t *device, int clock, unsigned *mhz) { ANSWER(*mhz = clock == 1 ? 1590 : 5000); }
int nvmlDeviceGetEncoderUtilization(device_t *device, unsigned *util, unsigned *period) { ANSWER(*util = 5; *period = 1000); }
int nvmlDeviceGetDecoderUtilization(device_t *device, unsigned *util, unsigned *period) { ANSWER(*util = 6; *period = 1000); }
int nvmlDeviceGetCurrentClocksEventReasons(device_t *device, unsigned long long *out) {
    /* The first is slowed by heat; the second only reached its power limit. */
    ANSWER(*out = device->number ? 0x4ULL : 0x40ULL);
}
int nvmlDeviceGetPcieThroughput(device_t *device, int counter, unsigned *kb) { ONLY_FIRST(*kb = counter ? 200 : 100); }
int nvmlDeviceGetPcieReplayCounter(device_t *device, unsigned *count) { ONLY_FIRST(*count = 3); }
int nvmlDeviceGetTotalEccErrors(device_t *device, int type, int counter, unsigned long long *count) {
    (void)counter; ANSWER(*count = type ? 1 : 12);
}
int nvmlDeviceGetRemappedRows(device_t *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ONLY_FIRST(*corrected = 2; *uncorrected = 1; *pending = 0; *failed = 0);
}

typedef struct {
    unsigned fieldId, scopeId; long long timestamp, latency; int valueType, nvmlReturn;
    union { double d; unsigned ui; unsigned long long ull; } value;
} field_t;
int nvmlDeviceGetFieldValues(device_t *device, int count, field_t *fields) {
    for (int i = 0; i < count; i++) {
        fields[i].nvmlReturn = device->number ? NOT_SUPPORTED : OK;
        fields[i].value.ui = 66;
    }
    return state(device);
}

typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
int nvmlDeviceGetComputeRunningProcesses_v3(device_t *device, unsigned *count, process_t *out) {
    int s = state(device);
    if (s) return s;
    if (device->number) return NOT_SUPPORTED;
    if (!out) { *count = 1; return INSUFFICIENT_SIZE; }
    out[0] = (process_t){4711, 1ULL << 30, 0xFFFFFFFF, 0xFFFFFFFF};
    *count = 1;
    return OK;
}

typedef struct { unsigned pid; unsigned long long at; unsigned sm, mem, enc, dec; } sample_t;
int nvmlDeviceGetProcessUtilization(device_t *device, sample_t *out, unsigned *count, unsigned long long since) {
    int s = state(device);
    (void)since;
    if (s) return s;
    if (device->number) return NOT_SUPPORTED;
    if (!out) { *count = 1; return INSUFFICIENT_SIZE; }
    out[0] = (sample_t){4711, 1000, 35, 10, 0, 0};
    *count = 1;
    return OK;
}

/* One Xid 79 waits in the set of the first device. */
static int waiting = 1;
typedef struct { device_t *device; unsigned long long type, data; unsigned gi, ci; } event_t;
int nvmlDeviceGetSupportedEventTypes(device_t *device, unsigned long long *types) { ONLY_FIRST(*types = 0x8); }
int nvmlEventSetCreate(void **set) { *set = &waiting; return OK; }
int nvmlDeviceRegisterEvents(device_t *device, unsigned long long types, void *set) { (void)types; (void)set; ONLY_FIRST(); }
int nvmlEventSetWait_v2(void *set, event_t *out, unsigned timeout) {
    (void)set; (void)timeout;
    if (!waiting) return TIMEOUT;
    waiting = 0;
    *out = (event_t){&devices[0], 0x8, 79, 0, 0};
    return OK;
}
