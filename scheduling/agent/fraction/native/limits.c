#define _GNU_SOURCE
#include "limits.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_LINE "allot-limits/1"
#define FILE_MAX 32768

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int allot_uuid_parse(const char *text, uint8_t uuid[16])
{
    int place = 0;
    if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
        return -1;
    for (text += 4; *text; text++) {
        if (*text == '-')
            continue;
        int high = hex(text[0]), low = high < 0 ? -1 : hex(text[1]);
        if (low < 0 || place == 16)
            return -1;
        uuid[place++] = (uint8_t)(high << 4 | low);
        text++;
    }
    return place == 16 ? 0 : -1;
}

static int copy(char *target, size_t size, const char *text)
{
    size_t length = strlen(text);
    if (length == 0 || length >= size)
        return -1;
    memcpy(target, text, length + 1);
    return 0;
}

static int read_gpu(allot_limits *limits, const char *rest)
{
    char uuid[64], share[ALLOT_PATH_MAX];
    int end = 0;
    if (limits->num_gpus == ALLOT_MAX_GPUS)
        return -1;
    allot_gpu_limit *gpu = &limits->gpus[limits->num_gpus];
    if (sscanf(rest, "%63s %" SCNu64 " %" SCNu64 " %" SCNu32 " %511s %" SCNu32 "%n", uuid,
               &gpu->bytes, &gpu->context_bytes, &gpu->milli, share, &gpu->share_slot, &end) != 6 ||
        rest[end] || allot_uuid_parse(uuid, gpu->uuid) != 0 || gpu->bytes == 0 ||
        gpu->bytes > INT64_MAX || gpu->context_bytes > INT64_MAX || gpu->milli == 0 ||
        gpu->milli > 1000 || strchr(rest, '+') ||
        allot_limits_find(limits, gpu->uuid) >= 0)
        return -1;
    if (strcmp(share, "-") != 0 && copy(gpu->share, sizeof gpu->share, share) != 0)
        return -1;
    limits->num_gpus++;
    return 0;
}

static int read_line(allot_limits *limits, char *line)
{
    char *rest = strchr(line, ' ');
    if (!rest)
        return -1;
    *rest++ = 0;
    if (strcmp(line, "session") == 0)
        return copy(limits->session, sizeof limits->session, rest);
    if (strcmp(line, "region") == 0)
        return copy(limits->region, sizeof limits->region, rest);
    if (strcmp(line, "gate") == 0)
        return copy(limits->gate, sizeof limits->gate, rest);
    if (strcmp(line, "sharing") == 0) {
        limits->is_strict = strcmp(rest, "strict") == 0;
        return limits->is_strict || strcmp(rest, "fair") == 0 ? 0 : -1;
    }
    return strcmp(line, "gpu") == 0 ? read_gpu(limits, rest) : -1;
}

static int read_text(allot_limits *limits, char *text)
{
    char *saved = NULL, *line = strtok_r(text, "\n", &saved);
    if (!line || strcmp(line, FIRST_LINE) != 0)
        return -1;
    while ((line = strtok_r(NULL, "\n", &saved))) {
        /* The last line tells a whole file from one that was cut off. */
        if (strcmp(line, "end") == 0)
            return strtok_r(NULL, "\n", &saved) || !limits->region[0] ? -1 : 0;
        if (read_line(limits, line) != 0)
            return -1;
    }
    return -1;
}

int allot_limits_read(allot_limits *limits, const char *path, unsigned owner, const char **why)
{
    char text[FILE_MAX + 1];
    struct stat found;
    memset(limits, 0, sizeof *limits);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        *why = "the limits file cannot be opened";
        return -1;
    }
    ssize_t size = -1;
    if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_size <= FILE_MAX)
        size = read(fd, text, FILE_MAX);
    close(fd);
    if (size < 0 || memchr(text, 0, (size_t)size)) {
        *why = "the limits file is garbage";
        return -1;
    }
    if ((found.st_uid != 0 && found.st_uid != owner) || (found.st_mode & (S_IWGRP | S_IWOTH))) {
        *why = "the limits file can be written by others than root";
        return -1;
    }
    text[size] = 0;
    *why = "the limits file is garbage";
    return read_text(limits, text);
}

int allot_limits_find(const allot_limits *limits, const uint8_t uuid[16])
{
    for (unsigned i = 0; i < limits->num_gpus; i++)
        if (memcmp(limits->gpus[i].uuid, uuid, 16) == 0)
            return (int)i;
    return -1;
}
