/* Links that take their time. Each link is two TAP devices, in two network namespaces; what one
 * sends, the other receives a fixed time later, in order and unchanged.
 *
 *     relay PARENT_PID DELAY_US {ROOM_BYTES NAMESPACE DEVICE NAMESPACE DEVICE}...
 *
 * Namespaces are paths. Makes the devices, writes "ready" and runs until it is killed, or its
 * parent ends. Frames carry a virtio header, so that packets which the kernel has not cut to the
 * MTU yet pass whole: one read and one write for up to 64 KiB.
 *
 * A thread for each direction. Frames wait in a ring of bytes, each behind a header with the time
 * at which it is due; the thread sleeps until then, or until another frame comes. Where the ring
 * is full it stops reading, and the device's own queue fills, of which the kernel drops the rest.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST_FRAME = 65536 + 512, ALIGNMENT = 16, ARGUMENTS_PER_LINK = 5 };

struct frame {
    int64_t due; /* CLOCK_MONOTONIC, ns */
    int64_t length;
};

/* A frame never wraps: one starts only where the longest would fit before the end of the ring. */
struct direction {
    int from, to;
    char *ring;
    size_t room, head, tail, used; /* head: the next to leave; tail: the next to come */
};

static int64_t delay_ns;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static size_t aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static size_t most(void) { return aligned(sizeof(struct frame) + LONGEST_FRAME); }

/* What a frame at this place takes of the ring: itself, and the end where no other could start. */
static size_t step(const struct direction *link, size_t place, int64_t length) {
    size_t bytes = aligned(sizeof(struct frame) + (size_t)length);
    size_t left = link->room - place;
    return left - bytes < most() ? left : bytes;
}

/* Take in what has come. Returns whether there is room for more. */
static int take(struct direction *link) {
    while (link->room - link->used >= most()) {
        struct frame *frame = (struct frame *)(link->ring + link->tail);
        ssize_t length = read(link->from, frame + 1, LONGEST_FRAME);
        if (length < 0) {
            /* EIO: the device is down, for now. */
            if (errno == EAGAIN || errno == EINTR || errno == EIO) return 1;
            fail("reading a frame");
        }
        frame->due = now() + delay_ns;
        frame->length = length;
        size_t taken = step(link, link->tail, length);
        link->tail = (link->tail + taken) % link->room;
        link->used += taken;
    }
    return 0;
}

/* Send on what is due. Returns when the next frame is, or -1 where none waits. */
static int64_t give(struct direction *link) {
    while (link->used > 0) {
        struct frame *frame = (struct frame *)(link->ring + link->head);
        if (frame->due > now()) return frame->due;
        /* A device that is down, or a packet that the kernel refuses, is a frame lost. */
        if (write(link->to, frame + 1, (size_t)frame->length) < 0 && errno == EBADFD)
            fail("writing a frame");
        size_t freed = step(link, link->head, frame->length);
        link->head = (link->head + freed) % link->room;
        link->used -= freed;
    }
    return -1;
}

static void *carry(void *argument) {
    struct direction *link = argument;
    /* Timers may otherwise be 50 us late. */
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    for (;;) {
        int open = take(link);
        int64_t due = give(link);
        struct pollfd arrival = {.fd = open ? link->from : -1, .events = POLLIN};
        struct timespec left = {0}, *patience = NULL;
        if (due >= 0) {
            int64_t wait = due - now();
            if (wait < 0) wait = 0;
            left.tv_sec = wait / 1000000000;
            left.tv_nsec = wait % 1000000000;
            patience = &left;
        }
        if (ppoll(&arrival, 1, patience, NULL) < 0 && errno != EINTR) fail("waiting");
    }
    return NULL;
}

static int make_device(const char *namespace, const char *name) {
    int place = open(namespace, O_RDONLY | O_CLOEXEC);
    if (place < 0 || setns(place, CLONE_NEWNET)) fail(namespace);
    close(place);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0) fail("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (ioctl(device, TUNSETIFF, &request)) fail(name);
    if (ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)) fail(name);
    return device;
}

static void start(int from, int to, size_t room) {
    struct direction *link = calloc(1, sizeof *link);
    pthread_t thread;
    if (link == NULL) fail("memory");
    link->from = from;
    link->to = to;
    link->room = aligned(room > most() ? room : most());
    link->ring = aligned_alloc(ALIGNMENT, link->room);
    if (link->ring == NULL) fail("memory");
    errno = pthread_create(&thread, NULL, carry, link);
    if (errno) fail("thread");
}

int main(int count, char **words) {
    if (count < 3 || (count - 3) % ARGUMENTS_PER_LINK) {
        fprintf(stderr, "usage: relay PARENT_PID DELAY_US {ROOM NAMESPACE DEVICE NAMESPACE DEVICE}...\n");
        return 2;
    }
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)) fail("parent-death signal");
    /* It may have died before the kernel knew whom to tell. */
    if (getppid() != (pid_t)strtol(words[1], NULL, 10)) return 1;
    delay_ns = strtoll(words[2], NULL, 10) * 1000;
    for (char **link = words + 3; link < words + count; link += ARGUMENTS_PER_LINK) {
        size_t room = strtoull(link[0], NULL, 10);
        int here = make_device(link[1], link[2]);
        int there = make_device(link[3], link[4]);
        start(here, there, room);
        start(there, here, room);
    }
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
