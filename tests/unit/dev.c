/* SPDX-License-Identifier: Apache-2.0 */
/* dev.c - the device table and its cpu member. */
#include <pf/dev.h>
#include <pf/error.h>
#include <pf/mem.h>

#include "tap.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void names_are_checked(void)
{
    struct pf_dev *dev = NULL;

    ok(pf_dev_open("gpu", &dev) == PF_EUSAGE && !dev && strstr(pf_error_message(), "cuda-emu"),
       "an unknown device is a usage error that lists the known (%s)", pf_error_message());
    bool built = true;
    for (int i = 0; pf_dev_known(i, &built); i++) {
        if (strcmp(pf_dev_known(i, NULL), "cuda") == 0 && !built) {
            ok(pf_dev_open("cuda", &dev) == PF_ENOTSUP && !dev, "a device left out says so (%s)",
               pf_error_message());
        }
    }
    ok(pf_dev_known(-1, NULL) == NULL, "the list has two ends");
}

static void memory_is_counted_and_copied(void)
{
    const size_t before = pf_mem_live_bytes();
    struct pf_dev *dev = NULL;
    void *block = NULL, *none = &block;
    char out[100];

    if (pf_dev_open("cpu", &dev) != 0) {
        ok(false, "the cpu opens: %s", pf_error_message());
        return;
    }
    ok(strcmp(pf_dev_name(dev), "cpu") == 0, "the cpu opens");
    ok(pf_dev_mem_alloc(dev, 100, &block) == 0 && (uintptr_t)block % 64 == 0 &&
           pf_mem_live_bytes() >= before + 100,
       "its memory is aligned and counted");
    ok(pf_dev_mem_set(dev, block, 7, 100) == 0 &&
           pf_dev_mem_copy(dev, block, "text", 4, PF_DEV_COPY_IN) == 0 &&
           pf_dev_mem_copy(dev, out, block, 100, PF_DEV_COPY_OUT) == 0 &&
           pf_dev_stream_sync(dev) == 0 && memcmp(out, "text\7", 5) == 0 && out[99] == 7,
       "bytes go in and come out");
    ok(pf_dev_mem_copy(dev, NULL, out, 1, PF_DEV_COPY_IN) == PF_EINVAL &&
           pf_dev_mem_set(dev, NULL, 0, 1) == PF_EINVAL,
       "nowhere is no destination");
    ok(pf_dev_mem_alloc(dev, 0, &none) == 0 && !none && pf_dev_mem_free(dev, NULL) == 0,
       "nothing can be allocated and freed");
    ok(pf_dev_mem_free(dev, block) == 0 && pf_dev_close(dev) == 0 && pf_dev_close(NULL) == 0 &&
           pf_mem_live_bytes() == before,
       "closing leaves nothing behind");
}

static void some_device_is_always_there(void)
{
    struct pf_dev *dev = NULL;

    ok(pf_dev_open("auto", &dev) == 0 && pf_dev_close(dev) == 0, "auto finds a device");
}

static void the_processor_is_described(void)
{
    struct pf_cpu_info info = {.n_cpus = 0};
    const int err = pf_cpu_info(&info);

    ok(err == 0 && info.n_cpus >= 1 && info.model[0] != '\0',
       "the processor is '%s', %d usable, %s", info.model, info.n_cpus, info.isa);
}

int main(void)
{
    names_are_checked();
    memory_is_counted_and_copied();
    some_device_is_always_there();
    the_processor_is_described();
    return done();
}
