#define _GNU_SOURCE
#include "driver.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static fake_driver driver;
static int is_read, is_joined;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

uint64_t fake_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void fake_sleep_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (nanosleep(&t, &t) != 0)
        ;
}

void fake_lag(void)
{
    if (driver.lag_ns)
        fake_sleep_ns(driver.lag_ns);
}

static void in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    if (is_read)
        allot_account_drop(&driver.account);
    is_read = is_joined = 0;
}

__attribute__((constructor)) static void watch(void) { pthread_atfork(NULL, NULL, in_child); }

static void read_line(char *line)
{
    char word[32], *rest;
    int at = 0;
    if (sscanf(line, "%31s %n", word, &at) != 1)
        return;
    rest = line + at;
    rest[strcspn(rest, "\n")] = 0;
    fake_device *device = &driver.devices[driver.num_devices];
    if (!strcmp(word, "driver"))
        snprintf(driver.driver, sizeof driver.driver, "%s", rest);
    else if (!strcmp(word, "cuda"))
        driver.cuda = atoi(rest);
    else if (!strcmp(word, "region"))
        snprintf(driver.region, sizeof driver.region, "%s", rest);
    else if (!strcmp(word, "limits"))
        snprintf(driver.limits, sizeof driver.limits, "%s", rest);
    else if (!strcmp(word, "bandwidth"))
        driver.bandwidth_mib_s = strtoull(rest, NULL, 10);
    else if (!strcmp(word, "context"))
        driver.context_bytes = strtoull(rest, NULL, 10);
    else if (!strcmp(word, "hides"))
        driver.hides = 1;
    else if (!strcmp(word, "lag"))
        driver.lag_ns = strtoull(rest, NULL, 10);
    else if (!strcmp(word, "kernel"))
        driver.kernel_ns = strtoull(rest, NULL, 10);
    else if (!strcmp(word, "fail") && driver.num_failures < FAKE_MAX_FAILURES) {
        typeof(driver.failures[0]) *failure = &driver.failures[driver.num_failures++];
        failure->times = 1;
        sscanf(rest, "%63s %d %d %d", failure->function, &failure->result, &failure->after,
               &failure->times);
    } else if (!strcmp(word, "device") && driver.num_devices < ALLOT_MAX_GPUS) {
        if (sscanf(rest, "%63s %" SCNu64 " %" SCNu64 " %d %d %d %d %95[^\n]", device->uuid_text,
                   &device->usable, &device->reserved, &device->major, &device->minor,
                   &device->index, &device->minor_number, device->name) == 8 &&
            allot_uuid_parse(device->uuid_text, device->uuid) == 0)
            driver.num_devices++;
    } else if (!strcmp(word, "mig") && driver.num_devices < ALLOT_MAX_GPUS) {
        if (sscanf(rest, "%63s %63s %" SCNu64 " %d %d %95[^\n]", device->uuid_text, device->parent,
                   &device->usable, &device->gpu_instance, &device->compute_instance,
                   device->name) == 6 &&
            allot_uuid_parse(device->uuid_text, device->uuid) == 0) {
            device->is_mig = 1;
            device->major = 8;
            driver.num_devices++;
        }
    }
}

static int read_configuration(void)
{
    char path[ALLOT_PATH_MAX], line[1024];
    const char *why;
    Dl_info info;
    memset(&driver, 0, sizeof driver);
    driver.account.fd = -1;
    driver.account.slot = -1;
    if (!dladdr((void *)read_configuration, &info) || !info.dli_fname)
        return 0;
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(path, sizeof path, "%.*s/driver.conf", slash ? (int)(slash - info.dli_fname) : 1,
             slash ? info.dli_fname : ".");
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file))
        read_line(line);
    fclose(file);
    if (allot_account_open(&driver.account, driver.region, &why) != 0)
        return 0;
    for (int i = 0; i < driver.num_devices; i++) {
        driver.devices[i].place = -1;
        for (int gpu = 0; gpu < ALLOT_MAX_GPUS; gpu++)
            if (driver.account.map->gpus[gpu].limit &&
                !memcmp(driver.account.map->gpus[gpu].uuid, driver.devices[i].uuid, 16))
                driver.devices[i].place = gpu;
    }
    return 1;
}

fake_driver *fake_driver_get(void)
{
    pthread_mutex_lock(&mutex);
    if (!is_read)
        is_read = read_configuration();
    pthread_mutex_unlock(&mutex);
    return is_read ? &driver : NULL;
}

fake_driver *fake_driver_join(void)
{
    fake_driver *found = fake_driver_get();
    pthread_mutex_lock(&mutex);
    if (found && !is_joined)
        is_joined = allot_account_join(&driver.account) == 0;
    pthread_mutex_unlock(&mutex);
    return is_joined ? found : NULL;
}

static uint64_t namespace_of(const char *pid)
{
    char path[64];
    struct stat found;
    snprintf(path, sizeof path, "/proc/%.12s/ns/pid", pid);
    return stat(path, &found) == 0 ? (uint64_t)found.st_ino : 0;
}

/* Its number in its own PID namespace: the last one of the line. */
static unsigned innermost(const char *pid)
{
    char path[64], line[256], *last;
    unsigned number = 0;
    snprintf(path, sizeof path, "/proc/%.12s/status", pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "NSpid:", 6) && (last = strrchr(line, '\t')))
            number = (unsigned)strtoul(last, NULL, 10);
    if (file)
        fclose(file);
    return number;
}

unsigned fake_visible_pid(const allot_region_process *process)
{
    unsigned found = 0;
    if (process->pid_namespace == namespace_of("self"))
        return process->pid;
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    while (folder && !found && (entry = readdir(folder)))
        if (isdigit((unsigned char)entry->d_name[0]) &&
            namespace_of(entry->d_name) == process->pid_namespace &&
            innermost(entry->d_name) == process->pid)
            found = (unsigned)strtoul(entry->d_name, NULL, 10);
    if (folder)
        closedir(folder);
    return found;
}

int fake_slot_of(fake_driver *found, int pid)
{
    char text[16];
    snprintf(text, sizeof text, "%d", pid);
    uint64_t space = namespace_of(text);
    unsigned number = innermost(text);
    allot_region *map = found->account.map;
    for (uint32_t slot = 0; slot < map->high_slot && slot < ALLOT_MAX_SLOTS; slot++)
        if (map->processes[slot].pid == number && map->processes[slot].pid_namespace == space &&
            number && allot_account_is_alive(&found->account, (int)slot))
            return (int)slot;
    return -1;
}
