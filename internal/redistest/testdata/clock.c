/*
 * A wall clock that another process moves. Loaded into a server with
 * LD_PRELOAD, it answers from the file that REDISTEST_CLOCK names: one int64
 * in the machine's byte order, microseconds since 1970, 0 for the real time.
 * The monotonic clock stays real, so the server's own timers go on.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t *moved; /* NULL until attached */

__attribute__((constructor)) static void attach(void) {
	const char *path = getenv("REDISTEST_CLOCK");
	void *p = MAP_FAILED;
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	if (fd >= 0) {
		p = mmap(NULL, sizeof *moved, PROT_READ, MAP_SHARED, fd, 0);
		close(fd);
	}
	if (p == MAP_FAILED) { /* a wrong clock would be worse than no server */
		perror("clock: REDISTEST_CLOCK");
		_exit(1);
	}
	moved = p;
}

static int64_t moved_us(void) {
	return moved ? __atomic_load_n(moved, __ATOMIC_SEQ_CST) : 0;
}

/* The kernel is asked directly: looking for libc's own function may allocate,
 * and an allocator may ask for the time. */
int clock_gettime(clockid_t id, struct timespec *ts) {
	int64_t us = 0;

	if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)
		us = moved_us();
	if (us == 0)
		return (int)syscall(SYS_clock_gettime, id, ts);
	ts->tv_sec = us / 1000000;
	ts->tv_nsec = us % 1000000 * 1000;
	return 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
	struct timespec ts;

	(void)tz;
	if (clock_gettime(CLOCK_REALTIME, &ts) != 0)
		return -1;
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *out) {
	struct timespec ts;

	if (clock_gettime(CLOCK_REALTIME, &ts) != 0)
		return (time_t)-1;
	if (out)
		*out = ts.tv_sec;
	return ts.tv_sec;
}
