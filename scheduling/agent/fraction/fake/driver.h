/* What the fake driver libraries share: a simulated node's devices, from `driver.conf` beside the
 * library, and their memory in one file of the region's form, so that neighbours really fill it.
 *
 *   driver 580.95.05            version of the driver
 *   cuda 13000                  what cuDriverGetVersion says
 *   region /path                memory of the devices
 *   bandwidth 12000             MiB/s of a checkpoint's copy; 0: at once
 *   context 314572800           bytes that a process's first context takes on a device; 0: none
 *   kernel 20000                ns of device time per kernel launch; 0: none
 *   hides                       cuGetProcAddress answers with addresses that are not exported
 *   limits /path                folder of the cgroup limits (driver 615 and newer)
 *   device UUID usable_bytes reserved_bytes major minor index minor_number name
 *   mig UUID parent_UUID usable_bytes gi ci name      an instance of a device
 *   fail FUNCTION result after times
 */
#ifndef ALLOT_FAKE_DRIVER_H
#define ALLOT_FAKE_DRIVER_H

#include "../native/limits.h"
#include "../native/region.h"

#define FAKE_MAX_FAILURES 16

typedef struct {
    char uuid_text[64], parent[64], name[96];
    uint8_t uuid[16];
    uint64_t usable, reserved;
    int major, minor, index, minor_number;
    int is_mig, gpu_instance, compute_instance;
    int place; /* in the region; -1: it vanished */
} fake_device;

typedef struct {
    char driver[64], region[ALLOT_PATH_MAX], limits[ALLOT_PATH_MAX];
    int cuda, hides;
    uint64_t bandwidth_mib_s, kernel_ns, context_bytes, lag_ns;
    int num_devices, num_failures;
    fake_device devices[ALLOT_MAX_GPUS];
    struct { char function[64]; int result, after, times; _Atomic int num_calls; } failures[FAKE_MAX_FAILURES];
    allot_account account;
} fake_driver;

/* Read once per process and again in a forked child; NULL without a usable configuration. */
fake_driver *fake_driver_get(void);
/* The driver with a slot taken in the devices' memory. */
fake_driver *fake_driver_join(void);
uint64_t fake_now_ns(void);
void fake_sleep_ns(uint64_t ns);
/* What was let go is free for others so long before the caller is told (`lag` in the configuration). */
void fake_lag(void);
/* A process as the caller's PID namespace numbers it; 0 if it cannot be seen there. */
unsigned fake_visible_pid(const allot_region_process *process);
/* The slot of a process that the caller numbers so; -1 if it does not use the driver. */
int fake_slot_of(fake_driver *driver, int pid);

#endif
